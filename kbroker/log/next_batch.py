"""Appending what nearly every batch is: the next one of its producer, sound, with nothing to change
and no record to look at.

In one call it does what `validator`, `producer_state` and `segment` do for any batch. Whatever is
not of that kind, and whatever is wrong, is left untouched: `PartitionLog.append_as_leader` then
takes the long way, which decides and says why. That both leave the same log behind is held by
tests/log/test_next_batch.py.
"""

from __future__ import annotations

from struct import error as StructError
from typing import Final

from kbroker.log.producer.producer_state import MAX_SEQUENCE, REMEMBERED_BATCHES, BatchMetadata
from kbroker.log.state.log_state import LogState
from kbroker.log.storage.files import LogDirectoryError
from kbroker.protocol.batch_header import (
    APPEND_FIELDS,
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    LEADER_FIELDS,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
)
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.records import MIN_RECORD_BYTES, most_records

SINCE_PRODUCE_VERSION: Final = 7
"""Requests before it have rules of their own for message sets and zstd."""

NOT_FAST_PATH: Final = -1

_ATTRIBUTES: Final = frozenset(
    codec | flag for codec in range(5) for flag in (0, TRANSACTIONAL_FLAG)
)
_SEQUENCE_LIMIT: Final = MAX_SEQUENCE + 1
_new_tuple: Final = tuple.__new__


def append_next_batch(
    log: LogState,
    batches: bytearray | memoryview,
    produce_version: int | None,
    leader_epoch: int,
    now_ms: int,
    *,
    transactional: bool = False,
) -> int:
    """Append one batch of a client. Returns its base offset, or NOT_FAST_PATH with nothing changed.

    batches: base offset and leader epoch are written into it. produce_version: of the request, None
    without one. transactional: whether a transactional batch is allowed. Raises LogDirectoryError
    for a fault of the disk.
    """
    config = log.config
    size = len(batches)
    if (
        size > config.largest_plain_batch
        or log.failure is not None
        or (produce_version is not None and produce_version < SINCE_PRODUCE_VERSION)
    ):
        return NOT_FAST_PATH
    try:
        (
            base_offset, length, magic, crc, attributes, delta, latest,
            producer_id, epoch, sequence, count,
        ) = APPEND_FIELDS.unpack_from(batches)  # fmt: skip
    except StructError:  # fewer bytes than a header
        return NOT_FAST_PATH
    if (
        base_offset
        or length + LENGTH_OVERHEAD != size
        or magic != MAGIC
        or attributes not in _ATTRIBUTES
        or count != delta + 1
        or (
            count * MIN_RECORD_BYTES > size - BATCH_OVERHEAD
            and _cannot_hold(size, attributes, count)
        )
        or latest - now_ms > config.message_timestamp_after_max_ms
        or leader_epoch != log.leader_epochs.latest_epoch
    ):
        return NOT_FAST_PATH
    is_transactional = attributes >= TRANSACTIONAL_FLAG
    if is_transactional and not transactional:
        return NOT_FAST_PATH
    producers = log.producers
    state = None
    if producer_id >= 0:
        state = producers.active_producers.get(producer_id)
        if (
            state is None
            or epoch != state.producer_epoch
            or epoch < 0
            or not (known := state.batches)
            or known[-1].last_sequence + 1 != sequence
            or sequence + delta >= _SEQUENCE_LIMIT
            or (state.transaction_first_offset is None) is is_transactional
        ):
            return NOT_FAST_PATH
    segment = log.segments.active
    offset = log.log_end_offset
    last_offset = offset + delta
    if (
        segment.index_room <= 0
        or latest > segment.latest_timestamp
        or last_offset > segment.largest_offset
        or segment.size > config.segment_bytes - size
        or (view := batches if type(batches) is memoryview else memoryview(batches)).readonly
        or crc32c(view[ATTRIBUTES_POSITION:]) != crc
    ):
        return NOT_FAST_PATH
    LEADER_FIELDS.pack_into(batches, 0, offset, length, leader_epoch)
    try:
        segment.append_sized(view, ((size, last_offset, latest),))
    except LogDirectoryError as error:
        if not error.is_shortage:  # a file could not be opened, so nothing was written
            log.failure = error
        raise
    if state is not None:
        if len(known) == REMEMBERED_BATCHES:
            del known[0]
        known.append(_new_tuple(BatchMetadata, (sequence + delta, last_offset, delta, latest)))
        state.last_timestamp = latest
    log.log_end_offset = producers.map_end_offset = last_offset + 1
    if log.first_unflushed_ms is None:
        log.first_unflushed_ms = now_ms
    return offset


def _cannot_hold(size: int, attributes: int, count: int) -> bool:
    """Whether a batch of size bytes, small for the records it claims, is too small for them even if
    it is compressed.
    """
    return count > most_records(attributes, size)
