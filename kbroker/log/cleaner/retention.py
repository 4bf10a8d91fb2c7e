"""Which of the oldest segments are due: by time, by size, by the log's start. Removing is
partition_log's.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.settings.log_config import LogConfig


def count_expired(
    segments: Segments, config: LogConfig, now_ms: int, *, upper_offset: int, end: int
) -> int:
    """How many segments from the oldest on have only records older than retention.ms."""
    if not config.delete or config.retention_ms < 0:
        return 0
    return _count(
        segments,
        lambda segment: now_ms - segment.largest_timestamp() > config.retention_ms,
        upper_offset=upper_offset,
        end=end,
    )


def count_excess(segments: Segments, config: LogConfig, *, upper_offset: int, end: int) -> int:
    """How many segments from the oldest on can go so that retention.bytes still remain."""
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
    """How many segments lie wholly before the log's start."""
    return sum(1 for base in segments.base_offsets[1:] if base <= log_start_offset)


def _count(
    segments: Segments, is_due: Callable[[Segment], bool], *, upper_offset: int, end: int
) -> int:
    """Nothing at or above upper_offset (the high watermark) goes, nor an empty active segment."""
    count = 0
    for index, segment in enumerate(segments):
        is_last_and_empty = segment is segments.active and segment.size == 0
        if upper_offset < segments.end_offset(index, end) or is_last_and_empty:
            break
        if not is_due(segment):
            break
        count += 1
    return count
