"""Decisions of the cleaner: the dirty range of a log, its share of the log, and the segments that
are merged into one.

A log is clean up to its cleaner offset, and dirty from there to its first uncleanable offset: the
base of the active segment, the last stable offset, or the first segment with a record younger than
min.compaction.lag.ms. `cleaner` runs the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET
from kbroker.settings.views.log_config import LogConfig

NO_LAG_LIMIT: Final = (1 << 63) - 1


class PlannedSegment(Protocol):
    """The attributes of a segment that a plan reads; `log/storage/segment` implements it."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    def largest_timestamp(self) -> int: ...
    def index_file_bytes(self) -> tuple[int, int]:
        """File sizes in bytes of the offset index and of the time index."""
        ...


S_co = TypeVar("S_co", bound=PlannedSegment, covariant=True)
S = TypeVar("S", bound=PlannedSegment)


class PlannedSegments(Protocol[S_co]):
    """The segments of a log in order of offset; `log/storage/segments` implements it."""

    @property
    def active(self) -> S_co: ...
    def __iter__(self) -> Iterator[S_co]: ...
    def __getitem__(self, index: int, /) -> S_co: ...
    def floor_index(self, offset: int) -> int:
        """Index of the segment that offset belongs to; 0 for offsets before all."""
        ...


class DirtyRange(msgspec.Struct, frozen=True):
    """The part of a log whose keys a cleaning round indexes.

    first_dirty_offset: inclusive. first_uncleanable_offset: exclusive, a base offset. is_overdue:
    it has a record older than max.compaction.lag.ms.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes as a fraction of all bytes that cleaning would read."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is to be cleaned: its dirty ratio is high enough, or
        max.compaction.lag.ms has passed.
        """
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def dirty_range(
    segments: PlannedSegments[PlannedSegment],
    config: LogConfig,
    *,
    cleaner_offset: int | None,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> DirtyRange:
    """The range that can be cleaned now. cleaner_offset: the end of the clean part, exclusive; None
    if the log was never cleaned.

    last_stable_offset: records at or above it are not replicated, or their transaction is open.
    """
    first_dirty = log_start_offset
    active = segments.active
    if cleaner_offset is not None and log_start_offset < cleaner_offset <= active.base_offset:
        first_dirty = cleaner_offset
    dirty = [
        segment
        for segment in list(segments)[segments.floor_index(first_dirty) :]
        if segment is not active
    ]
    limit = max(first_dirty, min(last_stable_offset, active.base_offset))
    if config.min_compaction_lag_ms > 0:
        limit = max(first_dirty, min(limit, _first_too_young(dirty, config, now_ms, limit)))
    # whole segments only: the segment that contains the limit is not cleaned
    uncleanable = (
        active.base_offset
        if limit >= active.base_offset
        else segments[segments.floor_index(limit)].base_offset
    )
    dirty_bytes = sum(segment.size for segment in dirty if segment.base_offset < uncleanable)
    clean_bytes = sum(segment.size for segment in segments if segment.base_offset < first_dirty)
    return DirtyRange(
        first_dirty,
        uncleanable,
        clean_bytes,
        dirty_bytes,
        dirty_bytes > 0 and _is_overdue(dirty, config, now_ms),
    )


def _first_too_young(
    dirty: Sequence[PlannedSegment], config: LogConfig, now_ms: int, limit: int
) -> int:
    """Base offset of the first segment with a record younger than min.compaction.lag.ms."""
    for segment in dirty:
        if segment.base_offset >= limit:
            break
        if segment.largest_timestamp() > now_ms - config.min_compaction_lag_ms:
            return segment.base_offset
    return limit


def _is_overdue(dirty: Sequence[PlannedSegment], config: LogConfig, now_ms: int) -> bool:
    if config.max_compaction_lag_ms >= NO_LAG_LIMIT:
        return False
    clean_until_ms = now_ms - config.max_compaction_lag_ms
    return any(0 < segment.first_timestamp < clean_until_ms for segment in dirty)


def group_segments(
    segments: PlannedSegments[S],
    config: LogConfig,
    *,
    end_offset: int,
    first_uncleanable_offset: int,
) -> list[list[S]]:
    """Groups of adjacent segments below end_offset that fit into one segment: by bytes, by index
    entries, and by the 31 bits of a relative offset.
    """
    cleanable = [segment for segment in segments if segment.base_offset < end_offset]
    groups: list[list[S]] = []
    size = index_bytes = time_index_bytes = 0
    for position, segment in enumerate(cleanable):
        following = position + 1
        last_offset = (
            cleanable[following].base_offset
            if following < len(cleanable)
            else first_uncleanable_offset
        ) - 1
        own_index_bytes, own_time_index_bytes = segment.index_file_bytes()
        if (
            groups
            and size + segment.size <= config.segment_bytes
            and index_bytes + own_index_bytes <= config.segment_index_bytes
            and time_index_bytes + own_time_index_bytes <= config.segment_index_bytes
            and (
                segment.size == 0 or last_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
            )
        ):
            groups[-1].append(segment)
            size += segment.size
            index_bytes += own_index_bytes
            time_index_bytes += own_time_index_bytes
        else:
            groups.append([segment])
            size, index_bytes = segment.size, own_index_bytes
            time_index_bytes = own_time_index_bytes
    return groups
