"""Searches by time, step by step: what is looked into, and what happens when the log changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log import time_search
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.log.time_search import (
    Candidate,
    Search,
    TimestampOffset,
    find_now,
    search_max_timestamp,
    search_time,
)
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

T = 1_700_000_000_000
CONFIG = LogConfig(segment_index_bytes=4096, index_interval_bytes=100)


def put(
    segments: Segments, *times: int, compression: Compression = Compression.NONE, size: int = 1
) -> None:
    """One batch at the end of the active segment; times are ms after T."""
    batch = build_batch(
        [(T + time, None, bytes(size), []) for time in times],
        base_offset=segments.active.next_offset(),
        partition_leader_epoch=4,
        compression=compression,
    )
    segments.active.append(batch, [read_batch_header(batch)])


def roll(segments: Segments) -> None:
    base = segments.active.next_offset()
    segments.active.become_inactive()
    segments.create_active(base, config=CONFIG, now_ms=T)


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    """Times 0 5 3 | 20 10 | 15 20, in a batch of two records first."""
    segments = Segments(str(tmp_path), OpenFiles(10))
    segments.create_active(0, config=CONFIG, now_ms=T)
    put(segments, 0, 5)
    put(segments, 3)
    roll(segments)
    put(segments, 20, compression=Compression.ZSTD)
    put(segments, 10)
    roll(segments)
    put(segments, 15)
    put(segments, 20)
    return segments


def found(search: Search) -> tuple[int, int] | None:
    result = find_now(search)
    return None if result is None else (result.timestamp - T, result.offset)


@pytest.mark.parametrize(
    ("time", "start", "expected"),
    [
        pytest.param(-5, 0, (0, 0), id="before the first"),
        pytest.param(1, 0, (5, 1), id="inside a batch"),
        pytest.param(5, 0, (5, 1), id="exactly"),
        pytest.param(5, 2, (20, 3), id="not before the start of the log"),
        pytest.param(0, 2, (3, 2), id="the first behind the start"),
        pytest.param(6, 0, (20, 3), id="the first in order of offsets"),
        pytest.param(12, 4, (15, 5), id="in the active segment"),
        pytest.param(20, 4, (20, 6), id="the last"),
        pytest.param(21, 0, None, id="later than all"),
    ],
)
def test_the_first_record_of_a_time(
    segments: Segments, time: int, start: int, expected: tuple[int, int] | None
) -> None:
    assert found(search_time(segments, T + time, lambda: start)) == expected


def test_the_first_record_with_the_largest_timestamp(segments: Segments) -> None:
    assert find_now(search_max_timestamp(segments)) == TimestampOffset(T + 20, 3, 4)


def test_a_log_without_timestamps(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path), OpenFiles(10))
    segments.create_active(0, config=CONFIG, now_ms=T)
    assert found(search_max_timestamp(segments)) is None
    assert found(search_time(segments, 0, lambda: 0)) is None
    put(segments, -T - 1)
    assert found(search_max_timestamp(segments)) is None


def candidates(search: Search) -> list[Candidate]:
    """All that a search wants to look into, if nothing is found in any."""
    wanted = []
    try:
        each = next(search)
        while True:
            if each is not None:
                wanted.append(each)
            each = search.send(None)
    except StopIteration:
        return wanted


def test_only_batches_whose_header_promises_it_are_read(segments: Segments) -> None:
    assert len(candidates(search_time(segments, T + 4, lambda: 0))) == 5
    assert len(candidates(search_time(segments, T + 16, lambda: 0))) == 2
    assert candidates(search_time(segments, T + 21, lambda: 0)) == []


def test_a_long_search_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "HEADERS_PER_STEP", 4)
    segments = Segments(str(tmp_path), OpenFiles(10))
    segments.create_active(0, config=LogConfig(index_interval_bytes=1 << 20), now_ms=T)
    put(segments, 9)
    for _ in range(20):
        put(segments, 0)
    put(segments, 9)
    search = search_time(segments, T + 9, lambda: 1)
    steps = 0
    while next(search) is None:
        steps += 1
    assert steps == 5


def test_only_the_first_search_looks_at_every_segment(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(search_time(segments, T + 12, lambda: 0)) == (20, 3)
    walks = []

    def walk(self: Segments) -> Iterator[Segment]:
        walks.append(self)
        return iter(self.at_or_after(0))

    monkeypatch.setattr(Segments, "__iter__", walk)
    assert found(search_time(segments, T + 12, lambda: 0)) == (20, 3)
    assert not walks
    put(segments, 30)  # in the active segment, which is looked at each time
    assert found(search_time(segments, T + 25, lambda: 0)) == (30, 7)
    assert not walks
    roll(segments)
    put(segments, 40)
    assert found(search_time(segments, T + 35, lambda: 0)) == (40, 8)
    assert len(walks) == 1


def test_a_removed_segment_begins_the_search_again(segments: Segments) -> None:
    search = search_time(segments, T + 1, lambda: segments.first.base_offset)
    first = next(search)
    assert first is not None and first.look(1 << 20) is not None
    segments.remove([segments.first], due_ms=T)
    again = search.send(None)
    assert again is not None
    assert again.look(1 << 20) == TimestampOffset(T + 20, 3, 4)


# -- one batch ------------------------------------------------------------------------------------


def only_candidate(segments: Segments, time: int) -> Candidate:
    candidate = next(search_time(segments, T + time, lambda: 0))
    assert candidate is not None
    return candidate


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD, Compression.GZIP])
def test_what_was_unpacked_is_told(tmp_path: Path, compression: Compression) -> None:
    segments = Segments(str(tmp_path), OpenFiles(10))
    segments.create_active(0, config=CONFIG, now_ms=T)
    put(segments, 0, 9, compression=compression, size=5000)
    candidate = only_candidate(segments, 9)
    assert candidate.look(1 << 20) == TimestampOffset(T + 9, 1, 4)
    assert 10_000 < candidate.unpacked_bytes < 11_000
    assert candidate.size == segments.active.size


def test_a_batch_that_unpacks_to_too_much_is_believed(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path), OpenFiles(10))
    segments.create_active(0, config=CONFIG, now_ms=T)
    put(segments, 0, 9, compression=Compression.ZSTD, size=5000)
    candidate = only_candidate(segments, 5)
    with pytest.raises(KafkaError) as caught:
        candidate.look(1000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert time_search.look_or_believe(candidate, 1000) == TimestampOffset(T + 9, 0, 4)
    assert time_search.look_or_believe(candidate, 1 << 20) == TimestampOffset(T + 9, 1, 4)


def test_a_damaged_batch_is_an_error_not_a_belief(segments: Segments) -> None:
    candidate = only_candidate(segments, 20)
    segments[1].log_file().write_at(b"\xff" * 8, 65)
    with pytest.raises(KafkaError):
        time_search.look_or_believe(candidate, 1 << 20)
