from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.storage.index import PENDING_LIMIT, CorruptIndexError, OffsetIndex, TimeIndex

BASE = 1000


@pytest.fixture
def offset_index(tmp_path: Path) -> OffsetIndex:
    index = OffsetIndex(str(tmp_path / "0.index"), BASE, 4100)
    index.create(4100)
    return index


@pytest.fixture
def time_index(tmp_path: Path) -> TimeIndex:
    index = TimeIndex(str(tmp_path / "0.timeindex"), BASE, 4100)
    index.create(4100)
    return index


def test_files_are_preallocated_in_whole_entries_and_cut_to_what_they_hold(
    offset_index: OffsetIndex, time_index: TimeIndex
) -> None:
    offset_path, time_path = Path(offset_index.path), Path(time_index.path)
    assert offset_path.read_bytes() == bytes(4096)
    assert time_path.read_bytes() == bytes(4092)
    offset_index.append(BASE + 5, 300)
    time_index.maybe_append(77, BASE + 5)
    offset_index.write_pending()
    time_index.write_pending()
    assert offset_path.read_bytes() == struct.pack(">ii", 5, 300) + bytes(4088)
    assert time_path.read_bytes() == struct.pack(">qi", 77, 5) + bytes(4080)
    offset_index.trim()
    time_index.trim()
    assert offset_path.read_bytes() == struct.pack(">ii", 5, 300)
    assert time_path.read_bytes() == struct.pack(">qi", 77, 5)


def test_entries_are_written_in_bunches(offset_index: OffsetIndex) -> None:
    for number in range(1, PENDING_LIMIT):
        offset_index.append(BASE + number, number)
    assert Path(offset_index.path).read_bytes() == bytes(4096)
    offset_index.append(BASE + PENDING_LIMIT, PENDING_LIMIT)
    assert Path(offset_index.path).read_bytes()[:8] == struct.pack(">ii", 1, 1)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 3000))
def test_lookup_is_the_floor(steps: list[int], offset: int) -> None:
    index = OffsetIndex("unused", BASE, 1 << 20)
    index.reset()
    offsets, positions = [], []
    at, position = BASE, 0
    for step in steps:
        at += step
        position += step * 10
        index.append(at, position)
        offsets.append(at)
        positions.append(position)
    slot = bisect_right(offsets, BASE + offset)
    assert index.lookup(BASE + offset)[1] == (positions[slot - 1] if slot else 0)
    slot = bisect_right(positions, offset)
    assert index.floor_of_position(offset)[1] == (positions[slot - 1] if slot else 0)
    index.truncate_to(BASE + offset)
    assert index.entries() == [
        (o, p) for o, p in zip(offsets, positions, strict=True) if o < BASE + offset
    ]


def test_a_preallocated_file_left_by_a_crash_holds_only_its_entries(
    offset_index: OffsetIndex, time_index: TimeIndex
) -> None:
    offset_index.append(BASE + 5, 300)
    time_index.maybe_append(1 << 8, BASE + 256)  # an entry that ends in a zero byte
    offset_index.write_pending()
    time_index.write_pending()
    assert OffsetIndex(offset_index.path, BASE, 4096).entries() == [(BASE + 5, 300)]
    assert TimeIndex(time_index.path, BASE, 4096).entries() == [(1 << 8, BASE + 256)]


def test_cut_entries_do_not_show_up_again(offset_index: OffsetIndex) -> None:
    for number in range(1, 20):
        offset_index.append(BASE + number, number * 100)
    offset_index.write_pending()
    offset_index.truncate_to(BASE + 3)
    offset_index.append(BASE + 9, 350)
    offset_index.preallocate(4096)
    data = Path(offset_index.path).read_bytes()
    assert data.rstrip(b"\0") == struct.pack(">iiiiii", 1, 100, 2, 200, 9, 350)
    assert len(data) == 4096


def test_unloading_gives_memory_back_and_keeps_everything(
    offset_index: OffsetIndex, time_index: TimeIndex
) -> None:
    offset_index.append(BASE + 5, 300)
    time_index.maybe_append(77, BASE + 5)
    offset_index.unload()
    time_index.unload()
    assert offset_index.lookup(BASE + 6) == (BASE + 5, 300)
    assert time_index.lookup(80) == (77, BASE + 5)
    offset_index.unload()
    offset_index.trim()
    assert Path(offset_index.path).stat().st_size == 8


def test_an_index_that_was_not_loaded_is_resized_without_reading(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(struct.pack(">ii", 5, 300))
    index = OffsetIndex(str(path), BASE, 80)
    index.preallocate(80)
    assert path.stat().st_size == 80
    index.trim()
    assert path.read_bytes() == struct.pack(">ii", 5, 300)
    assert index.last_entry == (BASE + 5, 300)


def test_time_entries_rise_and_the_last_place_is_for_the_roll(tmp_path: Path) -> None:
    index = TimeIndex(str(tmp_path / "0.timeindex"), BASE, 36)
    index.create(36)
    index.maybe_append(-1, BASE)
    assert (index.entry_count, index.last_entry) == (0, (-1, BASE))
    index.maybe_append(10, BASE + 1)
    index.maybe_append(10, BASE + 2)
    index.maybe_append(9, BASE + 3)
    index.maybe_append(20, BASE + 4)
    assert not index.room
    index.maybe_append(30, BASE + 5)
    index.maybe_append(40, BASE + 6, last=True)
    assert index.entries() == [(10, BASE + 1), (20, BASE + 4), (40, BASE + 6)]
    assert [index.lookup(at)[1] for at in (9, 10, 19, 20, 99)] == [
        BASE,
        BASE + 1,
        BASE + 1,
        BASE + 4,
        BASE + 6,
    ]
    index.truncate_to(BASE + 4)
    assert index.entries() == [(10, BASE + 1)]


def test_torn_entries_are_corrupt() -> None:
    for index in (OffsetIndex("x.index", BASE, 80), TimeIndex("x.timeindex", BASE, 80)):
        with pytest.raises(CorruptIndexError, match="whole entries"):
            index.check(13)
