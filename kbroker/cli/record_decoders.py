"""Keys and values of the internal topics as text, the way Kafka's dump tool shows them under its
decoder options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from kbroker.metadata.records import decode_versioned
from kbroker.model import InvariantError
from kbroker.protocol.batches.records import Record
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.message_json import json_text, to_json
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue, Message
from kbroker.protocol.errors import KafkaError, MalformedRequest
from kbroker.protocol.messages.coordinators import consumer_protocol
from kbroker.protocol.messages.stored import (
    group_records,
    share_group_records,
    share_records,
    streams_group_records,
    transaction_records,
)

if TYPE_CHECKING:
    from kbroker.log.tools.dump import RecordText

_BROKEN: Final = (KafkaError, MalformedRequest, InvariantError)
_VERSION_BYTES: Final = 2
_CONSUMER_PROTOCOL: Final[Mapping[str, type[Message]]] = {
    "subscription": consumer_protocol.ConsumerProtocolSubscription,
    "assignment": consumer_protocol.ConsumerProtocolAssignment,
}


def metadata_text(record: Record) -> str:
    """A record of `__cluster_metadata`; it has no key."""
    try:
        message, version = decode_versioned(bytes(record.value or b""))
    except _BROKEN as error:
        return f" payload: Error at {record.offset}, skipping. {_reason(error)}"
    name = re.sub("(?<!^)(?=[A-Z])", "_", type(message).__name__).upper()
    shown = {"type": name, "version": version, "data": to_json(message, version)}
    return " payload: " + json_text(shown)


def _coordinator_text(*modules: ModuleType) -> RecordText:
    """The decoder of an internal topic whose keys and values are declared in these modules."""
    keys = _by_type(CoordinatorKey, modules)
    values = _by_type(CoordinatorValue, modules)

    def text(record: Record) -> str:
        key, value = bytes(record.key or b""), record.value
        record_type = _int16(key)
        if record_type not in keys:
            return f" key: Unknown record type {record_type} at offset {record.offset}, skipping."
        try:
            key_message = _whole(keys[record_type], key, 0)
            shown = {"type": str(record_type), "data": to_json(key_message, 0)}
            line = f" key: {json_text(shown)} payload: "
            if value is None:
                return line + "<DELETE>"
            version = _int16(bytes(value))
            message = _whole(values[record_type], bytes(value), version)
        except _BROKEN as error:
            return f" key: Error at offset {record.offset}, skipping. {_reason(error)}"
        return line + json_text({"version": str(version), "data": _value_json(message, version)})

    return text


def _by_type(kind: type[Message], modules: tuple[ModuleType, ...]) -> Mapping[int, type[Message]]:
    return {
        value.API_KEY: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kind) and value is not kind
    }


def _int16(data: bytes) -> int:
    return int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)


def _whole(kind: type[Message], data: bytes, version: int) -> Message:
    if len(data) < _VERSION_BYTES or version not in kind.VERSIONS:
        raise MalformedRequest(f"{kind.__name__} of version {version}, {len(data)} bytes")
    message, end = decode(kind, data, version, _VERSION_BYTES)
    if end != len(data):
        raise MalformedRequest(f"{len(data) - end} bytes too many behind a {kind.__name__}")
    return message


def _value_json(message: Message, version: int) -> dict[str, Any]:
    shown: dict[str, Any] = to_json(message, version)
    if isinstance(message, group_records.GroupMetadataValue) and (
        message.protocol_type == "consumer"
    ):
        for member, of_member in zip(message.members, shown["members"], strict=True):
            _unfold(of_member, "subscription", member.subscription)
            _unfold(of_member, "assignment", member.assignment)
    return shown


def _unfold(shown: dict[str, Any], name: str, data: bytes | bytearray | memoryview) -> None:
    """Shows what a consumer wrote in a field instead of its bytes, where it can be read."""
    kind = _CONSUMER_PROTOCOL[name]
    version = _int16(bytes(data))
    if len(data) < _VERSION_BYTES or version not in kind.VERSIONS:
        return
    try:
        message, _ = decode(kind, bytes(data), version, _VERSION_BYTES)
    except (KafkaError, MalformedRequest):
        return
    shown[name] = to_json(message, version)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


offsets_text: Final = _coordinator_text(group_records, share_group_records, streams_group_records)
"""`__consumer_offsets`: committed offsets and all kinds of groups."""
transactions_text: Final = _coordinator_text(transaction_records)
"""`__transaction_state`."""
share_state_text: Final = _coordinator_text(share_records)
"""`__share_group_state`."""
