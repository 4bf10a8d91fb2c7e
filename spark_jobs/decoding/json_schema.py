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


def schema_problem(value: object, schema: Schema, path: str = "") -> str | None:
    """What is wrong with a value, in one clause; None if it fits. Fields that the schema does not
    name are let through. path: where the value is, for the clause.
    """
    if isinstance(schema, Mapping):
        match schema["type"]:
            case "struct":
                return _struct_problem(value, schema, path)
            case "array":
                return _array_problem(value, schema, path)
        return _map_problem(value, schema, path)
    if schema in _INTEGERS:
        return _integer_problem(value, schema, path)
    if schema in _FLOATS and _is_number(value) and not _is_float(value):
        return f"{path or 'value'} is out of the range of {schema}"
    is_valid = _SCALARS.get(schema, _is_number)
    return None if is_valid(value) else _expected(schema, value, path)


def _struct_problem(value: object, schema: Schema, path: str) -> str | None:
    if not isinstance(value, dict):
        return _expected("object", value, path)
    for field in schema["fields"]:
        name = field["name"]
        where = f"{path}.{name}" if path else name
        if value.get(name) is None:
            if not field["nullable"]:
                return f"{where} is missing" if name not in value else f"{where} is null"
            continue
        found = schema_problem(value[name], field["type"], where)
        if found is not None:
            return found
    return None


def _array_problem(value: object, schema: Schema, path: str) -> str | None:
    if not isinstance(value, list):
        return _expected("array", value, path)
    for index, item in enumerate(value):
        where = f"{path}[{index}]"
        if item is None:
            if not schema["containsNull"]:
                return f"{where} is null"
            continue
        found = schema_problem(item, schema["elementType"], where)
        if found is not None:
            return found
    return None


def _map_problem(value: object, schema: Schema, path: str) -> str | None:
    if not isinstance(value, dict):
        return _expected("object", value, path)
    for key, item in value.items():
        where = f"{path}[{key!r}]"
        if item is None:
            if not schema["valueContainsNull"]:
                return f"{where} is null"
            continue
        found = schema_problem(item, schema["valueType"], where)
        if found is not None:
            return found
    return None


def _integer_problem(value: object, name: str, path: str) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return _expected(name, value, path)
    bound = 1 << _INTEGERS[name] - 1
    if not -bound <= value < bound:
        return f"{path or 'value'} is out of the range of {name}"
    return None


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


def _expected(wanted: str, value: object, path: str) -> str:
    name = "null" if value is None else _JSON_NAMES.get(type(value), "number")
    return f"{path or 'value'} is {name}, not {wanted}"
