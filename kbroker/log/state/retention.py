"""Retention: which of the oldest segments are due by time, size or log start offset, and their
removal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kbroker.log.state.log_state import LogState
from kbroker.log.state.rolling import roll_now
from kbroker.log.state.truncation import remove_segments
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)


def count_expired(
    segments: Segments, config: LogConfig, now_ms: int, *, upper_offset: int, end: int
) -> int:
    """How many of the oldest segments have only records older than retention.ms."""
    if not config.delete or config.retention_ms < 0:
        return 0
    return _count(
        segments,
        lambda segment: now_ms - segment.largest_timestamp() > config.retention_ms,
        upper_offset=upper_offset,
        end=end,
    )


def count_excess(segments: Segments, config: LogConfig, *, upper_offset: int, end: int) -> int:
    """How many of the oldest segments can be removed so that at least retention.bytes remain."""
    if not config.delete or config.retention_bytes < 0:
        return 0
    excess_bytes = segments.size_bytes - config.retention_bytes

    def is_too_much(segment: Segment) -> bool:
        nonlocal excess_bytes
        if excess_bytes < segment.size:
            return False
        excess_bytes -= segment.size
        return True

    return _count(segments, is_too_much, upper_offset=upper_offset, end=end)


def count_before_start(segments: Segments, log_start_offset: int) -> int:
    """How many segments lie completely below the log start offset."""
    return sum(1 for base in segments.base_offsets[1:] if base <= log_start_offset)


def _count(
    segments: Segments, is_due: Callable[[Segment], bool], *, upper_offset: int, end: int
) -> int:
    """Counts the leading segments for which is_due holds, up to upper_offset (the high watermark,
    exclusive); an empty active segment is not counted.
    """
    count = 0
    for index, segment in enumerate(segments):
        is_last_and_empty = segment is segments.active and segment.size == 0
        if upper_offset < segments.end_offset(index, end) or is_last_and_empty:
            break
        if not is_due(segment):
            break
        count += 1
    return count


def delete_records_before(state: LogState, offset: int) -> bool:
    """Advance the log start offset to offset (DeleteRecords). Files are deleted by the next
    retention run. Returns whether it advanced.

    Raises KafkaError(OFFSET_OUT_OF_RANGE) beyond the high watermark.
    """
    if offset > state.deletable_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"cannot delete up to {offset} in {state.topic_partition}: "
            f"the high watermark is {state.deletable_offset}",
        )
    return move_start(state, offset)


def move_start(state: LogState, offset: int) -> bool:
    """Make offset the log start offset unless that is at or above it. Returns whether it moved."""
    if offset <= state.log_start_offset:
        return False
    state.log_start_offset = offset
    state.leader_epochs.truncate_from_start(offset)
    map_end_offset = state.producers.map_end_offset
    state.producers.on_log_start_offset(offset)
    state.producers.map_end_offset = max(map_end_offset, offset)
    return True


def delete_old_segments(state: LogState, now_ms: int, *, defer: bool) -> int:
    """Remove segments by retention.ms and retention.bytes (cleanup.policy delete) and those below
    the log start offset. Returns how many. Their files are renamed now, or with `defer` by the
    thread that runs `jobs`; the caller of `Segments.take_due_files` deletes them.
    """
    segments, config = state.segments, state.config
    upper, end = state.deletable_offset, state.log_end_offset
    count = count_expired(segments, config, now_ms, upper_offset=upper, end=end)
    deleted = _remove_oldest(state, count, now_ms, "retention.ms", defer)
    count = count_excess(segments, config, upper_offset=upper, end=end)
    deleted += _remove_oldest(state, count, now_ms, "retention.bytes", defer)
    count = count_before_start(segments, state.log_start_offset)
    return deleted + _remove_oldest(state, count, now_ms, "log start offset", defer)


def _remove_oldest(state: LogState, count: int, now_ms: int, why: str, defer: bool) -> int:
    if count == 0:
        return 0
    try:
        if count == len(state.segments):
            roll_now(state, now_ms)
        removed = list(state.segments)[:count]
        move_start(state, state.segments[count].base_offset)
        remove_segments(state, removed, now_ms=now_ms, defer=defer)
    except LogDirectoryError as error:
        if not error.is_shortage:  # then no segment was made, or renames are still queued
            state.failure = error
        raise
    logger.info(
        "%s: deleted %d segments by %s; log start offset is %d",
        state.topic_partition,
        count,
        why,
        state.log_start_offset,
    )
    return count
