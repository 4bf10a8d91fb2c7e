"""Which part of a log is dirty, and which segments become one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.cleaner.plan import NO_LAG_LIMIT, DirtyRange, dirty_range, group_segments
from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
CONFIG = LogConfig(segment_index_bytes=4096)


def make(folder: Path, bases: list[int], ages_days: list[float] | None = None) -> Segments:
    """A segment with one record at each base, the last one active; ages_days: of the records."""
    segments = Segments(str(folder), OpenFiles(10))
    for number, base in enumerate(bases):
        if segments.base_offsets:
            segments.active.become_inactive()
        segment = segments.create_active(base, config=CONFIG, now_ms=NOW_MS)
        time = NOW_MS - int((ages_days[number] if ages_days else 1) * DAY_MS)
        batch = build_batch([(time, b"k", bytes(40), [])], base_offset=base)
        segment.append(batch, [read_batch_header(batch)])
    return segments


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    return make(tmp_path, [0, 10, 20, 30])


def dirty(
    segments: Segments,
    config: LogConfig = CONFIG,
    *,
    cleaner_offset: int | None = None,
    log_start_offset: int = 0,
    last_stable_offset: int = 31,
) -> DirtyRange:
    return dirty_range(
        segments,
        config,
        cleaner_offset=cleaner_offset,
        log_start_offset=log_start_offset,
        last_stable_offset=last_stable_offset,
        now_ms=NOW_MS,
    )


def bounds(found: DirtyRange) -> tuple[int, int]:
    return found.first_dirty_offset, found.first_uncleanable_offset


@pytest.mark.parametrize(
    ("cleaner_offset", "log_start_offset", "first_dirty"),
    [
        pytest.param(None, 0, 0, id="never cleaned"),
        pytest.param(None, 7, 7, id="from the start of the log"),
        pytest.param(10, 0, 10, id="cleaned"),
        pytest.param(10, 15, 15, id="the start moved beyond"),
        pytest.param(30, 0, 30, id="all clean"),
        pytest.param(31, 0, 0, id="beyond the active segment: not believed"),
    ],
)
def test_where_the_dirty_part_begins(
    segments: Segments, cleaner_offset: int | None, log_start_offset: int, first_dirty: int
) -> None:
    found = dirty(segments, cleaner_offset=cleaner_offset, log_start_offset=log_start_offset)
    assert bounds(found) == (first_dirty, 30)


@pytest.mark.parametrize(
    ("last_stable", "uncleanable"),
    [(31, 30), (30, 30), (29, 20), (20, 20), (19, 10), (0, 0)],
)
def test_the_segment_with_the_last_stable_offset_stays_as_it_is(
    segments: Segments, last_stable: int, uncleanable: int
) -> None:
    assert bounds(dirty(segments, last_stable_offset=last_stable)) == (0, uncleanable)


def test_dirty_and_clean_bytes_and_their_share(segments: Segments) -> None:
    size = segments.first.size
    found = dirty(segments, cleaner_offset=10)
    assert (found.clean_bytes, found.dirty_bytes) == (size, 2 * size)
    assert found.dirty_ratio == pytest.approx(2 / 3)
    assert found.is_due(LogConfig(min_cleanable_dirty_ratio=0.66))
    assert not found.is_due(LogConfig(min_cleanable_dirty_ratio=2 / 3))
    assert DirtyRange(0, 0, 0, 0, False).dirty_ratio == 0.0


@pytest.mark.parametrize(
    ("lag_days", "uncleanable"), [(0.5, 30), (1.5, 20), (2.5, 10), (3.5, 0), (9, 0)]
)
def test_a_segment_with_a_record_that_is_too_young_stays(
    tmp_path: Path, lag_days: float, uncleanable: int
) -> None:
    segments = make(tmp_path, [0, 10, 20, 30], [3, 2, 1, 0])
    config = LogConfig(segment_index_bytes=4096, min_compaction_lag_ms=int(lag_days * DAY_MS))
    assert dirty(segments, config).first_uncleanable_offset == uncleanable


@pytest.mark.parametrize(
    ("max_lag_ms", "cleaner_offset", "is_overdue"),
    [
        (2 * DAY_MS, None, True),
        (2 * DAY_MS, 10, False),
        (3 * DAY_MS, None, False),
        (NO_LAG_LIMIT, None, False),
        (DAY_MS // 2, 30, False),
    ],
)
def test_a_dirty_segment_that_is_too_old_makes_a_round_due(
    tmp_path: Path, max_lag_ms: int, cleaner_offset: int | None, is_overdue: bool
) -> None:
    segments = make(tmp_path, [0, 10, 20, 30], [3, 1, 1, 5])
    config = LogConfig(
        segment_index_bytes=4096,
        max_compaction_lag_ms=max_lag_ms,
        min_cleanable_dirty_ratio=1.0,
    )
    found = dirty(segments, config, cleaner_offset=cleaner_offset)
    assert found.is_overdue == is_overdue == found.is_due(config)


def grouped(segments: Segments, config: LogConfig, end_offset: int = 30) -> list[list[int]]:
    groups = group_segments(segments, config, end_offset=end_offset, first_uncleanable_offset=30)
    return [[segment.base_offset for segment in group] for group in groups]


def test_neighbours_are_grouped_up_to_the_size_of_a_segment(segments: Segments) -> None:
    size = segments.first.size
    for factor, expected in ((1, [[0], [10], [20]]), (2, [[0, 10], [20]]), (3, [[0, 10, 20]])):
        config = LogConfig(segment_bytes=factor * size, segment_index_bytes=4096)
        assert grouped(segments, config) == expected
    assert grouped(segments, CONFIG, end_offset=20) == [[0, 10]]
    assert grouped(segments, CONFIG, end_offset=0) == []


def test_a_segment_larger_than_the_limit_is_a_group_of_its_own(segments: Segments) -> None:
    assert grouped(segments, LogConfig(segment_bytes=1)) == [[0], [10], [20]]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_the_entries_of_a_group_fit_into_one_index(
    segments: Segments, tmp_path: Path, kind: str
) -> None:
    for base in (0, 10, 20):
        (tmp_path / f"{base:020d}.{kind}").write_bytes(bytes(24))
    assert grouped(segments, LogConfig(segment_index_bytes=48)) == [[0, 10], [20]]


def test_the_offsets_of_a_group_fit_into_its_index(tmp_path: Path) -> None:
    limit = MAX_RELATIVE_OFFSET
    segments = make(tmp_path, [0, 10, limit + 1, limit + 20, limit + 30])
    groups = group_segments(
        segments, CONFIG, end_offset=limit + 30, first_uncleanable_offset=limit + 30
    )
    assert [[segment.base_offset for segment in group] for group in groups] == [
        [0, 10],
        [limit + 1, limit + 20],
    ]
