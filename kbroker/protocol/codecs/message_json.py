"""Converts a message to the JSON of Kafka's own converters: camelCase names in the order of the
declaration, the fields of one version, tagged fields only where they differ from their default,
bytes in base64, uuids as Kafka prints them.
"""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any

from kbroker.model import uuid_to_string
from kbroker.protocol.codecs.schema import Field, Message, Struct


def to_json(message: Message, version: int) -> dict[str, object]:
    """The message as values for `json_text`, like Kafka's `<Message>JsonConverter.write`."""
    return _struct(message, version)


def json_text(value: object) -> str:
    """One line without blanks; text outside ASCII is not escaped, numbers have Java's format."""
    match value:
        case dict():
            items = (f"{json_text(key)}:{json_text(item)}" for key, item in value.items())
            return "{" + ",".join(items) + "}"
        case list():
            return "[" + ",".join(map(json_text, value)) + "]"
        case float() if math.isfinite(value):
            return _java_double(value)
    return json.dumps(value, ensure_ascii=False)


def _java_double(value: float) -> str:
    """As Double.toString: 9.9E8 from ten million on and below a thousandth."""
    if not value or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *others = map(str, digits)
    mantissa = f"{first}.{''.join(others) or '0'}"
    return f"{'-' * sign}{mantissa}E{exponent + len(digits) - 1}"


def _struct(struct: Struct, version: int) -> dict[str, object]:
    shown: dict[str, object] = {}
    for field in struct.FIELDS:
        if version not in field.versions:
            continue
        value = getattr(struct, field.name)
        if version in field.tagged and value == field.default_value():
            continue
        shown[camel_case(field.name)] = _value(value, field, version)
    return shown


def _value(value: Any, field: Field, version: int) -> object:
    if isinstance(value, list):
        return [_single(item, field.element, version) for item in value]
    return _single(value, field.type_name, version)


def _single(value: Any, type_name: str, version: int) -> object:
    match value:
        case Struct():
            return _struct(value, version)
        case bytes() | bytearray() | memoryview():
            if type_name == "uuid":
                return uuid_to_string(bytes(value))
            return base64.b64encode(value).decode()
    return value


def camel_case(name: str) -> str:
    """Kafka's name of a field: `leader_epoch` is `leaderEpoch`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
