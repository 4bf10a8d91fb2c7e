"""Protobuf's encoding: values and types of every kind of field."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.decoding.descriptors import MessageType, Types, parse_descriptors
from spark_jobs.decoding.errors import SchemaProblem, Undecodable
from spark_jobs.decoding.protobuf import Reader, spark_type
from spark_jobs.decoding.types import array, struct
from tests.spark.decoding.protobuf_bytes import (
    content,
    descriptor_set,
    double,
    enum_type,
    field_type,
    fixed32,
    message_type,
    number,
    shop,
    varint,
)

TYPES = parse_descriptors(shop())
READER = Reader(TYPES.message("shop.Order"), TYPES)
EMPTY = {"items": [], "numbers": [], "counts": []}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", {}),
        (number(1, 150), {"id": 150}),
        (number(1, -2), {"id": -2}),
        (number(1, 7) + number(1, 8), {"id": 8}),
        (content(2, "Zoë"), {"name": "Zoë"}),
        (number(3, 1), {"state": "PAID"}),
        (number(3, -1), {"state": "LOST"}),
        (number(3, 99), {"state": "99"}),
        (
            content(4, content(1, "a") + number(2, (1 << 32) - 1)) + content(4, b""),
            {"items": [{"sku": "a", "count": (1 << 32) - 1}, {}]},
        ),
        (content(5, varint(1) + varint(-1)) + number(5, 3), {"numbers": [1, -1, 3]}),
        (
            content(6, content(1, "a") + number(2, 3))
            + content(6, content(1, "a") + number(2, 4))
            + content(6, b""),
            {"counts": [("a", 4), ("", 0)]},
        ),
        (content(7, number(1, 1_700_000_000) + number(2, 5_999)), {"at": 1_700_000_000_000_005}),
        (content(7, number(1, -1)), {"at": -1_000_000}),
        (number(8, (1 << 64) - 1), {"large": Decimal((1 << 64) - 1)}),
        (double(9, 1.5), {"weight": 1.5}),
        (number(10, 3), {"delta": -2}),
        (fixed32(11, (1 << 32) - 1), {"flags": (1 << 32) - 1}),
        (number(12, 1), {"paid": True}),
        (content(13, b"\xff"), {"raw": b"\xff"}),
        (
            content(14, content(1, "a")) + content(14, number(2, 3)),
            {"first": {"sku": "a", "count": 3}},
        ),
        (content(2, "a") + number(100, 1) + fixed32(101, 1) + b"\xb3\x06\x08\x01\xb4\x06",
         {"name": "a"}),
        (content(1, "an id that is a text is unknown"), {}),
    ],
)  # fmt: skip
def test_values(data: bytes, value: dict[str, object]) -> None:
    assert READER.value(data) == {**EMPTY, **value}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x08", "ends within a value"),
        (b"\x12\x05ab", "ends within a value"),
        (b"\x08" + b"\xff" * 10, "more than 10 bytes"),
        (content(2, b"\xff"), "no UTF-8"),
        (b"\x00\x00", "0 is no number of a field"),
        (b"\x0f", "7 is no type of a field"),
        (b"\x0c", "4 is no type of a field"),
        (b"\x0b\x14", "group 1 ends as 2"),
        (b"\x0b" * 200, "nested too deeply"),
        (content(7, number(1, 1 << 62)), "a timestamp of"),
        (content(5, b"\x80"), "ends within a value"),
    ],
)
def test_what_is_no_message(data: bytes, why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        READER.value(data)


def test_packed_numbers_of_a_fixed_width() -> None:
    with pytest.raises(Undecodable, match="ends within a value"):
        Reader(*_one_field(kind=7)).value(content(1, b"\x01\x00\x00"))
    found = Reader(*_one_field(kind=7)).value(content(1, b"\x01\x00\x00\x00\x02\x00\x00\x00"))
    assert found == {"many": [1, 2]}


def _one_field(kind: int) -> tuple[MessageType, Types]:
    """A message with one repeated field."""
    types = parse_descriptors(
        descriptor_set("", [message_type("One", [field_type("many", 1, kind, repeated=True)])])
    )
    return types.message("One"), types


def test_messages_in_each_other() -> None:
    reader = Reader(TYPES.message("shop.Node"), TYPES)
    data = b""
    for _ in range(90):
        data = content(1, data)
    assert reader.value(data)["next"]["next"]
    for _ in range(20):
        data = content(1, data)
    with pytest.raises(Undecodable, match="nested too deeply"):
        reader.value(data)


def payments() -> Reader:
    """Of a message with two oneofs, a field beside them, and maps of each kind of value."""
    kinds = {
        "state": field_type("value", 2, 14, type_name=".State"),
        "item": field_type("value", 2, 11, type_name=".Item"),
        "time": field_type("value", 2, 11, type_name=".google.protobuf.Timestamp"),
        "large": field_type("value", 2, 4),
    }
    entries = [
        message_type(f"{name}Entry", [field_type("key", 1, 9), value], is_map=True)
        for name, value in kinds.items()
    ]
    maps = [
        field_type(name, 10 + place, 11, repeated=True, type_name=f".Payment.{name}Entry")
        for place, name in enumerate(kinds)
    ]
    fields = [
        field_type("card", 1, 9, oneof=0),
        field_type("cash", 2, 5, oneof=0),
        field_type("goods", 3, 11, type_name=".Item", oneof=0),
        field_type("note", 4, 9, oneof=1),
        field_type("memo", 5, 9, oneof=1),
        field_type("id", 6, 3),
    ]
    item = message_type("Item", [field_type("sku", 1, 9), field_type("tags", 2, 9, repeated=True)])
    payment = message_type("Payment", [*fields, *maps], nested=entries)
    # Of proto2, where the first need not be number 0.
    state = enum_type("State", {"ON": 1, "OFF": 0})
    time = descriptor_set("google.protobuf", [message_type("Timestamp", [])])
    types = parse_descriptors(descriptor_set("", [payment, item], [state]) + time)
    return Reader(types.message("Payment"), types)


NO_MAPS: dict[str, object] = {"state": [], "item": [], "time": [], "large": []}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (content(1, "a") + number(2, 5), {"cash": 5}),
        (number(2, 5) + content(1, "a"), {"card": "a"}),
        (number(2, 5) + content(3, content(1, "x")), {"goods": {"sku": "x", "tags": []}}),
        (content(3, content(1, "x")) + number(2, 5), {"cash": 5}),
        (
            content(3, content(1, "x")) + number(2, 5) + content(3, content(2, "t")),
            {"goods": {"tags": ["t"]}},
        ),
        (
            content(3, content(1, "x")) + content(3, content(2, "t")),
            {"goods": {"sku": "x", "tags": ["t"]}},
        ),
        (
            content(1, "a") + content(4, "n") + number(6, 1) + content(5, "m"),
            {"card": "a", "memo": "m", "id": 1},
        ),
        (content(1, "a") + content(2, "a text is no number"), {"card": "a"}),
        (content(1, "a") + number(3, 1), {"card": "a"}),
    ],
)
def test_a_oneof_has_the_member_that_came_last(data: bytes, value: dict[str, object]) -> None:
    assert payments().value(data) == {**NO_MAPS, **value}


def test_values_of_maps_that_are_not_sent() -> None:
    """They have the default of their type, as in Protobuf's own parsers."""
    data = b"".join(content(field, content(1, "k")) for field in range(10, 14))
    assert payments().value(data) == {
        "state": [("k", "ON")],
        "item": [("k", {"tags": []})],
        "time": [("k", 0)],
        "large": [("k", 0)],
    }


class Counted(bytes):
    """Bytes whose parts count what is copied when they are put together. copied: bytes so far."""

    copied = 0

    def __getitem__(self, place: object) -> object:
        found = super().__getitem__(place)  # type: ignore[index]
        return Counted(found) if isinstance(found, bytes) else found

    def __add__(self, other: bytes) -> Counted:
        Counted.copied += len(self) + len(other)
        return Counted(bytes(self) + bytes(other))

    def __radd__(self, other: bytes) -> Counted:
        return Counted(other) + self


def test_a_message_in_many_parts_is_put_together_once() -> None:
    parts = [content(14, content(1, "sku" if place else "first")) for place in range(1000)]
    data = Counted(b"".join(parts) + content(14, number(2, 3)))
    assert READER.value(data) == {**EMPTY, "first": {"sku": "sku", "count": 3}}
    assert Counted.copied <= len(data)


def test_types_of_spark() -> None:
    item = struct([("sku", "string"), ("count", "long")])
    found = spark_type(TYPES.message("Order"), TYPES)
    assert found == struct(
        [
            ("id", "long"),
            ("name", "string"),
            ("state", "string"),
            ("items", array(item)),
            ("numbers", array("integer")),
            (
                "counts",
                {
                    "type": "map",
                    "keyType": "string",
                    "valueType": "integer",
                    "valueContainsNull": True,
                },
            ),
            ("at", "timestamp"),
            ("large", "decimal(20,0)"),
            ("weight", "double"),
            ("delta", "long"),
            ("flags", "long"),
            ("paid", "boolean"),
            ("raw", "binary"),
            ("first", item),
        ]
    )
    for name, why in (("shop.Node", "has itself as a part"), ("shop.Empty", "has no fields")):
        with pytest.raises(SchemaProblem, match=why):
            spark_type(TYPES.message(name), TYPES)
    chain = [message_type("M0", [field_type("a", 1, 5)])]
    for place in range(1, 900):
        chain.append(
            message_type(f"M{place}", [field_type("a", 1, 11, type_name=f".M{place - 1}")])
        )
    types = parse_descriptors(descriptor_set("", chain))
    assert spark_type(types.message("M50"), types)
    with pytest.raises(SchemaProblem, match="more than 100 messages in each other"):
        spark_type(types.message("M899"), types)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    try:
        READER.value(data)
    except Undecodable as error:
        assert str(error)
