"""Metadata records as bytes: frame version, record type and record version as unsigned varints,
then the body.

A record is written in the version for the finalized metadata.version where Kafka defines one, and
otherwise in the lowest version that has its fields, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.model import InvariantError
from kbroker.protocol.codecs import codec
from kbroker.protocol.codecs.schema import Message, MetadataRecord
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.messages.stored import metadata_records

FRAME_VERSION: Final = 1

RECORD_CLASSES: Final[Mapping[int, type[MetadataRecord]]] = {
    value.API_KEY: value
    for value in vars(metadata_records).values()
    if isinstance(value, type) and issubclass(value, MetadataRecord) and value is not MetadataRecord
}
"""By record type."""

_VERSION_STEPS: Final[Mapping[type[Message], tuple[tuple[int, int], ...]]] = {
    metadata_records.RegisterBrokerRecord: ((30, 4), (17, 3), (8, 2), (0, 1)),
    metadata_records.PartitionRecord: ((23, 2), (17, 1), (0, 0)),
    metadata_records.PartitionChangeRecord: ((23, 2), (17, 1), (0, 0)),
}
"""(lowest metadata.version, record version), highest first."""

DIRECTORIES_VERSION: Final = 2
"""The fields of a change of a broker's log directories; if no directory is left, no other field
shows what it is.
"""


def record_version(record: Message, metadata_version: int) -> int:
    """The version Kafka writes this record in at that metadata.version."""
    steps = _VERSION_STEPS.get(type(record))
    if steps is not None:
        return next(version for level, version in steps if metadata_version >= level)
    if isinstance(record, metadata_records.BrokerRegistrationChangeRecord) and record == (
        type(record)(broker_id=record.broker_id, broker_epoch=record.broker_epoch)
    ):
        return DIRECTORIES_VERSION
    if record.VERSIONS.high == record.VERSIONS.low:
        return record.VERSIONS.low
    needed = record.VERSIONS.low
    for field in record.FIELDS:
        if field.versions.low > needed and getattr(record, field.name) != field.default_value():
            needed = field.versions.low
    return needed


def encode_record(record: Message, metadata_version: int) -> bytes:
    """One framed record."""
    version = record_version(record, metadata_version)
    return bytes((FRAME_VERSION, record.API_KEY, version)) + codec.encode(record, version)


def decode_record(data: bytes) -> MetadataRecord:
    """The record in those bytes. Raises InvariantError for bytes that are no record, or an unknown
    version.
    """
    return decode_versioned(data)[0]


def decode_versioned(data: bytes) -> tuple[MetadataRecord, int]:
    """As `decode_record`, with the version of the record."""
    frame_version, position = _read_varint(data, 0)
    record_type, position = _read_varint(data, position)
    version, position = _read_varint(data, position)
    if frame_version != FRAME_VERSION:
        raise InvariantError(
            f"a metadata record of frame version {frame_version}, expected {FRAME_VERSION}"
        )
    record_class = RECORD_CLASSES.get(record_type)
    if record_class is None or version not in record_class.VERSIONS:
        raise InvariantError(
            f"a metadata record of type {record_type}, version {version}: "
            "written by a newer Kafka than 4.3"
        )
    try:
        record, end = codec.decode(record_class, data, version, position)
    except MalformedRequest as error:
        raise InvariantError(
            f"a {record_class.__name__} that cannot be decoded: {error}"
        ) from error
    if end != len(data):
        raise InvariantError(f"{len(data) - end} bytes too many behind a {record_class.__name__}")
    return record, version


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvariantError("a metadata record that ends inside its frame")
