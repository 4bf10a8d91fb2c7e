"""Control records: the type in their keys, and the markers that end transactions. KIP-98, KIP-595.

A control record's key is int16 version, int16 type. The value of a marker is int16 version, int32
coordinator epoch; the values of the metadata log's control records are
messages/stored/control_records.py.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.records import Record, invalid_record

_CONTROL_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class ControlType(IntEnum):
    """The type of a control record."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def control_key(control_type: ControlType) -> bytes:
    """The key of a control record, in version 0."""
    return _CONTROL_KEY.pack(0, control_type)


def build_end_transaction_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a transaction in one partition. Source: KIP-98."""
    control_type = ControlType.COMMIT if commit else ControlType.ABORT
    key = control_key(control_type)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def control_type(record: Record) -> ControlType:
    """The type of a control record; UNKNOWN for types of later releases. Raises
    KafkaError(INVALID_RECORD).
    """
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise invalid_record("a control record needs a key of at least 4 bytes")
    version, number = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise invalid_record(f"control record key of version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def marker_coordinator_epoch(record: Record) -> int:
    """The coordinator epoch in an abort or commit record. Raises KafkaError(INVALID_RECORD)."""
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise invalid_record("an end-of-transaction marker needs a value of at least 6 bytes")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise invalid_record(f"end-of-transaction marker of version {version}")
    return int(coordinator_epoch)
