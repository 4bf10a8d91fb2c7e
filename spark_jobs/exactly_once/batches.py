"""Batches of one task: records collected per target partition, with sequences from 0.

A producer epoch is used for one transaction, and one task attempt writes to a partition in it
(`claims`), so the first batch of each partition has sequence 0. No I/O here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.batch_builder import replace_records
from kbroker.protocol.batches.batch_header import MAGIC, TRANSACTIONAL_FLAG, BatchHeader
from kbroker.protocol.batches.records import iter_records

from .blocks import (
    block_of,
    compacted,
    encode_block,
    first_record,
    joined_blocks,
    sizes,
)
from .grant import Grant
from .records import MAX_SEQUENCE, record_too_large

if TYPE_CHECKING:
    import pyarrow as pa

MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024 - 16 * 1024
"""A broker closes the connection of a longer request (socket.request.max.bytes by default)."""


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

    __slots__ = ("base_sequence", "blocks", "size_bytes", "total_records")

    def __init__(self) -> None:
        self.blocks: list[pa.RecordBatch] = []
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

    def add(self, topic_partition: TopicPartition, block: pa.RecordBatch) -> list[SealedBatch]:
        """Take the records of a block (`blocks`). Returns the batches to be sent now, oldest first:
        mostly none for a few records. Raises TaskFailure for a record that the topic does not take.
        """
        collected = self._open.get(topic_partition)
        if collected is None:
            collected = self._open[topic_partition] = _Open()
        sealed: list[SealedBatch] = []
        ends = sizes(block)
        start, taken_bytes = 0, 0
        while start < len(ends):
            room = taken_bytes + self._batch_bytes - collected.size_bytes
            end = bisect_right(ends, room, start)
            if end == start and collected.blocks:
                sealed += self._seal(topic_partition, collected)
                continue
            end = max(end, start + 1)
            size_bytes, taken_bytes = ends[end - 1] - taken_bytes, ends[end - 1]
            piece = block.slice(start, end - start)
            is_left_open = end == len(ends)
            collected.blocks.append(compacted(piece) if is_left_open else piece)
            collected.size_bytes += size_bytes
            self._size_bytes += size_bytes
            start = end
            if self._size_bytes > self._buffer_bytes:
                sealed += self.seal_all()
        return sealed

    def seal_all(self) -> list[SealedBatch]:
        """Batches of all records that are left."""
        return [
            batch
            for topic_partition, collected in self._open.items()
            if collected.blocks
            for batch in self._seal(topic_partition, collected)
        ]

    def record_counts(self) -> dict[TopicPartition, int]:
        """Records of sealed batches, by partition."""
        return {partition: collected.total_records for partition, collected in self._open.items()}

    def _seal(self, topic_partition: TopicPartition, collected: _Open) -> list[SealedBatch]:
        block, collected.blocks = joined_blocks(collected.blocks), []
        self._size_bytes -= collected.size_bytes
        collected.size_bytes = 0
        base_sequence = collected.base_sequence
        collected.base_sequence = (base_sequence + block.num_rows) & MAX_SEQUENCE
        collected.total_records += block.num_rows
        return list(self._batches(topic_partition, block, base_sequence))

    def _batches(
        self, topic_partition: TopicPartition, block: pa.RecordBatch, base_sequence: int
    ) -> Iterator[SealedBatch]:
        data = self._batch(block, base_sequence)
        limit = self._grant.topics[topic_partition.topic].max_message_bytes
        if len(data) <= min(limit or MAX_REQUEST_BYTES, MAX_REQUEST_BYTES):
            yield SealedBatch(topic_partition, base_sequence, block.num_rows, data)
            return
        if block.num_rows == 1:
            raise record_too_large(topic_partition, first_record(block), len(data), limit)
        half = block.num_rows // 2
        yield from self._batches(topic_partition, block.slice(0, half), base_sequence)
        following = (base_sequence + half) & MAX_SEQUENCE
        yield from self._batches(topic_partition, block.slice(half), following)

    def _batch(self, block: pa.RecordBatch, base_sequence: int) -> bytearray:
        grant, encoded = self._grant, encode_block(block)
        header = BatchHeader(
            base_offset=0,
            batch_length=0,  # that of the records that follow
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=grant.compression | TRANSACTIONAL_FLAG,
            last_offset_delta=block.num_rows - 1,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            producer_id=grant.producer_id,
            producer_epoch=grant.producer_epoch,
            base_sequence=base_sequence,
            record_count=block.num_rows,
        )
        return replace_records(
            header,
            memoryview(encoded.body),
            record_count=block.num_rows,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            delete_horizon=False,
        )

    def split(self, batch: SealedBatch) -> list[SealedBatch]:
        """Two halves of a batch that the broker refused as too large. Raises TaskFailure for a
        batch of one record.
        """
        block = block_of(
            [
                (record.timestamp, record.key, record.value, record.headers)
                for record in iter_records(batch.data)
            ]
        )
        if block.num_rows == 1:
            raise record_too_large(
                batch.topic_partition, first_record(block), len(batch.data), None
            )
        half = block.num_rows // 2
        following = (batch.base_sequence + half) & MAX_SEQUENCE
        return [
            *self._batches(batch.topic_partition, block.slice(0, half), batch.base_sequence),
            *self._batches(batch.topic_partition, block.slice(half), following),
        ]
