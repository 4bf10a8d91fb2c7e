"""JSON as values of a schema of Spark: what Arrow takes for its types. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from .errors import Undecodable
from .json_schema import schema_problem
from .types import Schema

_FIRST_DAY: Final = date(1970, 1, 1)
_ORIGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def parse_json(content: bytes) -> object:
    """A JSON value; numbers with a fraction are floats. Raises Undecodable."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(not_utf8(content, error)) from error
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise Undecodable(
            "the value is no JSON that can be read: it is nested too deeply"
        ) from error
    except ValueError as error:
        raise Undecodable(f"the value is no JSON: {error}") from error


def not_utf8(content: bytes, error: UnicodeDecodeError) -> str:
    """For a message."""
    return f"the value is no UTF-8: byte {error.start} is 0x{content[error.start]:02x}"


def _refuse_constant(name: str) -> object:
    """NaN, Infinity and -Infinity, which Python would take."""
    raise ValueError(f"{name} is no number of JSON")


def checked_json(content: bytes, schema: Schema | None) -> object:
    """A JSON value that fits a schema, None for any. Raises Undecodable."""
    value = parse_json(content)
    try:
        problem = None if schema is None else schema_problem(value, schema)
    except RecursionError as error:
        raise Undecodable("the value is nested too deeply") from error
    if problem is not None:
        raise Undecodable(problem)
    return value


def shaped(value: Any, schema: Schema) -> Any:
    """A value that fits the schema, as Arrow takes it. Times without a zone are in UTC. Fields that
    the schema does not name are left out. Raises Undecodable.
    """
    if value is None:
        return None
    if isinstance(schema, Mapping):
        match schema["type"]:
            case "struct":
                fields = schema["fields"]
                return {
                    each["name"]: shaped(value.get(each["name"]), each["type"]) for each in fields
                }
            case "array":
                return [shaped(each, schema["elementType"]) for each in value]
        return [(key, shaped(each, schema["valueType"])) for key, each in value.items()]
    match schema:
        case "date":
            return (date.fromisoformat(value) - _FIRST_DAY).days
        case "timestamp" | "timestamp_ntz":
            return _microseconds(value, has_zone=schema == "timestamp")
        case "float" | "double":
            return float(value)
    return Decimal(str(value)) if schema.startswith("decimal") else value


def _microseconds(text: str, *, has_zone: bool) -> int:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None or not has_zone:
        time = time.replace(tzinfo=UTC)
    try:
        return (time - _ORIGIN) // _MICROSECOND
    except OverflowError as error:
        raise Undecodable(f"{text} is no time that can be stored") from error
