"""A log for tests of the first branch of an append."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.log.append_request import AppendRequest, never_reverify
from kbroker.log.appending import AppendableLog
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import Appended
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import ATTRIBUTES_POSITION, CRC_POSITION
from kbroker.protocol.batches.checksum import crc32c
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=6000, segment_index_bytes=4096, index_interval_bytes=300, max_message_bytes=2500
)


def open_log(folder: Path) -> PartitionLog:
    return PartitionLog.open(folder, TopicPartition("topic", 0), CONFIG, now_ms=NOW_MS)


def append_next(
    log: PartitionLog, batch: bytearray | memoryview, *, transactional: bool = False
) -> int:
    """The base offset of a batch that the first branch appends; -1 if it does not handle the
    batch.
    """
    request = AppendRequest(1, 0, NOW_MS, 12, 0, never_reverify if transactional else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AppendableLog, "_append_any", lambda *_: None)
        outcome: Appended | None = log.append(batch, 0, request)  # type: ignore[assignment]  # patched
    return -1 if outcome is None else outcome.base_offset


def sign(batch: bytearray) -> None:
    """Set the correct CRC."""
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))


def what_is_left(log: PartitionLog, folder: Path) -> dict[str, object]:
    """The complete state of a log and, once it is closed, of its files."""
    left: dict[str, object] = {
        "end": log.log_end_offset,
        "start": log.log_start_offset,
        "unflushed": log.first_unflushed_ms,
        "unstable": log.first_unstable_offset,
        "map end": log.producers.map_end_offset,
        "producers": {
            state.producer_id: [getattr(state, name) for name in state.__slots__]
            for state in log.producers.active_producers.values()
        },
        "segments": [
            (
                segment.base_offset,
                segment.size,
                segment.bytes_since_index_entry,
                segment.max_timestamp,
                segment.first_timestamp,
                segment.offset_index.entries(),
                segment.time_index.entries(),
            )
            for segment in log.segments
        ],
    }
    log.close()
    for path in sorted(folder.iterdir()):
        left[path.name] = path.read_bytes()
    return left


def claiming(batch: bytearray, count: int) -> bytearray:
    """The batch with another record count and the matching last offset delta."""
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    sign(batch)
    return batch
