"""Schemas of Spark, as `StructType.jsonValue()` gives them: as types of Arrow, and how the schema
of a table grows with its values. Pure but for Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .errors import SchemaProblem

if TYPE_CHECKING:
    import pyarrow as pa

Schema = Any
"""A name such as `long`, or a mapping with `type` struct, array or map."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_WIDER: Final[Mapping[str, tuple[str, ...]]] = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": (),
    "float": ("double",),
}
"""Types that hold every value of another. Avro lets a long be read as a double, which loses
digits.
"""


def struct(fields: list[tuple[str, Schema]]) -> Schema:
    """A struct whose fields may be null."""
    return {"type": "struct", "fields": [field(name, kind) for name, kind in fields]}


def field(name: str, kind: Schema) -> dict[str, object]:
    """Of a struct."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def array(element: Schema) -> Schema:
    """Of elements that may be null."""
    return {"type": "array", "elementType": element, "containsNull": True}


def string_map(value: Schema) -> Schema:
    """From strings to values that may be null."""
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


def arrow_type(schema: Schema) -> pa.DataType:
    """Raises SchemaProblem for a type that Parquet has not."""
    import pyarrow as pa

    if isinstance(schema, Mapping):
        match schema["type"]:
            case "struct":
                if not schema["fields"]:
                    raise SchemaProblem("a struct without fields cannot be stored")
                fields = [(each["name"], arrow_type(each["type"])) for each in schema["fields"]]
                return pa.struct(fields)
            case "array":
                return pa.list_(arrow_type(schema["elementType"]))
            case "map":
                return pa.map_(arrow_type(schema["keyType"]), arrow_type(schema["valueType"]))
    known: dict[str, pa.DataType] = {
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    decimal = _DECIMAL.fullmatch(str(schema))
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if schema not in known:
        raise SchemaProblem(f"there is no type {schema}")
    return known[schema]


def merged(table: Schema, found: Schema, path: str = "value") -> Schema:
    """The schema of a table that gets values of the schema `found` too: its columns stay, and new
    ones come behind them. Raises SchemaProblem where a column would have to change.
    """
    if not isinstance(table, Mapping) or not isinstance(found, Mapping):
        if table == found or (isinstance(table, str) and table in _WIDER.get(str(found), ())):
            return table
        raise SchemaProblem(f"{path} is {shown(found)}, and {shown(table)} in the table")
    if table["type"] != found["type"]:
        raise SchemaProblem(f"{path} is {shown(found)}, and {shown(table)} in the table")
    match table["type"]:
        case "struct":
            return _merged_structs(table, found, path)
        case "array":
            element = merged(table["elementType"], found["elementType"], f"{path}[]")
            return {**table, "elementType": element}
    if table["keyType"] != found["keyType"]:
        raise SchemaProblem(f"{path} has keys of {found['keyType']}, not {table['keyType']}")
    return {**table, "valueType": merged(table["valueType"], found["valueType"], f"{path}{{}}")}


def _merged_structs(table: Schema, found: Schema, path: str) -> Schema:
    new = {each["name"]: each for each in found["fields"]}
    fields = []
    for known in table["fields"]:
        name = known["name"]
        if name in new:
            kind = merged(known["type"], new.pop(name)["type"], f"{path}.{name}")
            known = {**known, "type": kind}
        fields.append(known)
    names = {each["name"].lower(): each["name"] for each in table["fields"]}
    for name in new:
        before = names.setdefault(name.lower(), name)
        if before != name:  # readers take them for one column
            raise SchemaProblem(f"{path} has {name}, which differs from {before} only by its case")
    return {**table, "fields": [*fields, *new.values()]}


def shown(schema: Schema) -> str:
    """For a message."""
    return str(schema["type"] if isinstance(schema, Mapping) else schema)
