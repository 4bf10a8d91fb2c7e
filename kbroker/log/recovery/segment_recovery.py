"""Recovery of one segment: each batch is checked; the indexes and the producer snapshot are rebuilt
from the log.

Neighbour: `recovery` decides which segments are recovered.
"""

from __future__ import annotations

import logging
from collections import deque
from copy import copy
from typing import Final

from kbroker.log.producer.markers import marker_of
from kbroker.log.producer.producer_state import (
    REMEMBERED_BATCHES,
    ProducerStateManager,
)
from kbroker.log.producer.replay import end_transaction, replay_producer
from kbroker.log.state.log_state import LogState
from kbroker.log.state.producers import rebuild_producers, take_snapshot
from kbroker.log.state.truncation import remove_segments
from kbroker.log.storage.batch_reader import READ_CHUNK_BYTES
from kbroker.log.storage.files import (
    LogFile,
)
from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET
from kbroker.log.storage.indexed_segment import NO_TIMESTAMP
from kbroker.log.storage.segment import Segment
from kbroker.protocol.batches.any_magic import check_any_crc, read_any_header
from kbroker.protocol.batches.batch_header import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL_FLAG,
    HEADER,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

NOT_PLAIN: Final = TRANSACTIONAL_FLAG | CONTROL_FLAG


class IndexRebuild:
    """The indexes of a segment under recovery, rebuilt batch by batch with the entries that appends
    would have added.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_interval_bytes",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_segment",
    )

    def __init__(self, segment: Segment) -> None:
        segment.begin_recovery()
        self._segment = segment
        self._interval_bytes = segment.index_interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = segment.base_offset

    def batch(self, header: BatchHeader, position: int) -> None:
        """Add a valid batch at position."""
        segment = self._segment
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            segment.offset_index.append(last_offset, position)
            segment.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + LENGTH_OVERHEAD

    def run(
        self,
        data: memoryview,
        at: int,
        position: int,
        next_offset: int,
        leader_epoch: int | None,
        last_of_producers: dict[int, deque[tuple[int, ...]]],
    ) -> tuple[int, int]:
        """Check and add consecutive plain batches: without a marker, a transaction or a new leader
        epoch. Nearly all batches are plain.

        data: bytes of the file from position on; `at` is where the first batch begins in data.
        Stops before the first batch that is not plain, is invalid, or is incomplete in data.
        Returns (the position of that batch in data, next offset). last_of_producers: receives the
        headers of each producer's last batches. One loop without calls, since it runs once per
        recovered batch.
        """
        unpack, size_of_header = HEADER.unpack_from, BATCH_OVERHEAD
        crc_position, interval = ATTRIBUTES_POSITION, self._interval_bytes
        since = self._bytes_since_entry
        max_timestamp, max_timestamp_offset = self._max_timestamp, self._max_timestamp_offset
        segment = self._segment
        highest = segment.base_offset + MAX_RELATIVE_OFFSET
        end = len(data)
        while end - at >= size_of_header:
            header = unpack(data, at)
            base_offset, length, epoch, magic, crc, attributes, delta, _, timestamp, producer = (
                header[:10]
            )
            following = at + length + LENGTH_OVERHEAD
            last_offset = base_offset + delta
            if (
                magic != MAGIC
                or attributes & NOT_PLAIN
                or epoch != leader_epoch
                or base_offset < next_offset
                or not base_offset <= last_offset <= highest
                or length < size_of_header - LENGTH_OVERHEAD
                or following > end
                or crc32c(data[at + crc_position : following]) != crc
            ):
                break
            if timestamp > max_timestamp:
                max_timestamp, max_timestamp_offset = timestamp, last_offset
            if since > interval:
                segment.offset_index.append(last_offset, position + at)
                segment.time_index.maybe_append(max_timestamp, max_timestamp_offset)
                since = 0
            if producer >= 0:
                last = last_of_producers.get(producer)
                if last is None:
                    last = last_of_producers[producer] = deque(maxlen=REMEMBERED_BATCHES)
                last.append(header)
            since += following - at
            next_offset = last_offset + 1
            at = following
        self._bytes_since_entry = since
        self._max_timestamp, self._max_timestamp_offset = max_timestamp, max_timestamp_offset
        return at, next_offset

    def end(self, valid_bytes: int) -> None:
        """Truncate the file after the valid batches, close the indexes."""
        self._segment.end_recovery(valid_bytes, self._max_timestamp, self._max_timestamp_offset)


def recover_segment(
    state: LogState,
    segment: Segment,
    *,
    now_ms: int,
    cut_following: bool = False,
    may_cut: bool = True,
) -> int:
    """Check every batch of a segment and rebuild its indexes. Returns how many bytes were
    truncated.

    cut_following: if this segment is truncated, remove the following segments too. They are removed
    first, and the removal is synced: a crash in between must neither leave a gap nor restore them.
    may_cut: if False, invalid bytes raise KafkaError.
    """
    producers = ProducerStateManager(
        state.topic_partition, expiration_ms=state.producers.expiration_ms
    )
    scratch = copy(state)  # the producer state at the end of the segment, for its snapshot
    scratch.producers, scratch.log_end_offset = producers, segment.base_offset
    rebuild_producers(scratch, now_ms=now_ms, clean_shutdown=False)
    indexes = IndexRebuild(segment)
    position = _recover_batches(state, segment, indexes, producers)
    removed_bytes = segment.size - position
    if removed_bytes and not may_cut:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{segment.path}: no valid record batch at position {position}, where offset "
            f"{producers.map_end_offset} is due",
        )
    if removed_bytes and not cut_following:
        logger.warning(
            "%s: the last %d bytes are invalid record batches; records from offset %d on are lost",
            segment.path,
            removed_bytes,
            producers.map_end_offset,
        )
    if removed_bytes and cut_following:
        removed = state.segments.at_or_after(segment.base_offset + 1)
        remove_segments(state, removed[::-1], now_ms=now_ms, sync=True)
    indexes.end(position)
    if removed_bytes:
        segment.log_file().sync()
    take_snapshot(scratch)
    return removed_bytes


def _recover_batches(
    state: LogState, segment: Segment, indexes: IndexRebuild, producers: ProducerStateManager
) -> int:
    """Recover the valid batches of a segment. Returns the position of the first invalid one.

    Plain batches are processed in runs (`IndexRebuild.run`), all others one by one.
    """
    file, end = LogFile(segment.path), segment.size
    position = 0
    wanted = READ_CHUNK_BYTES
    last_of_producers: dict[int, deque[tuple[int, ...]]] = {}
    while position < end:
        state.check_stop()
        data = memoryview(file.read_at(position, min(wanted, end - position)))
        wanted = READ_CHUNK_BYTES
        at = 0
        while True:
            at, producers.map_end_offset = indexes.run(
                data,
                at,
                position,
                producers.map_end_offset,
                state.leader_epochs.latest_epoch,
                last_of_producers,
            )
            if at and len(data) - at < BATCH_OVERHEAD and position + len(data) < end:
                break  # the next header may be incomplete
            _replay_last(producers, last_of_producers)
            try:
                header = read_any_header(data, at)
            except KafkaError:
                return position + at
            size = header.batch_length + LENGTH_OVERHEAD
            if position + at + size > end:
                return position + at
            if at + size > len(data):
                wanted = max(size, READ_CHUNK_BYTES)
                break
            batch = data[at : at + size]
            if not _recover_batch(state, segment, indexes, producers, header, batch, position + at):
                return position + at
            at += size
        position += at
    return position


def _recover_batch(
    state: LogState,
    segment: Segment,
    indexes: IndexRebuild,
    producers: ProducerStateManager,
    header: BatchHeader,
    batch: memoryview,
    position: int,
) -> bool:
    """Check one batch and add it to the indexes. Returns whether it is valid."""
    # the base offset is not covered by the CRC: a decreasing one is as invalid as a wrong CRC
    if (
        header.base_offset < producers.map_end_offset
        or not segment.can_hold(header.last_offset)
        or not check_any_crc(batch, 0, header)
    ):
        return False
    try:
        marker = marker_of(header, batch)
    except KafkaError:
        return False
    indexes.batch(header, position)
    state.leader_epochs.recover(
        header.partition_leader_epoch, producers.map_end_offset, header.base_offset
    )
    completed = replay_producer(producers, header, marker)
    if completed is not None:
        end_transaction(producers, segment, completed)
    return True


def _replay_last(
    producers: ProducerStateManager, last_of_producers: dict[int, deque[tuple[int, ...]]]
) -> None:
    """Replay the last batches of each producer of a run; the producer state keeps no others."""
    if last_of_producers:
        end_offset = producers.map_end_offset
        for headers in last_of_producers.values():
            for header in headers:
                producers.update(BatchHeader(*header))
        producers.map_end_offset = end_offset
        last_of_producers.clear()
