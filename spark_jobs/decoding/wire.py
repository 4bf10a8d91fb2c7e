"""The fields of a message in Protobuf's encoding, without their meaning. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from .errors import Undecodable

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_MAX_VARINT_BYTES: Final = 10
_MASK: Final = (1 << 64) - 1
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
MAX_DEPTH: Final = 100
"""Of messages and groups in each other, as in Protobuf's own parsers."""


class Field(NamedTuple):
    """value: an unsigned number of a VARINT, else the bytes, without their length."""

    number: int
    wire_type: int
    value: int | bytes


def fields(data: bytes) -> Iterator[Field]:
    """The fields in the order in which they are there; groups, which no schema of today has, are
    left out. Raises Undecodable.
    """
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise Undecodable(f"{number} is no number of a field")
        if wire_type == START_GROUP:
            at = _behind_group(data, at, number, 0)
            continue
        value, at = _value(data, at, wire_type)
        yield Field(number, wire_type, value)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of 64 bits, and the position behind it. Raises Undecodable."""
    shift = value = 0
    for _ in range(_MAX_VARINT_BYTES):
        if at >= len(data):
            raise Undecodable("it ends within a value")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
    raise Undecodable("a number has more than 10 bytes")


def _value(data: bytes, at: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == VARINT:
        return varint(data, at)
    if wire_type == BYTES:
        size, at = varint(data, at)
    elif wire_type in _WIDTHS:
        size = _WIDTHS[wire_type]
    else:
        raise Undecodable(f"{wire_type} is no type of a field")
    if at + size > len(data):
        raise Undecodable("it ends within a value")
    return data[at : at + size], at + size


def _behind_group(data: bytes, at: int, number: int, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise Undecodable("it is nested too deeply")
    while True:
        tag, at = varint(data, at)
        wire_type = tag & 7
        if wire_type == END_GROUP:
            if tag >> 3 != number:
                raise Undecodable(f"group {number} ends as {tag >> 3}")
            return at
        if wire_type == START_GROUP:
            at = _behind_group(data, at, tag >> 3, depth + 1)
        else:
            _, at = _value(data, at, wire_type)
