from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.storage.files import FileSlice
from kbroker.log.storage.indexed_segment import MAX_POSITIONS
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
BASE = 100
CONFIG = LogConfig(segment_bytes=100_000, segment_index_bytes=4096, index_interval_bytes=200)


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.create(
        str(tmp_path), BASE, config=CONFIG, open_files=OpenFiles(10), now_ms=NOW_MS
    )


def append(segment: Segment, offset: int, count: int = 2, timestamp: int = NOW_MS) -> None:
    batch = build_batch([(timestamp, None, bytes(30), [])] * count, base_offset=offset)
    segment.append(batch, [read_batch_header(batch)])


@pytest.mark.parametrize("segment_bytes", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_a_file_is_preallocated_to_whatever_size_a_topic_may_ask_for(
    tmp_path: Path, segment_bytes: int
) -> None:
    """internal.segment.bytes has no validator, in Kafka neither."""
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=4096, preallocate=True)
    segment = Segment.create(
        str(tmp_path), BASE, config=config, open_files=OpenFiles(10), now_ms=NOW_MS
    )
    assert segment.log_file().size() == max(segment_bytes, 0)
    segment.close()
    assert Path(segment.path).stat().st_size == 0


def test_offsets_with_gaps_are_found_in_the_next_batch(segment: Segment) -> None:
    # compaction leaves gaps
    for offset in (100, 110, 120, 130, 140, 150):
        append(segment, offset)
    positions = [position for position, *_ in segment.scan(0)]
    assert [segment.position_of(offset) for offset in (90, 100, 101, 102, 110, 125, 151)] == [
        positions[0],
        positions[0],
        positions[0],
        positions[1],
        positions[1],
        positions[3],
        positions[5],
    ]
    assert segment.position_of(152) == segment.size
    assert segment.next_offset() == 152


def test_an_entry_is_made_for_the_first_batch_after_the_interval(segment: Segment) -> None:
    for number in range(10):
        append(segment, BASE + 2 * number, timestamp=NOW_MS + number)
    size = segment.size // 10
    batches_between = CONFIG.index_interval_bytes // size + 1
    expected = [
        (BASE + 2 * number + 1, number * size)
        for number in range(batches_between, 10, batches_between)
    ]
    assert segment.offset_index.entries() == expected
    assert segment.time_index.entries() == [
        (NOW_MS + (offset - BASE) // 2, offset) for offset, _ in expected
    ]
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (NOW_MS + 9, BASE + 19)


def test_several_batches_of_one_append_are_indexed_each(segment: Segment, tmp_path: Path) -> None:
    data = b"".join(
        build_batch([(NOW_MS, None, bytes(30), [])], base_offset=BASE + number)
        for number in range(20)
    )
    segment.append(data, [header for _, header in iter_batches(data)])
    one_by_one = Segment.create(
        str(tmp_path), BASE + 1000, config=CONFIG, open_files=OpenFiles(10), now_ms=NOW_MS
    )
    for number in range(20):
        append(one_by_one, BASE + 1000 + number, count=1)
    assert [position for _, position in segment.offset_index.entries()] == [
        position for _, position in one_by_one.offset_index.entries()
    ]


def test_remembered_positions_are_bounded(segment: Segment) -> None:
    for number in range(3 * MAX_POSITIONS):
        append(segment, BASE + number, count=1)
    for number in range(1, 3 * MAX_POSITIONS):
        segment.position_of(BASE + number)
    assert len(segment._positions or ()) == MAX_POSITIONS
    segment.truncate_to(BASE + 5, index_bytes=4096, now_ms=NOW_MS)
    assert not segment._positions


def test_the_largest_timestamp_is_found_again_after_a_reopen(
    segment: Segment, tmp_path: Path
) -> None:
    for number, timestamp in enumerate((5, 9, 3, 4, 8, 9, 1, 2)):
        append(segment, BASE + 2 * number, timestamp=NOW_MS + timestamp)
    segment.close()
    again = Segment(
        str(tmp_path),
        BASE,
        size=segment.size,
        config=CONFIG,
        open_files=OpenFiles(10),
        created_ms=NOW_MS,
    )
    assert (again.max_timestamp, again.max_timestamp_offset) == (NOW_MS + 9, BASE + 3)


def test_records_without_timestamps_age_with_their_file(segment: Segment) -> None:
    append(segment, BASE, timestamp=-1)
    assert segment.max_timestamp == -1
    assert segment.largest_timestamp() > NOW_MS


def test_bytes_that_are_no_batch_are_named(segment: Segment) -> None:
    append(segment, BASE)
    segment.log_file().write_at(b"\x00" * 70, segment.size)
    segment.size += 70
    with pytest.raises(KafkaError, match=r"00100\.log: no record batch at position") as caught:
        segment.next_offset()
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_reader_goes_on_where_it_stopped(segment: Segment) -> None:
    for number in range(50):
        append(segment, BASE + 2 * number)
    offset, seen = BASE, []
    while offset < BASE + 100:
        found, offset = segment.read(
            offset,
            max_bytes=400,
            end_position=segment.size,
            end_offset=BASE + 100,
            min_one_batch=True,
        )
        assert isinstance(found, FileSlice) and found.size <= 400
        seen += [header.base_offset for _, header in iter_batches(found.read())]
        assert segment._positions is not None and offset in segment._positions
    assert seen == list(range(BASE, BASE + 100, 2))


def state_of(segment: Segment) -> dict[str, object]:
    """Every field of a segment and of its indexes, except the open file."""
    left: dict[str, object] = {}
    for owner in (segment, segment.offset_index, segment.time_index):
        for kind in type(owner).__mro__:
            for name in getattr(kind, "__slots__", ()):
                value = getattr(owner, name, None)
                if isinstance(value, str | int | None):
                    left[f"{type(owner).__name__}.{name}"] = value
        left[f"{type(owner).__name__} entries"] = repr(getattr(owner, "_offsets", None))
    return left


@pytest.mark.parametrize("timestamp", [NOW_MS, -1])
@pytest.mark.parametrize("batches", [0, 1, 8])
def test_the_question_whether_to_roll_changes_nothing(
    segment: Segment, batches: int, timestamp: int
) -> None:
    for number in range(batches):
        append(segment, BASE + 2 * number, timestamp=timestamp)
    before = state_of(segment)
    week_ms = CONFIG.max_segment_ms
    answers = [
        segment.should_roll(size, last_offset, NOW_MS + late_ms, CONFIG, NOW_MS + late_ms)
        for size in (100, 100_000, 100_001)
        for last_offset in (BASE + 50, BASE + 2**31, BASE - 1)
        for late_ms in (0, week_ms, week_ms + 1)
    ]
    assert state_of(segment) == before
    assert {True, False} == set(answers)
    assert answers[:3] == [False, False, batches > 0]


def test_the_limits_are_those_of_should_roll(segment: Segment) -> None:
    segment.learn_limits(CONFIG)
    assert segment.index_room == 0, "an empty segment has none yet"
    append(segment, BASE)
    segment.learn_limits(CONFIG)
    assert segment.index_room == min(segment.offset_index.room, segment.time_index.room)
    latest = segment.latest_timestamp
    assert not segment.should_roll(100, BASE + 5, latest, CONFIG, NOW_MS)
    assert segment.should_roll(100, BASE + 5, latest + 1, CONFIG, NOW_MS)
    segment.forget_limits()
    assert segment.index_room == 0


def test_a_segment_without_a_first_timestamp_has_no_limits(segment: Segment) -> None:
    append(segment, BASE, timestamp=-1)
    segment.learn_limits(CONFIG)
    assert segment.index_room == 0
