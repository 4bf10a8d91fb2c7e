"""The ordered segments of a log: which one an offset is in, reads across them, removal."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kbroker.log.storage.disk_jobs import DiskJobs
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.model import InvariantError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.settings.views.log_config import LogConfig
from tests.log.open_log import delete_due_files

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=100_000, segment_index_bytes=4096, index_interval_bytes=100)
BASES = [0, 10, 20]


def append(segment: Segment, offset: int, time: int = 0) -> None:
    batch = build_batch([(NOW_MS + time, None, b"value", [])], base_offset=offset)
    segment.append(batch, [read_batch_header(batch)])


@pytest.fixture
def jobs(tmp_path: Path) -> DiskJobs:
    return DiskJobs(str(tmp_path))


@pytest.fixture
def segments(tmp_path: Path, jobs: DiskJobs) -> Segments:
    """Three segments with offsets 0 to 4, 10 to 14, and 20 to 24."""
    segments = Segments(str(tmp_path), OpenFiles(10), jobs=jobs)
    for base in BASES:
        segment = segments.create_active(base, config=CONFIG, now_ms=NOW_MS)
        for offset in range(base, base + 5):
            append(segment, offset, time=offset)
    return segments


@pytest.mark.parametrize(
    ("offset", "index", "following"),
    [(-5, 0, 3), (0, 0, 3), (1, 0, 2), (9, 0, 2), (10, 1, 2), (20, 2, 1), (99, 2, 0)],
)
def test_the_segment_of_an_offset(
    segments: Segments, offset: int, index: int, following: int
) -> None:
    assert segments.floor_index(offset) == index
    assert len(segments.at_or_after(offset)) == following
    assert [segments.end_offset(each, 25) for each in range(3)] == [10, 20, 25]


@pytest.mark.parametrize("base_offset", [0, 19, 20])
def test_a_segment_that_does_not_follow_is_refused(
    segments: Segments, tmp_path: Path, base_offset: int
) -> None:
    other = Segment(
        str(tmp_path),
        base_offset,
        size=0,
        config=CONFIG,
        open_files=segments.open_files,
        created_ms=NOW_MS,
    )
    with pytest.raises(InvariantError, match="does not follow"):
        segments.add(other)
    assert segments.base_offsets == BASES and segments.active is segments[2]


@pytest.mark.parametrize("base_offset", [10, 20, 21])
def test_a_rewritten_segment_needs_a_place_before_the_active_one(
    segments: Segments, tmp_path: Path, base_offset: int
) -> None:
    def rewritten(offset: int) -> Segment:
        return Segment(
            str(tmp_path),
            offset,
            size=0,
            config=CONFIG,
            open_files=segments.open_files,
            created_ms=NOW_MS,
        )

    with pytest.raises(InvariantError, match="no place"):
        segments.insert(rewritten(base_offset))
    segments.insert(rewritten(15))
    assert segments.base_offsets == [0, 10, 15, 20] and segments.active is segments[3]


def read(segments: Segments, offset: int, upper: int) -> tuple[list[int], int]:
    found, reached = segments.read(
        offset, max_bytes=1 << 20, upper_offset=upper, log_end_offset=25, min_one_batch=True
    )
    headers = [] if found is None else [header for _, header in iter_batches(found.read())]
    return [header.base_offset for header in headers], reached


@pytest.mark.parametrize(
    ("offset", "upper", "expected"),
    [
        pytest.param(0, 25, ([0, 1, 2, 3, 4], 10), id="up to the end of its segment"),
        pytest.param(3, 25, ([3, 4], 10), id="from within"),
        pytest.param(7, 25, ([10, 11, 12, 13, 14], 20), id="in a gap: the next segment"),
        pytest.param(12, 13, ([12], 13), id="up to the upper offset"),
        pytest.param(7, 10, ([], 10), id="a gap up to the upper offset"),
        pytest.param(24, 25, ([24], 25), id="the last"),
    ],
)
def test_a_read_is_of_the_first_segment_that_has_something(
    segments: Segments, offset: int, upper: int, expected: tuple[list[int], int]
) -> None:
    assert read(segments, offset, upper) == expected


def test_aborted_transactions_of_all_segments_that_a_read_may_meet(segments: Segments) -> None:
    spanning = AbortedTransaction(1, 3, 12, 13)
    later = AbortedTransaction(2, 20, 23, 24)
    segments[1].transaction_index.append(spanning)
    segments[2].transaction_index.append(later)
    assert segments.aborted_transactions(0, 25) == [spanning, later]
    assert segments.aborted_transactions(0, 13) == [spanning]
    assert segments.aborted_transactions(13, 25) == [later]


def test_the_latest_timestamps_follow_what_is_added_and_removed(segments: Segments) -> None:
    assert segments.latest_timestamps() == [NOW_MS + 4, NOW_MS + 14]
    segments.create_active(30, config=CONFIG, now_ms=NOW_MS)
    assert segments.latest_timestamps() == [NOW_MS + 4, NOW_MS + 14, NOW_MS + 24]
    segments.remove([segments.first], due_ms=NOW_MS)
    assert segments.latest_timestamps() == [NOW_MS + 14, NOW_MS + 24]


def test_removed_files_are_renamed_by_a_job_and_deleted_when_due(
    segments: Segments, jobs: DiskJobs, tmp_path: Path
) -> None:
    removed = segments.first
    segments.remove([removed], due_ms=NOW_MS + 100)
    assert not segments.has(removed) and segments.has(segments.first)
    assert Path(removed.path).exists() and not segments.deleted_files
    jobs.settle()
    deleted = sorted(path.name for path in tmp_path.glob("*.deleted"))
    assert deleted == [f"{0:020d}.{kind}.deleted" for kind in ("index", "log", "timeindex")]
    assert delete_due_files(segments, NOW_MS + 99) == 0
    assert delete_due_files(segments, NOW_MS + 100) == 3
    assert not list(tmp_path.glob("*.deleted"))
    with pytest.raises(InvariantError, match="is no segment of this log"):
        segments.remove([removed], due_ms=NOW_MS)


def test_the_segment_before_a_removed_last_one_is_active(segments: Segments) -> None:
    segments.remove([segments[2]], due_ms=NOW_MS)
    assert segments.active is segments[1] and len(segments) == 2


@pytest.mark.parametrize(
    ("recovery_point", "up_to", "expected"),
    [
        pytest.param(0, 25, [0, 10, 20], id="everything"),
        pytest.param(12, 25, [10, 20], id="from the segment of the recovery point on"),
        pytest.param(0, 10, [0], id="up to a boundary"),
        pytest.param(20, 25, [20], id="the active one"),
    ],
)
def test_which_files_a_flush_syncs(
    segments: Segments, recovery_point: int, up_to: int, expected: list[int], tmp_path: Path
) -> None:
    snapshot = tmp_path / f"{10:020d}.snapshot"
    snapshot.touch()
    files = segments.files_to_sync(
        recovery_point, up_to, lambda offset: str(snapshot) if offset == 10 else None
    )
    names = [Path(file.path).name for file in files]
    assert [int(name[:20]) for name in names if name.endswith(".log")] == expected
    closed = [base for base in expected if base != 20]
    assert [int(name[:20]) for name in names if name.endswith(".index")] == closed
    assert (snapshot.name in names) == (0 in expected)


def test_jitter_is_below_its_bound_and_below_the_age_of_a_segment(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path), OpenFiles(10), Random(1))
    config = LogConfig(segment_ms=1000, segment_jitter_ms=10)
    drawn = {segments.roll_jitter_ms(config) for _ in range(500)}
    assert drawn == set(range(10))
    assert (
        max(
            segments.roll_jitter_ms(LogConfig(segment_ms=3, segment_jitter_ms=10))
            for _ in range(99)
        )
        == 2
    )
    assert segments.roll_jitter_ms(LogConfig()) == 0
    assert Segments(str(tmp_path), OpenFiles(10)).roll_jitter_ms(config) == 0
