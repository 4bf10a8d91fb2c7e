"""Checks at a start that read a few bytes of a segment: what they detect, and what they accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.recovery.sanity import lost_tail, wrong_transaction
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=100_000, segment_index_bytes=4096, index_interval_bytes=1)


def put(segment: Segment, batch: bytes | bytearray) -> None:
    segment.append(bytes(batch), [read_batch_header(batch)])


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    """Producer 7: records at 0 and 1, an abort at 3; producer 8: a record at 2, a commit at 4."""
    segments = Segments(str(tmp_path), OpenFiles(10))
    segment = segments.create_active(0, config=CONFIG, now_ms=NOW_MS)
    for offset, producer in ((0, 7), (1, 7), (2, 8)):
        put(
            segment,
            build_batch(
                [(NOW_MS, None, b"v", [])],
                base_offset=offset,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=offset,
                is_transactional=True,
            ),
        )
    for offset, producer in ((3, 7), (4, 8)):
        put(
            segment,
            build_end_transaction_marker(
                commit=producer == 8,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=NOW_MS,
                base_offset=offset,
            ),
        )
    return segments


def problem(segments: Segments, *entry: int) -> str | None:
    segment = segments.first
    segment.transaction_index.append(AbortedTransaction(*entry))
    return wrong_transaction(segments, segment)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param((7, 0, 3, 4), None, id="as it is"),
        pytest.param((8, 0, 3, 4), "no marker of that producer is at 3", id="another producer"),
        pytest.param((7, 0, 2, 3), "no marker of that producer is at 2", id="a record"),
        pytest.param((7, 1, 3, 4), None, id="begins at a later record of it"),
        pytest.param((7, 2, 3, 4), "begins at 2", id="begins at a record of another"),
        pytest.param((7, 3, 3, 4), None, id="without records"),
        pytest.param((7, 0, 9, 10), None, id="a marker that is not there any more"),
    ],
)
def test_an_aborted_transaction_and_the_log(
    segments: Segments, entry: tuple[int, int, int, int], expected: str | None
) -> None:
    found = problem(segments, *entry)
    assert found is None if expected is None else expected in (found or "")


def test_a_transaction_that_began_before_the_log_contradicts_nothing(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path), OpenFiles(10))
    segment = segments.create_active(10, config=CONFIG, now_ms=NOW_MS)
    marker = build_end_transaction_marker(
        commit=False,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=10,
    )
    put(segment, marker)
    assert problem(segments, 7, 3, 10, 11) is None


def test_a_damaged_log_is_not_judged_here(segments: Segments) -> None:
    path = Path(segments.first.path)
    segments.first.close_file()
    path.write_bytes(bytes(path.stat().st_size))
    segments.first.offset_index.reset()
    assert problem(segments, 8, 0, 3, 4) is None


# -- lost tails -----------------------------------------------------------------------------------


def tail(segment: Segment, *, following: int = 5, compacted: bool = False) -> str | None:
    segment.write_pending()
    return lost_tail(
        segment,
        following,
        index_bytes=8 * len(segment.offset_index.entries()),
        time_index_bytes=0,
        compacted=compacted,
    )


def cut_to(segments: Segments, count: int) -> Segment:
    """The first segment with a file that has lost all but count batches."""
    segment = segments.first
    content = Path(segment.path).read_bytes()
    positions = [position for position, _ in iter_batches(content)]
    segment.log_file().truncate(positions[count])
    segment.size = positions[count]
    return segment


def test_a_whole_segment(segments: Segments) -> None:
    assert segments.first.offset_index.entries()
    assert tail(segments.first) is None


def test_a_segment_without_the_batch_of_its_last_entry(segments: Segments) -> None:
    segment = cut_to(segments, 3)
    found = tail(segment)
    assert found is not None and f"it has {segment.size} bytes" in found


@pytest.mark.parametrize(
    ("following", "compacted", "is_sound"), [(5, False, True), (6, False, False), (6, True, True)]
)
def test_an_entry_that_is_wrong_about_a_whole_log(
    segments: Segments, following: int, compacted: bool, is_sound: bool
) -> None:
    """The log reaches the next segment, or compaction left a gap: no batch is lost."""
    segments.first.offset_index.append(5, segments.first.size + 100)
    found = tail(segments.first, following=following, compacted=compacted)
    assert (found is None) == is_sound


def test_an_empty_log_beside_its_indexes(segments: Segments) -> None:
    segment = cut_to(segments, 0)
    sizes = {"index_bytes": 0, "time_index_bytes": 0}
    for name in sizes:
        found = lost_tail(segment, 5, **{**sizes, name: 12}, compacted=False)
        assert found == "it is empty, its indexes are not"
    assert lost_tail(segment, 5, **sizes, compacted=False) is None
    segment.size = 100
    assert lost_tail(segment, 5, index_bytes=7, time_index_bytes=12, compacted=False) is None
