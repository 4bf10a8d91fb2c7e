"""A partition log of small segments, filled as a leader's; the fixture `open_log` opens it."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.log.directories.directory import remove_all
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import FileSlice
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=2000, segment_index_bytes=4096, index_interval_bytes=100)
OpenLog = Callable[..., PartitionLog]


def batch_of(
    count: int = 1, *, timestamp: int = NOW_MS, size: int = 20, **options: object
) -> bytearray:
    records = [(timestamp + index, b"key", bytes(size), []) for index in range(count)]
    return build_batch(records, **options)  # type: ignore[arg-type]  # the keywords of build_batch


def append(
    log: PartitionLog, count: int = 1, *, epoch: int = 0, now_ms: int = NOW_MS, **options: object
) -> int:
    """Append one batch; returns its base offset."""
    batch = batch_of(count, **options)  # type: ignore[arg-type]  # as above
    return append_as_leader(log, batch, leader_epoch=epoch, now_ms=now_ms).base_offset


def delete_due_files(segments: Segments, now_ms: int) -> int:
    """Delete the files that are due. Returns how many."""
    due = segments.take_due_files(now_ms)
    remove_all(due)
    return len(due)


def data_of(records: FileSlice | bytes) -> bytes:
    return records if isinstance(records, bytes) else records.read()


def offsets_of(records: FileSlice | bytes) -> list[int]:
    data = data_of(records)
    return [
        record.offset
        for position, header in iter_batches(data)
        for record in iter_records(data[position : position + header.size_bytes], header)
    ]
