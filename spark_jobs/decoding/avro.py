"""Avro's binary encoding (specification 1.12): a schema, and values that it reads. Pure.

Values are what Arrow takes for the types of `avro_types`: numbers for dates (days) and for
timestamps (microseconds), dicts for records and maps.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from .errors import SchemaProblem, Undecodable

Node = Any
"""A parsed schema: a mapping with `type`, named types once and by reference after that, or a list
of nodes for a union.
"""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at a position; gives it and the position behind it."""

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED: Final = ("record", "error", "enum", "fixed")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_MAX_VARINT_BYTES: Final = 10
_BITS: Final = {"int": 32, "long": 64}


def parse_schema(text: str, references: Sequence[str] = ()) -> Node:
    """A schema out of its JSON. references: schemas whose names it uses, in an order in which each
    uses earlier ones only. Raises SchemaProblem.
    """
    names: dict[str, Node] = {}
    try:
        for each in references:
            _parse(json.loads(each), "", names)
        return _parse(json.loads(text), "", names)
    except RecursionError as error:
        raise SchemaProblem("the schema is nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, SchemaProblem):
            raise
        raise SchemaProblem(f"it is no schema of Avro ({error})") from error


def _parse(schema: Any, namespace: str, names: dict[str, Node]) -> Node:
    if isinstance(schema, list):
        return [_parse(each, namespace, names) for each in schema]
    if isinstance(schema, str):
        if schema in PRIMITIVES:
            return {"type": schema}
        found = names.get(_full_name(schema, namespace)) or names.get(schema)
        if found is None:
            raise SchemaProblem(f"there is no type {schema}")
        return found
    kind = schema["type"]
    if kind in PRIMITIVES:
        return dict(schema)
    if kind == "array":
        return {**schema, "items": _parse(schema["items"], namespace, names)}
    if kind == "map":
        return {**schema, "values": _parse(schema["values"], namespace, names)}
    if kind not in NAMED:
        return _parse(kind, namespace, names)
    space = schema.get("namespace", namespace)
    name = _full_name(schema["name"], space)
    node: dict[str, Any] = {**schema, "type": "record" if kind == "error" else kind, "name": name}
    names[name] = node
    inner = name.rpartition(".")[0]
    if node["type"] == "record":
        fields = [
            {"name": str(each["name"]), "type": _parse(each["type"], inner, names)}
            for each in schema["fields"]
        ]
        if len({each["name"] for each in fields}) < len(fields):
            raise SchemaProblem(f"record {name} has a field twice")
        node["fields"] = fields
    elif kind == "enum":
        node["symbols"] = [str(symbol) for symbol in schema["symbols"]]
    else:
        node["size"] = int(schema["size"])
        if node["size"] < 0:
            raise SchemaProblem(f"fixed {name} has {node['size']} bytes")
    return node


def _full_name(name: str, namespace: str) -> str:
    if not _NAME.fullmatch(name):
        raise SchemaProblem(f"{name!r} is no name of Avro")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def decimal_of(node: Node) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for another type. A decimal that is none by the rules
    is the type that it stands on, as the specification says.
    """
    if node.get("logicalType") != "decimal" or node["type"] not in ("bytes", "fixed"):
        return None
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return (precision, scale) if 0 < precision <= 38 and 0 <= scale <= precision else None


def union_members(union: list[Node]) -> tuple[list[int], bool]:
    """The places of what is not null in a union, and whether it can be null."""
    places = [place for place, each in enumerate(union) if _kind(each) != "null"]
    return places, len(places) < len(union)


def _kind(node: Node) -> str:
    return "union" if isinstance(node, list) else str(node["type"])


class Reader:
    """Reads values of one schema. is_framed: by Confluent's serializer, which puts no length before
    bytes that are the whole value; in a record or a union they have one.
    """

    def __init__(self, schema: Node, *, is_framed: bool = False) -> None:
        self._of_records: dict[int, Read] = {}
        has_no_length = is_framed and _kind(schema) == "bytes"
        self._read = _with_decimal(schema, _rest) if has_no_length else self._reader(schema)

    def value(self, data: bytes, start: int = 0) -> Any:
        """The value that is the rest of the data. Raises Undecodable."""
        try:
            value, end = self._read(data, start)
        except (IndexError, struct.error) as error:
            raise Undecodable("it ends within a value") from error
        except RecursionError as error:
            raise Undecodable("it is nested too deeply") from error
        except UnicodeDecodeError as error:
            raise Undecodable("a string is no UTF-8") from error
        if end != len(data):
            raise Undecodable(f"{len(data) - end} bytes are left behind the value")
        return value

    def _reader(self, node: Node) -> Read:
        if isinstance(node, list):
            return self._union(node)
        match node["type"]:
            case "record":
                return self._record(node)
            case "array":
                return self._array(node)
            case "map":
                return self._map(node)
            case "enum":
                return _enum(node["symbols"])
            case "fixed":
                return _with_decimal(node, _fixed(node["size"]))
            case "bytes":
                return _with_decimal(node, _bytes)
            case "int" | "long":
                return _integer(node)
        return _SIMPLE[node["type"]]

    def _record(self, node: Node) -> Read:
        known = self._of_records.get(id(node))
        if known is not None:
            return known
        fields: list[tuple[str, Read]] = []

        def read(data: bytes, at: int) -> tuple[Any, int]:
            value = {}
            for name, read_field in fields:
                value[name], at = read_field(data, at)
            return value, at

        self._of_records[id(node)] = read  # a field may be of the record's own type
        fields += [(each["name"], self._reader(each["type"])) for each in node["fields"]]
        return read

    def _union(self, node: list[Node]) -> Read:
        readers = [self._reader(each) for each in node]
        members, _ = union_members(node)
        names = {place: f"member{number}" for number, place in enumerate(members)}

        def read(data: bytes, at: int) -> tuple[Any, int]:
            place, at = _varint(data, at)
            if not 0 <= place < len(readers):
                raise Undecodable(f"{place} is none of the {len(readers)} types of a union")
            value, at = readers[place](data, at)
            if len(members) > 1 and place in names:
                return {names[place]: value}, at
            return value, at

        return read

    def _array(self, node: Node) -> Read:
        read_item = self._reader(node["items"])

        def read(data: bytes, at: int) -> tuple[Any, int]:
            items: list[Any] = []
            while True:
                count, at = _block(data, at)
                if not count:
                    return items, at
                for _ in range(count):
                    item, at = read_item(data, at)
                    items.append(item)

        return read

    def _map(self, node: Node) -> Read:
        read_value = self._reader(node["values"])

        def read(data: bytes, at: int) -> tuple[Any, int]:
            entries: dict[str, Any] = {}
            while True:
                count, at = _block(data, at)
                if not count:
                    return list(entries.items()), at
                for _ in range(count):
                    key, at = _string(data, at)
                    entries[key], at = read_value(data, at)

        return read


def _varint(data: bytes, at: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise Undecodable("a number has more than 10 bytes")


def _block(data: bytes, at: int) -> tuple[int, int]:
    """The number of items of a block, and where they begin."""
    count, at = _varint(data, at)
    if count < 0:
        count = -count
        _, at = _varint(data, at)  # the size of the block in bytes
    if count > len(data):  # of nulls, which take no bytes, there may be any number
        raise Undecodable(f"a block of {count} items in {len(data)} bytes")
    return count, at


def _null(_data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise Undecodable(f"a boolean is {data[at]}")
    return data[at] == 1, at + 1


def _float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _varint(data, at)
    if size < 0:
        raise Undecodable(f"a length is {size}")
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


def _rest(data: bytes, at: int) -> tuple[bytes, int]:
    return data[at:], len(data)


def _string(data: bytes, at: int) -> tuple[str, int]:
    content, at = _bytes(data, at)
    return content.decode(), at


_SIMPLE: Final[Mapping[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
}


def _integer(node: Node) -> Read:
    bits = _BITS[node["type"]]
    name = node["type"]
    scale = 1000 if node.get("logicalType") in ("timestamp-millis", "local-timestamp-millis") else 1
    if name == "int":
        scale = 1  # timestamps are longs

    def read(data: bytes, at: int) -> tuple[int, int]:
        value, at = _varint(data, at)
        if not -(1 << bits - 1) <= value * scale < 1 << bits - 1:
            raise Undecodable(f"{value} is out of the range of {name}")
        return value * scale, at

    return read


def _enum(symbols: list[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        place, at = _varint(data, at)
        if not 0 <= place < len(symbols):
            raise Undecodable(f"{place} is none of the {len(symbols)} symbols of an enum")
        return symbols[place], at

    return read


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if at + size > len(data):
            raise IndexError
        return data[at : at + size], at + size

    return read


def _with_decimal(node: Node, read_bytes: Read) -> Read:
    """The decimal that the bytes of a node are; the bytes themselves where they are none."""
    decimal = decimal_of(node)
    if decimal is None:
        return read_bytes
    precision, scale = decimal
    limit = 10**precision

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        content, at = read_bytes(data, at)
        unscaled = int.from_bytes(content, "big", signed=True)
        if abs(unscaled) >= limit:
            raise Undecodable(f"a decimal has more than {precision} digits")
        # Out of the digits: arithmetic would round to 28 of them.
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -scale)), at

    return read
