"""A message of the protocol as JSON, under Kafka's field names in snake_case."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kbroker.model import uuid_to_string
from kbroker.protocol.schema import Struct


def message_json(message: Struct | None) -> str:
    """One line: the name of the message and its fields. Bytes are hexadecimal, uuids as Kafka's."""
    if message is None:
        return "null"
    return json.dumps({"type": type(message).__name__, "data": _fields(message)})


def _fields(message: Struct) -> Mapping[str, object]:
    shown: dict[str, object] = {}
    for field in message.FIELDS:
        kind = field.element if field.type_name == "array" else field.type_name
        shown[field.name] = _value(getattr(message, field.name), kind == "uuid")
    return shown


def _value(value: object, is_uuid: bool) -> object:
    match value:
        case Struct():
            return _fields(value)
        case list():
            return [_value(item, is_uuid) for item in value]
        case bytes() | bytearray() | memoryview():
            return uuid_to_string(bytes(value)) if is_uuid else bytes(value).hex()
    return value
