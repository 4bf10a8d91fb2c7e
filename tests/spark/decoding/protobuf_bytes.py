"""Messages and descriptor sets in Protobuf's encoding, for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

OPTIONAL, REPEATED = 1, 3


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes | str) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(encoded)) + encoded


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def fixed32(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<I", value)


def field_type(
    name: str,
    field: int,
    kind: int,
    *,
    repeated: bool = False,
    type_name: str = "",
    oneof: int | None = None,
) -> bytes:
    label = REPEATED if repeated else OPTIONAL
    encoded = content(1, name) + number(3, field) + number(4, label) + number(5, kind)
    encoded += content(6, type_name) if type_name else b""
    return encoded if oneof is None else encoded + number(9, oneof)


def message_type(
    name: str, fields: Sequence[bytes], *, nested: Sequence[bytes] = (), is_map: bool = False
) -> bytes:
    encoded = content(1, name) + b"".join(content(2, each) for each in fields)
    encoded += b"".join(content(3, each) for each in nested)
    return encoded + (content(7, number(7, 1)) if is_map else b"")


def enum_type(name: str, values: Mapping[str, int]) -> bytes:
    pairs = (content(1, each) + number(2, value) for each, value in values.items())
    return content(1, name) + b"".join(content(2, pair) for pair in pairs)


def descriptor_set(package: str, messages: Sequence[bytes], enums: Sequence[bytes] = ()) -> bytes:
    file = content(1, "shop.proto") + content(2, package)
    file += b"".join(content(4, each) for each in messages)
    file += b"".join(content(5, each) for each in enums)
    return content(1, file)


def shop() -> bytes:
    """shop.Order: every kind of field."""
    entry = message_type(
        "CountsEntry", [field_type("key", 1, 9), field_type("value", 2, 5)], is_map=True
    )
    order = message_type(
        "Order",
        [
            field_type("id", 1, 3),
            field_type("name", 2, 9),
            field_type("state", 3, 14, type_name=".shop.State"),
            field_type("items", 4, 11, repeated=True, type_name=".shop.Item"),
            field_type("numbers", 5, 5, repeated=True),
            field_type("counts", 6, 11, repeated=True, type_name=".shop.Order.CountsEntry"),
            field_type("at", 7, 11, type_name=".google.protobuf.Timestamp"),
            field_type("large", 8, 4),
            field_type("weight", 9, 1),
            field_type("delta", 10, 18),
            field_type("flags", 11, 7),
            field_type("paid", 12, 8),
            field_type("raw", 13, 12),
            field_type("first", 14, 11, type_name=".shop.Item"),
            field_type("nothing", 15, 11, type_name=".shop.Empty"),
        ],
        nested=[entry],
    )
    item = message_type("Item", [field_type("sku", 1, 9), field_type("count", 2, 13)])
    itself = message_type("Node", [field_type("next", 1, 11, type_name=".shop.Node")])
    messages = [order, item, itself, message_type("Empty", [])]
    time = message_type("Timestamp", [field_type("seconds", 1, 3), field_type("nanos", 2, 5)])
    state = enum_type("State", {"NEW": 0, "PAID": 1, "LOST": -1})
    return descriptor_set("shop", messages, [state]) + descriptor_set("google.protobuf", [time])
