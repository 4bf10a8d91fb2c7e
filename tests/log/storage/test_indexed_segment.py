"""Reading a segment by offset, position and time; and the effect of a wrong index."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.storage.indexed_segment import IndexedSegment
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.errors import KafkaError
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
BASE = 100
CONFIG = LogConfig(segment_bytes=100_000, segment_index_bytes=4096, index_interval_bytes=200)
COUNT = 20


def write(folder: Path, times: list[int] | None = None) -> Segment:
    """Batches of two records each from BASE on, closed; times: of each batch, after NOW_MS."""
    segment = Segment.create(
        str(folder), BASE, config=CONFIG, open_files=OpenFiles(10), now_ms=NOW_MS
    )
    for number, time in enumerate(range(COUNT) if times is None else times):
        batch = build_batch(
            [(NOW_MS + time, None, bytes(30), [])] * 2, base_offset=BASE + 2 * number
        )
        segment.append(batch, [read_batch_header(batch)])
    segment.close()
    return segment


def reopen(folder: Path) -> IndexedSegment:
    size = (folder / f"{BASE:020d}.log").stat().st_size
    return IndexedSegment(str(folder), BASE, size=size, config=CONFIG, open_files=OpenFiles(10))


def first_offset(segment: IndexedSegment, position: int) -> int:
    return next(segment.scan(position))[1]


@pytest.mark.parametrize("is_indexed", [True, False])
def test_every_offset_is_found_in_its_batch(tmp_path: Path, is_indexed: bool) -> None:
    assert write(tmp_path).offset_index.entries()
    if not is_indexed:
        (tmp_path / f"{BASE:020d}.index").write_bytes(b"")
    segment = reopen(tmp_path)
    for offset in range(BASE + 2 * COUNT - 1, BASE - 1, -1):
        position = segment.position_of(offset)
        assert first_offset(segment, position) == offset // 2 * 2
    assert segment.position_of(BASE - 50) == 0
    assert segment.position_of(BASE + 2 * COUNT) == segment.size
    assert segment.next_offset() == BASE + 2 * COUNT


def test_a_read_ends_at_the_last_batch_that_fits(tmp_path: Path) -> None:
    batch_bytes = write(tmp_path).size // COUNT
    segment = reopen(tmp_path)
    for limit in (1, batch_bytes - 1, batch_bytes, 2 * batch_bytes - 1, 7 * batch_bytes + 1):
        found, reached = segment.read(
            BASE + 5,
            max_bytes=limit,
            end_position=segment.size,
            end_offset=BASE + 2 * COUNT,
            min_one_batch=True,
        )
        count = max(1, limit // batch_bytes)
        assert found is not None
        assert [header.base_offset for _, header in iter_batches(found.read())] == [
            BASE + 4 + 2 * number for number in range(count)
        ]
        assert reached == BASE + 4 + 2 * count


@pytest.mark.parametrize("max_bytes", [-1, 0, 1])
def test_a_batch_that_does_not_fit_is_left_out_unless_it_may_come_alone(
    tmp_path: Path, max_bytes: int
) -> None:
    write(tmp_path)
    segment = reopen(tmp_path)
    assert segment.read(
        BASE,
        max_bytes=max_bytes,
        end_position=segment.size,
        end_offset=BASE + 2 * COUNT,
        min_one_batch=False,
    ) == (None, BASE)


def test_nothing_is_read_at_or_behind_the_bound(tmp_path: Path) -> None:
    write(tmp_path)
    segment = reopen(tmp_path)
    bound = segment.position_of(BASE + 10)
    for offset in (BASE + 10, BASE + 30):
        assert segment.read(
            offset, max_bytes=999, end_position=bound, end_offset=BASE + 10, min_one_batch=True
        ) == (None, BASE + 10)


@pytest.mark.parametrize("times", [None, [5] * COUNT, list(range(COUNT, 0, -1))])
def test_a_search_by_time_begins_no_later_than_the_record(
    tmp_path: Path, times: list[int] | None
) -> None:
    write(tmp_path, times)
    all_times = list(range(COUNT)) if times is None else times
    segment = reopen(tmp_path)
    largest = max(all_times)
    assert segment.max_timestamp == NOW_MS + largest
    assert segment.max_timestamp_offset == BASE + 2 * all_times.index(largest) + 1
    assert segment.first_timestamp == NOW_MS + all_times[0]
    for time in all_times:
        wanted = next(number for number, each in enumerate(all_times) if each >= time)
        position = segment.position_for_timestamp(NOW_MS + time, BASE)
        assert first_offset(segment, position) <= BASE + 2 * wanted


def test_a_search_by_time_does_not_begin_before_the_start_of_the_log(tmp_path: Path) -> None:
    write(tmp_path)
    segment = reopen(tmp_path)
    position = segment.position_for_timestamp(NOW_MS, BASE + 20)
    assert first_offset(segment, position) == BASE + 20


def test_a_wrong_index_is_rebuilt_once_and_a_damaged_log_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    index = tmp_path / f"{BASE:020d}.index"
    content = bytearray(index.read_bytes())
    content[7] ^= 1  # the position of the first entry: inside a batch
    index.write_bytes(content)
    segment = reopen(tmp_path)
    entry = int.from_bytes(content[:4], "big") + BASE
    assert first_offset(segment, segment.position_of(entry)) == entry // 2 * 2
    assert len(caplog.records) == 1 and str(index) in caplog.text

    log = tmp_path / f"{BASE:020d}.log"
    damaged = bytearray(log.read_bytes())
    damaged[16] = 9  # the magic of the first batch
    log.write_bytes(damaged)
    caplog.clear()
    with pytest.raises(KafkaError, match="position 0"):
        reopen(tmp_path).position_of(BASE + 1)
    assert not caplog.records


def test_released_indexes_are_read_again(tmp_path: Path) -> None:
    write(tmp_path)
    segment = reopen(tmp_path)
    before = segment.position_of(BASE + 31)
    segment.release()
    assert segment.file is None
    segment._positions = None
    assert segment.position_of(BASE + 31) == before


def test_an_empty_segment(tmp_path: Path) -> None:
    segment = Segment.create(
        str(tmp_path), BASE, config=CONFIG, open_files=OpenFiles(10), now_ms=NOW_MS
    )
    assert segment.next_offset() == BASE
    assert (segment.max_timestamp, segment.first_timestamp) == (-1, -1)
    assert segment.position_of(BASE + 1) == segment.size == 0
