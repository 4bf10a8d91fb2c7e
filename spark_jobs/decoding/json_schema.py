"""A JSON value against a schema of Spark. Pure: a schema is what `StructType.jsonValue()` gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final

_INTEGERS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_FLOATS: Final = ("float", "double")
_DECIMAL: Final = re.compile(r"decimal(\(\d+,\s*-?\d+\))?")

Schema = Any
"""A name such as `long`, or a mapping with `type` struct, array or map."""


def unknown_type(schema: Schema) -> str | None:
    """The first type in a schema that no JSON value has; None if there is none."""
    if isinstance(schema, Mapping):
        match schema["type"]:
            case "struct":
                inner = [field["type"] for field in schema["fields"]]
            case "array":
                inner = [schema["elementType"]]
            case "map":
                if schema["keyType"] != "string":
                    return f"map with keys of {schema['keyType']}"
                inner = [schema["valueType"]]
            case other:
                return str(other)
        return next((found for each in inner if (found := unknown_type(each)) is not None), None)
    is_known = schema in _INTEGERS or schema in _SCALARS or _DECIMAL.fullmatch(schema) is not None
    return None if is_known else str(schema)


Fault = tuple[list[str], str]
"""Steps to the place of a fault, the last one first, and the rest of the clause: what is wrong.
They are collected on the way out: of values that fit no path is made, however many there are.
"""


def schema_problem(value: object, schema: Schema) -> str | None:
    """What is wrong with a value, in one clause; None if it fits. Fields that the schema does not
    name are let through.
    """
    found = _fault(value, schema)
    if found is None:
        return None
    steps, why = found
    path = "".join(reversed(steps)).removeprefix(".")
    return f"{path or 'value'} {why}"


def _fault(value: object, schema: Schema) -> Fault | None:
    if isinstance(schema, Mapping):
        match schema["type"]:
            case "struct":
                return _struct_fault(value, schema)
            case "array":
                return _array_fault(value, schema)
        return _map_fault(value, schema)
    if schema in _INTEGERS:
        return _integer_fault(value, schema)
    if schema in _FLOATS and _is_number(value) and not _is_float(value):
        return [], f"is out of the range of {schema}"
    is_valid = _SCALARS.get(schema, _is_number)
    return None if is_valid(value) else _expected(schema, value)


def _struct_fault(value: object, schema: Schema) -> Fault | None:
    if not isinstance(value, dict):
        return _expected("object", value)
    for field in schema["fields"]:
        name = field["name"]
        if value.get(name) is not None:
            found = _fault(value[name], field["type"])
        elif field["nullable"]:
            continue
        else:
            found = ([], "is null" if name in value else "is missing")
        if found is not None:
            found[0].append(f".{name}")
            return found
    return None


def _array_fault(value: object, schema: Schema) -> Fault | None:
    if not isinstance(value, list):
        return _expected("array", value)
    for index, item in enumerate(value):
        found = _part_fault(item, schema["elementType"], is_nullable=schema["containsNull"])
        if found is not None:
            found[0].append(f"[{index}]")
            return found
    return None


def _map_fault(value: object, schema: Schema) -> Fault | None:
    if not isinstance(value, dict):
        return _expected("object", value)
    for key, item in value.items():
        found = _part_fault(item, schema["valueType"], is_nullable=schema["valueContainsNull"])
        if found is not None:
            found[0].append(f"[{key!r}]")
            return found
    return None


def _part_fault(item: object, schema: Schema, *, is_nullable: bool) -> Fault | None:
    """Of an item of an array, or a value of a map."""
    if item is None:
        return None if is_nullable else ([], "is null")
    return _fault(item, schema)


def _integer_fault(value: object, name: str) -> Fault | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return _expected(name, value)
    bound = 1 << _INTEGERS[name] - 1
    return None if -bound <= value < bound else ([], f"is out of the range of {name}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    """Whether a number has a place among the floats: integers of JSON may have any length."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_moment(parse: Callable[[str], object]) -> Callable[[object], bool]:
    def is_valid(value: object) -> bool:
        if not isinstance(value, str):
            return False
        try:
            parse(value)
        except ValueError:
            return False
        return True

    return is_valid


_SCALARS: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "float": _is_number,
    "double": _is_number,
    "date": _is_moment(date.fromisoformat),
    "timestamp": _is_moment(datetime.fromisoformat),
    "timestamp_ntz": _is_moment(datetime.fromisoformat),
}
_JSON_NAMES: Final = {str: "string", bool: "boolean", dict: "object", list: "array"}


def _expected(wanted: str, value: object) -> Fault:
    name = "null" if value is None else _JSON_NAMES.get(type(value), "number")
    return [], f"is {name}, not {wanted}"
