"""Writes the body of one request: valid values from `attack_values`, and in their place what a plan
says. The neighbour `attack_bodies` makes the plans.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.attack_values import (
    DISTINCT_INTS,
    EMPTY_ARRAYS,
    FIXED_STRINGS,
    Names,
    Path,
    valid_value,
)
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.primitives import unsigned_varint
from kbroker.protocol.codecs.schema import Field, Request, Struct

NAME_MARK: Final = b"~name~~"
NUMBER_MARK: Final = 0x5B5C5D5E
UUID_MARK: Final = b"~uuid~~uuid~~uu~"
MAX_INT16_STRING: Final = 32767

INTS: Final = {
    "int8": ("b", 8), "int16": ("h", 16), "int32": ("i", 32), "int64": ("q", 64),
    "uint16": ("H", 16), "uint32": ("I", 32), "boolean": ("?", 1), "float64": ("d", 64),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is done to a request. blown: the array that is filled up to size. fill: how: "same",
    "names", "numbers" (below `modulus`) or "smallest". values: in place of valid ones, by path.
    claims: lengths to state, by path. nulls: whether other nullable arrays are null. tags: bytes in
    place of the tagged section of the structs at these paths. headroom: bytes of zeros behind it.
    """

    size: int = 0
    blown: Path | None = None
    fill: str = "same"
    modulus: int = 1 << 31
    values: Mapping[Path, Any] = field(default_factory=dict)
    claims: Mapping[Path, int] = field(default_factory=dict)
    tags: Mapping[Path, bytes] = field(default_factory=dict)
    nulls: bool = False


class Writer:
    """Writes the body of one request as a plan says."""

    def __init__(self, request: type[Request], version: int, names: Names, plan: Plan) -> None:
        self._request = request
        self._version = version
        self._names = names
        self._plan = plan
        self._is_marking = False
        self._is_smallest = False

    def body(self) -> bytes:
        """Of the whole request."""
        return self._struct(self._request, ())

    def _struct(self, kind: type[Struct], path: Path) -> bytes:
        out = bytearray()
        for each in kind.FIELDS:
            if self._version not in each.versions or self._version in each.tagged:
                continue
            out += self._field(each, (*path, each.name))
        if self._version in self._request.FLEXIBLE:
            out += self._tagged(kind, path)
        return bytes(out)

    def _tagged(self, kind: type[Struct], path: Path) -> bytes:
        """The section of tagged fields: those that the plan leads to."""
        if path in self._plan.tags:
            return self._plan.tags[path]
        fields = [
            each
            for each in kind.FIELDS
            if self._version in each.tagged and self._leads_to_plan((*path, each.name))
        ]
        out = bytearray(unsigned_varint(len(fields)))
        for each in fields:
            content = self._field(each, (*path, each.name))
            out += unsigned_varint(each.tag or 0) + unsigned_varint(len(content)) + content
        return bytes(out)

    def _field(self, each: Field, path: Path) -> bytes:
        if each.type_name == "struct":
            return self._struct_field(each, path)
        if each.type_name == "array":
            return self._array(each, path)
        return self._primitive(each.type_name, each, path)

    def _struct_field(self, each: Field, path: Path) -> bytes:
        if self._version not in each.nullable:
            return self._struct(each.struct, path)
        if self._is_smallest or (
            not self._leads_to_plan(path)
            and self._request.API_KEY != ApiKey.STREAMS_GROUP_HEARTBEAT
        ):
            return b"\xff"
        return b"\1" + self._struct(each.struct, path)

    def _leads_to_plan(self, path: Path) -> bool:
        plan = self._plan
        wanted = [*plan.values, *plan.claims, *plan.tags]
        if plan.blown is not None:
            wanted.append(plan.blown)
        return any(each[: len(path)] == path for each in wanted)

    def _is_compact(self, each: Field) -> bool:
        flexible = self._request.FLEXIBLE if each.flexible is None else each.flexible
        return self._version in flexible

    def _length(self, count: int, each: Field, path: Path, *, short: bool = False) -> bytes:
        count = self._plan.claims.get(path, count)
        if self._is_compact(each):
            return unsigned_varint((count + 1) & 0xFFFFFFFF)
        if short:
            return struct.pack(">h", max(-32768, min(count, MAX_INT16_STRING)))
        return struct.pack(">i", count)

    def _array(self, each: Field, path: Path) -> bytes:
        plan = self._plan
        if path == plan.blown:
            return self._blown_array(each, path)
        if self._version in each.nullable and plan.nulls and not self._leads_to_plan(path):
            return b"\0" if self._is_compact(each) else b"\xff\xff\xff\xff"
        if self._is_smallest or self._is_left_empty(path):
            return self._length(0, each, path)
        return self._length(1, each, path) + self._element(each, path)

    def _is_left_empty(self, path: Path) -> bool:
        """Whether a valid request has no element here, and the plan asks for none."""
        key = (self._request.API_KEY, path[-1])
        return key in EMPTY_ARRAYS and not self._leads_to_plan(path)

    def _element(self, each: Field, path: Path) -> bytes:
        if each.element == "struct":
            return self._struct(each.struct, path)
        return self._primitive(each.element, each, path)

    def _blown_array(self, each: Field, path: Path) -> bytes:
        fill = self._plan.fill
        self._is_marking = fill in ("names", "numbers")
        self._is_smallest = fill == "smallest"
        element = self._element(each, path)
        self._is_marking = self._is_smallest = False
        count = max(1, self._plan.size // len(element))
        if fill in ("same", "smallest"):
            content = element * count
        else:
            content = b"".join(distinct(element, count, self._plan.modulus))
        return self._length(count, each, path) + content

    def _primitive(self, kind: str, each: Field, path: Path) -> bytes:
        value = self._value(kind, each, path)
        if kind == "uuid":
            return bytes(value)
        if kind in INTS:
            return struct.pack(">" + INTS[kind][0], value)
        is_short = kind == "string"
        if value is None:
            if self._version in each.nullable:
                return self._length(-1, each, path, short=is_short)
            value = "" if is_short else b""
        data = value.encode() if isinstance(value, str) else value
        if is_short and not self._is_compact(each):
            data = data[:MAX_INT16_STRING]
        return self._length(len(data), each, path, short=is_short) + data

    def _value(self, kind: str, each: Field, path: Path) -> Any:
        plan, name = self._plan, path[-1]
        if path in plan.values:
            return plan.values[path]
        if self._is_smallest:
            is_nullable = each.type_name != "array" and self._version in each.nullable
            if is_nullable and kind in ("string", "records"):
                return None
            return {"uuid": bytes(16), "string": "", "bytes": b"", "records": b""}.get(kind, 0)
        if self._is_marking:
            if plan.fill == "names" and kind == "string" and name not in FIXED_STRINGS:
                return NAME_MARK.decode()
            if plan.fill == "names" and kind == "uuid":
                return UUID_MARK
            if kind == "int32" and name in DISTINCT_INTS:
                return NUMBER_MARK
        return valid_value(self._request.API_KEY, path, each, self._names)


def distinct(element: bytes, count: int, modulus: int) -> Iterator[bytes]:
    """The element with its marks replaced by running numbers."""
    number_mark = NUMBER_MARK.to_bytes(4, "big")
    pieces: list[bytes] = [element]
    kinds: list[str] = []
    for mark, kind in ((NAME_MARK, "name"), (UUID_MARK, "uuid"), (number_mark, "number")):
        split: list[bytes] = []
        split_kinds: list[str] = []
        for place, piece in enumerate(pieces):
            parts = piece.split(mark)
            split += parts
            split_kinds += [kind] * (len(parts) - 1)
            if place < len(kinds):
                split_kinds.append(kinds[place])
        pieces, kinds = split, split_kinds
    for number in range(count):
        values = {
            "name": b"n%06d" % number,
            "uuid": b"uuid" + number.to_bytes(12, "big"),
            "number": (number % modulus).to_bytes(4, "big"),
        }
        out = pieces[0]
        for kind, piece in zip(kinds, pieces[1:], strict=True):
            out += values[kind] + piece
        yield out
