"""The records in the log of a replica, with the outcome of their transactions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import iter_records


class Fate(Enum):
    """Whether a record is visible to a read_committed reader."""

    COMMITTED = "committed"
    """Also for a record outside of any transaction."""
    ABORTED = "aborted"
    OPEN = "open"
    """Its transaction has no marker yet."""


@dataclass(slots=True)
class StoredRecord:
    """A data record."""

    offset: int
    value: bytes
    fate: Fate


def stored_records(log: bytes, high_watermark: int) -> list[StoredRecord]:
    """The records below the high watermark, by offset. log: whole batches, possibly followed by an
    incomplete one. Raises KafkaError for bytes that are no batches.
    """
    found: list[StoredRecord] = []
    open_records: dict[int, list[StoredRecord]] = {}
    for position, header in iter_batches(log, partial_ok=True):
        if header.next_offset > high_watermark:
            break
        batch = memoryview(log)[position : position + header.size_bytes]
        if header.is_control:
            marker = control_type(next(iter_records(batch, header)))
            fate = Fate.COMMITTED if marker is ControlType.COMMIT else Fate.ABORTED
            for record in open_records.pop(header.producer_id, ()):
                record.fate = fate
            continue
        fate = Fate.OPEN if header.is_transactional else Fate.COMMITTED
        records = [
            StoredRecord(record.offset, record.value or b"", fate)
            for record in iter_records(batch, header)
        ]
        found += records
        if header.is_transactional:
            open_records.setdefault(header.producer_id, []).extend(records)
    return found
