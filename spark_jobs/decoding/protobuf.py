"""Values in Protobuf's encoding, and their types as Spark has them. Pure.

As Spark's `from_protobuf` has it: a field that is not there is null, an enum is its name, a map is
a map, and `google.protobuf.Timestamp` is a timestamp. Otherwise than there, numbers without a sign
keep their value: uint32 is a long, uint64 a decimal(20,0).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from . import descriptors as d
from .descriptors import FieldType, MessageType, Types
from .errors import SchemaProblem, Undecodable
from .types import Schema, array
from .types import struct as struct_of
from .wire import BYTES, FIXED32, FIXED64, MAX_DEPTH, VARINT, fields, varint

TIMESTAMP: Final = "google.protobuf.Timestamp"
_SPARK: Final[Mapping[int, str]] = {
    d.DOUBLE: "double",
    d.FLOAT: "float",
    d.INT64: "long",
    d.UINT64: "decimal(20,0)",
    d.INT32: "integer",
    d.FIXED64: "decimal(20,0)",
    d.FIXED32: "long",
    d.BOOL: "boolean",
    d.STRING: "string",
    d.BYTES_TYPE: "binary",
    d.UINT32: "long",
    d.ENUM: "string",
    d.SFIXED32: "integer",
    d.SFIXED64: "long",
    d.SINT32: "integer",
    d.SINT64: "long",
}


def spark_type(message: MessageType, types: Types) -> Schema:
    """Fields whose message has no fields are left out. Raises SchemaProblem for a type that Spark
    has not.
    """
    found = _struct(message, types, ())
    if found is None:
        raise SchemaProblem(f"{message.name} has no fields")
    return found


def _struct(message: MessageType, types: Types, within: tuple[str, ...]) -> Schema | None:
    if message.name in within:
        raise SchemaProblem(f"{message.name} has itself as a part, which Spark has no type for")
    if len(within) > MAX_DEPTH:
        raise SchemaProblem(f"there are more than {MAX_DEPTH} messages in each other")
    kinds = [(each.name, _type(each, types, (*within, message.name))) for each in message.fields]
    kept = [(name, kind) for name, kind in kinds if kind is not None]
    return struct_of(kept) if kept else None


def _type(field: FieldType, types: Types, within: tuple[str, ...]) -> Schema | None:
    if field.kind != d.MESSAGE:
        if field.kind not in _SPARK:
            raise SchemaProblem(f"{within[-1]}.{field.name} is a group, which is not supported")
        kind: Schema = _SPARK[field.kind]
    elif field.type_name == TIMESTAMP:
        kind = "timestamp"
    else:
        message = types.message(field.type_name)
        if message.is_map_entry:
            return _map(message, types, within)
        kind = _struct(message, types, within)
        if kind is None:
            return None
    return array(kind) if field.is_repeated else kind


def _map(entry: MessageType, types: Types, within: tuple[str, ...]) -> Schema | None:
    key, value = (_type(each, types, within) for each in _key_and_value(entry))
    if value is None:
        return None
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def _key_and_value(entry: MessageType) -> tuple[FieldType, FieldType]:
    by_number = {each.number: each for each in entry.fields}
    return by_number[1], by_number[2]


Scalar = Callable[[Any], Any]
"""Makes a value out of an unsigned number, or of bytes."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _int32(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _unpacked(form: str) -> Scalar:
    reader = struct.Struct(form)
    return lambda content: reader.unpack(content)[0]


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Undecodable("a string is no UTF-8") from error


_SCALARS: Final[Mapping[int, tuple[int, Scalar]]] = {
    d.DOUBLE: (FIXED64, _unpacked("<d")),
    d.FLOAT: (FIXED32, _unpacked("<f")),
    d.INT64: (VARINT, _signed),
    d.UINT64: (VARINT, Decimal),
    d.INT32: (VARINT, _int32),
    d.FIXED64: (FIXED64, lambda content: Decimal(int.from_bytes(content, "little"))),
    d.FIXED32: (FIXED32, _unpacked("<I")),
    d.BOOL: (VARINT, bool),
    d.STRING: (BYTES, _text),
    d.BYTES_TYPE: (BYTES, bytes),
    d.UINT32: (VARINT, lambda value: value & 0xFFFFFFFF),
    d.SFIXED32: (FIXED32, _unpacked("<i")),
    d.SFIXED64: (FIXED64, _unpacked("<q")),
    d.SINT32: (VARINT, lambda value: _zigzag(value & 0xFFFFFFFF)),
    d.SINT64: (VARINT, _zigzag),
}
"""By type: how it is sent, and its value."""


class Reader:
    """Reads values of one message."""

    def __init__(self, message: MessageType, types: Types) -> None:
        self._message = message
        self._types = types
        self._by_number = {
            each.name: {field.number: field for field in each.fields}
            for each in types.messages.values()
        }

    def value(self, data: bytes) -> dict[str, Any]:
        """The message that is the data. Raises Undecodable."""
        return self._read(self._message, data, 0)

    def _read(self, message: MessageType, data: bytes, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise Undecodable("it is nested too deeply")
        known = self._by_number[message.name]
        found: dict[str, Any] = {each.name: [] for each in message.fields if each.is_repeated}
        parts: dict[str, list[bytes]] = {}
        chosen: dict[int, str] = {}
        for number, wire_type, value in fields(data):
            field = known.get(number)
            if field is None:
                continue
            if field.kind == d.MESSAGE:
                if wire_type != BYTES or not isinstance(value, bytes):
                    continue
                if field.is_repeated:
                    found[field.name].append(self._part(field, value, depth))
                else:  # one that is there twice is merged: the bytes of both are one message
                    parts.setdefault(field.name, []).append(value)
            elif not self._take(field, wire_type, value, found):
                continue
            if field.oneof is None or field.is_repeated:
                continue
            before = chosen.get(field.oneof, field.name)
            chosen[field.oneof] = field.name
            if before != field.name:  # the last member that is there is the only one
                found.pop(before, None)
                parts.pop(before, None)
        for field in message.fields:
            if field.name in parts:
                found[field.name] = self._part(field, b"".join(parts[field.name]), depth)
            elif field.is_repeated and self._is_map(field):
                found[field.name] = list(dict(found[field.name]).items())
        return found

    def _take(
        self, field: FieldType, wire_type: int, value: int | bytes, found: dict[str, Any]
    ) -> bool:
        """A scalar or an enum. False for one that is sent otherwise than it should be: unknown."""
        wanted, make = (VARINT, self._enum(field)) if field.kind == d.ENUM else _SCALARS[field.kind]
        if wire_type == wanted:
            if field.is_repeated:
                found[field.name].append(make(value))
            else:
                found[field.name] = make(value)
        elif field.is_repeated and wire_type == BYTES and isinstance(value, bytes):
            found[field.name] += [make(each) for each in _packed(value, wanted)]
        else:
            return False
        return True

    def _part(self, field: FieldType, content: bytes, depth: int) -> Any:
        if field.type_name == TIMESTAMP:
            return _timestamp(content)
        message = self._types.message(field.type_name)
        value = self._read(message, content, depth + 1)
        if message.is_map_entry:
            return tuple(
                value[each.name] if each.name in value else self._default(each)
                for each in _key_and_value(message)
            )
        return value

    def _default(self, field: FieldType) -> Any:
        """Of a key or a value of a map that is not sent."""
        if field.kind == d.MESSAGE:
            return self._part(field, b"", 0)
        if field.kind == d.ENUM:  # the first one that is declared; in proto3 that is number 0
            return next(iter(self._types.enums.get(field.type_name, {}).values()), "0")
        return {"string": "", "binary": b"", "boolean": False}.get(_SPARK[field.kind], 0)

    def _is_map(self, field: FieldType) -> bool:
        is_message = field.kind == d.MESSAGE and field.type_name != TIMESTAMP
        return is_message and self._types.message(field.type_name).is_map_entry

    def _enum(self, field: FieldType) -> Scalar:
        names = self._types.enums.get(field.type_name, {})
        return lambda value: names.get(_int32(value), str(_int32(value)))


def _packed(content: bytes, wire_type: int) -> list[int | bytes]:
    found: list[int | bytes] = []
    at = 0
    if wire_type == VARINT:
        while at < len(content):
            value, at = varint(content, at)
            found.append(value)
        return found
    width = {FIXED32: 4, FIXED64: 8}.get(wire_type)
    if width is None:
        return found
    if len(content) % width:
        raise Undecodable("it ends within a value")
    return [content[at : at + width] for at in range(0, len(content), width)]


def _timestamp(content: bytes) -> int:
    """Microseconds since 1970."""
    seconds = nanos = 0
    for number, wire_type, value in fields(content):
        if wire_type == VARINT and isinstance(value, int):
            if number == 1:
                seconds = _signed(value)
            elif number == 2:
                nanos = _int32(value)
    micros = seconds * 1_000_000 + nanos // 1000
    if not -(1 << 63) <= micros < 1 << 63:
        raise Undecodable(f"a timestamp of {seconds} s")
    return micros
