"""A partition of the scripted cluster: it checks producer ids, epochs and sequences as Kafka does,
and knows what a reader of committed records sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.control_records import (
    build_end_transaction_marker,
)
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import ErrorCode
from tests.batch_offsets import assign_offsets

MARKER_EPOCH = 0


@dataclass
class ProducerState:
    """Of one producer id in one partition. sequences: of the last five batches."""

    epoch: int
    sequences: list[tuple[int, int, int]] = field(default_factory=list)
    open_since: int | None = None


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int


class PartitionLog:
    """Batches of a partition, with the checks that its leader makes."""

    def __init__(self) -> None:
        self.batches: list[bytearray] = []
        self.producers: dict[int, ProducerState] = {}
        self.aborted: list[Aborted] = []
        self.start = 0
        self.end = 0

    def append(self, data: bytes, max_bytes: int) -> tuple[ErrorCode, int]:
        """(error, base offset)."""
        if len(data) > max_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        header = read_batch_header(data)
        if not header.has_producer_id:
            return ErrorCode.NONE, self._store(data)
        state = self.producers.get(header.producer_id)
        span = (header.base_sequence, header.last_sequence)
        if state is not None and header.producer_epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if state is None or header.producer_epoch > state.epoch:
            if header.base_sequence != 0 and state is not None:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            since = None if state is None else state.open_since
            state = self.producers[header.producer_id] = ProducerState(
                header.producer_epoch, open_since=since
            )
        for first, last, offset in state.sequences:
            if (first, last) == span:
                return ErrorCode.NONE, offset
        expected = state.sequences[-1][1] + 1 if state.sequences else 0
        if header.base_sequence != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if header.is_transactional and state.open_since is None:
            state.open_since = self.end
        offset = self._store(data)
        state.sequences = [*state.sequences[-4:], (*span, offset)]
        return ErrorCode.NONE, offset

    def mark(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Append the marker that ends a transaction."""
        state = self.producers.setdefault(producer_id, ProducerState(epoch))
        if epoch > state.epoch:
            state.epoch, state.sequences = epoch, []
        since, state.open_since = state.open_since, None
        marker = build_end_transaction_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=MARKER_EPOCH,
            timestamp_ms=0,
        )
        offset = self._store(marker)
        if since is not None and not commit:
            self.aborted.append(Aborted(producer_id, since, offset))

    def _store(self, data: bytes) -> int:
        batch = bytearray(data)
        offset = self.end
        self.end = assign_offsets(batch, offset, 0)
        self.batches.append(batch)
        return offset

    @property
    def last_stable_offset(self) -> int:
        opened = [s.open_since for s in self.producers.values() if s.open_since is not None]
        return min(opened, default=self.end)

    def read(self, start: int, *, committed: bool) -> tuple[bytes, list[Aborted]]:
        """Whole batches from the one that has start, and aborted transactions in their range."""
        limit = self.last_stable_offset if committed else self.end
        found = bytearray()
        for batch in self.batches:
            header = read_batch_header(batch)
            if header.last_offset >= start and header.base_offset < limit:
                found += batch
        aborted = [entry for entry in self.aborted if entry.marker_offset >= start]
        return bytes(found), aborted if committed else []

    def committed_records(self) -> list[Record]:
        """The records that a reader with read_committed sees."""
        return [record for pid, record in self._records() if self._is_visible(pid, record)]

    def all_records(self) -> list[Record]:
        return [record for _, record in self._records()]

    def _records(self) -> list[tuple[int, Record]]:
        return [
            (header.producer_id, record)
            for batch in self.batches
            if not (header := read_batch_header(batch)).is_control
            for record in iter_records(batch, header)
        ]

    def _is_visible(self, producer_id: int, record: Record) -> bool:
        if record.offset >= self.last_stable_offset:
            return False
        return not any(
            entry.producer_id == producer_id
            and entry.first_offset <= record.offset < entry.marker_offset
            for entry in self.aborted
        )
