"""Batches of one task: records collected per target partition, with sequences from 0.

A producer epoch is used for one transaction, and one task attempt writes to a partition in it
(`claims`), so the first batch of each partition has sequence 0. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.records import Header, iter_records

from .errors import Failure, TaskFailure
from .grant import Grant

RECORD_OVERHEAD_BYTES: Final = 24
"""Estimate of a record's size besides key, value and headers: length, deltas, counts."""
HEADER_OVERHEAD_BYTES: Final = 4
MAX_SEQUENCE: Final = 0x7FFFFFFF
MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024 - 16 * 1024
"""A broker closes the connection of a longer request (socket.request.max.bytes by default)."""

RecordFields = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""Timestamp in ms, key, value, headers."""


class SealedBatch(NamedTuple):
    """A batch to be sent as it is, however often. data: with header, CRC, sequence."""

    topic_partition: TopicPartition
    base_sequence: int
    record_count: int
    data: bytearray


class _Open:
    """The records of one partition that are in no batch yet, and the sequence of its next batch.
    total_records: those in batches.
    """

    __slots__ = ("base_sequence", "records", "size_bytes", "total_records")

    def __init__(self) -> None:
        self.records: list[RecordFields] = []
        self.size_bytes = 0
        self.base_sequence = 0
        self.total_records = 0


class BatchBuffer:
    """Collects records and gives batches whose size and total are bounded.

    max_batch_bytes by topic, after compression: a batch that is longer is split, down to one
    record, which fails the task.
    """

    def __init__(self, grant: Grant) -> None:
        self._grant = grant
        self._open: dict[TopicPartition, _Open] = {}
        self._batch_bytes = grant.limits.batch_bytes
        self._buffer_bytes = grant.limits.buffer_bytes
        self._size_bytes = 0

    def add(self, topic_partition: TopicPartition, record: RecordFields) -> Sequence[SealedBatch]:
        """Returns the batches to be sent now, oldest first: mostly none. Raises TaskFailure for a
        record that the topic does not take.
        """
        collected = self._open.get(topic_partition)
        if collected is None:
            collected = self._open[topic_partition] = _Open()
        size_bytes = estimate(record)
        sealed: Sequence[SealedBatch] = ()
        if collected.records and collected.size_bytes + size_bytes > self._batch_bytes:
            sealed = self._seal(topic_partition, collected)
        collected.records.append(record)
        collected.size_bytes += size_bytes
        self._size_bytes += size_bytes
        if self._size_bytes > self._buffer_bytes:
            sealed = [*sealed, *self.seal_all()]
        return sealed

    def seal_all(self) -> list[SealedBatch]:
        """Batches of all records that are left."""
        return [
            batch
            for topic_partition, collected in self._open.items()
            if collected.records
            for batch in self._seal(topic_partition, collected)
        ]

    def record_counts(self) -> dict[TopicPartition, int]:
        """Records of sealed batches, by partition."""
        return {partition: collected.total_records for partition, collected in self._open.items()}

    def _seal(self, topic_partition: TopicPartition, collected: _Open) -> list[SealedBatch]:
        records, collected.records = collected.records, []
        self._size_bytes -= collected.size_bytes
        collected.size_bytes = 0
        base_sequence = collected.base_sequence
        collected.base_sequence = (base_sequence + len(records)) & MAX_SEQUENCE
        collected.total_records += len(records)
        return list(self._batches(topic_partition, records, base_sequence))

    def _batches(
        self, topic_partition: TopicPartition, records: Sequence[RecordFields], base_sequence: int
    ) -> Iterator[SealedBatch]:
        grant = self._grant
        data = build_batch(
            records,
            compression=grant.compression,
            producer_id=grant.producer_id,
            producer_epoch=grant.producer_epoch,
            base_sequence=base_sequence,
            is_transactional=True,
        )
        limit = grant.topics[topic_partition.topic].max_message_bytes
        if len(data) <= min(limit or MAX_REQUEST_BYTES, MAX_REQUEST_BYTES):
            yield SealedBatch(topic_partition, base_sequence, len(records), data)
            return
        if len(records) == 1:
            raise record_too_large(topic_partition, records[0], len(data), limit)
        half = len(records) // 2
        yield from self._batches(topic_partition, records[:half], base_sequence)
        following = (base_sequence + half) & MAX_SEQUENCE
        yield from self._batches(topic_partition, records[half:], following)

    def split(self, batch: SealedBatch) -> list[SealedBatch]:
        """Two halves of a batch that the broker refused as too large. Raises TaskFailure for a
        batch of one record.
        """
        records = [
            (record.timestamp, record.key, record.value, record.headers)
            for record in iter_records(batch.data)
        ]
        if len(records) == 1:
            raise record_too_large(batch.topic_partition, records[0], len(batch.data), None)
        half = len(records) // 2
        following = (batch.base_sequence + half) & MAX_SEQUENCE
        return [
            *self._batches(batch.topic_partition, records[:half], batch.base_sequence),
            *self._batches(batch.topic_partition, records[half:], following),
        ]


def estimate(record: RecordFields) -> int:
    """About the bytes that a record takes in a batch."""
    _, key, value, headers = record
    size_bytes = RECORD_OVERHEAD_BYTES
    if key is not None:
        size_bytes += len(key)
    if value is not None:
        size_bytes += len(value)
    for name, content in headers:
        size_bytes += HEADER_OVERHEAD_BYTES + len(name)
        if content is not None:
            size_bytes += len(content)
    return size_bytes


def record_too_large(
    topic_partition: TopicPartition, record: RecordFields, size_bytes: int, limit: int | None
) -> TaskFailure:
    timestamp, key, value, _ = record
    largest = f"max.message.bytes={limit}" if limit is not None else "the topic's max.message.bytes"
    shown = "without a key" if key is None else f"with key {bytes(key[:40])!r}"
    return TaskFailure(
        Failure.FATAL,
        f"a record {shown}, timestamp {timestamp}, value of {len(value or b'')} bytes is a batch "
        f"of {size_bytes} bytes, too large for {topic_partition}: raise {largest} (and "
        "replica.fetch.max.bytes, socket.request.max.bytes above it), or filter such records",
    )
