"""Avro's types as Spark has them (those of its `from_avro`). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from .avro import Node, decimal_of, union_members
from .errors import SchemaProblem
from .types import Schema, array, string_map, struct

_SIMPLE: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "float": "float",
    "double": "double",
    "string": "string",
    "enum": "string",
}
_LOGICAL: Final[Mapping[tuple[str, str], str]] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}


MAX_TYPES: Final = 10_000
"""Of a schema: a type that has another twice, which has a third twice, and so on, is soon too
large.
"""
MAX_DEPTH: Final = 100
"""Of types in each other. More would exhaust Python's stack: here, in a reader of the values, or
only in a task, whose stack has more on it. Readers of Parquet have such limits too.
"""


def spark_type(node: Node) -> Schema:
    """A union of null and one type is that type; of several types, a struct with a field for each,
    `member0` and so on. Raises SchemaProblem for a type that Spark has not: one that has itself
    as a part, or nulls only, and for types that are nested too deeply.
    """
    return _type(node, (), iter(range(MAX_TYPES)), 0)


def _type(node: Node, within: tuple[str, ...], left: Iterator[int], depth: int) -> Schema:
    """left: has an element for each type that may come yet. depth: of types around this one."""
    if depth > MAX_DEPTH:
        raise SchemaProblem(f"the schema has more than {MAX_DEPTH} types in each other")
    if next(left, None) is None:
        raise SchemaProblem(f"the schema has more than {MAX_TYPES} types")
    if isinstance(node, list):
        places, _ = union_members(node)
        kinds = [_type(node[place], within, left, depth + 1) for place in places]
        if len(kinds) == 1:
            return kinds[0]
        if not kinds:
            raise SchemaProblem("a union has no type but null")
        return struct([(f"member{number}", kind) for number, kind in enumerate(kinds)])
    kind = node["type"]
    match kind:
        case "record":
            name = node["name"]
            if name in within:
                raise SchemaProblem(f"{name} has itself as a part, which Spark has no type for")
            if not node["fields"]:
                raise SchemaProblem(f"{name} has no fields")
            inner = (*within, name)
            return struct(
                [
                    (each["name"], _type(each["type"], inner, left, depth + 1))
                    for each in node["fields"]
                ]
            )
        case "array":
            return array(_type(node["items"], within, left, depth + 1))
        case "map":
            return string_map(_type(node["values"], within, left, depth + 1))
        case "bytes" | "fixed":
            decimal = decimal_of(node)
            return "binary" if decimal is None else "decimal({},{})".format(*decimal)
        case "int" | "long":
            plain = "integer" if kind == "int" else "long"
            return _LOGICAL.get((kind, str(node.get("logicalType"))), plain)
        case "null":
            raise SchemaProblem("a field is always null")
    return _SIMPLE[kind]
