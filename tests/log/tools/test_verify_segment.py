"""One segment against its batches and its indexes: what is reported, and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.storage import names
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.log.tools.verify_segment import MAX_PER_FILE, SegmentCheck
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
BASE = 50
COUNT = 20
CONFIG = LogConfig(segment_index_bytes=4096, index_interval_bytes=1)


def batch(offset: int, count: int = 1, time: int = 0) -> bytearray:
    return build_batch([(NOW_MS + time, b"k", b"value", [])] * count, base_offset=offset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed segment of 20 batches with an index entry for nearly each."""
    segment = Segment.create(
        str(tmp_path), BASE, config=CONFIG, open_files=OpenFiles(2), now_ms=NOW_MS
    )
    for number in range(COUNT):
        data = batch(BASE + number, time=number)
        segment.append(data, [read_batch_header(data)])
    segment.close()
    return tmp_path


def path_of(folder: Path, kind: str) -> Path:
    return folder / names.offset_name(BASE, kind)


def run(
    folder: Path, *, following: int | None = None, records: bool = False, is_in_use: bool = False
) -> tuple[list[str], list[str], SegmentCheck]:
    """(what is wrong with the log, with its indexes, the check)."""
    check = SegmentCheck(
        folder,
        BASE,
        following=following,
        producers=ProducerStateManager(TopicPartition("t", 0), expiration_ms=1 << 60),
        records=records,
        is_in_use=is_in_use,
    )
    for header in check.batches():
        check.take(header)
    found = {
        (BASE, kind): path_of(folder, kind).stat().st_size
        for kind in (names.INDEX, names.TIME_INDEX)
        if path_of(folder, kind).exists()
    }
    of_log = [what for _, what in check.problems]
    return of_log, [f"{path.suffix}: {what}" for path, what in check.index_problems(found)], check


def test_a_sound_segment(folder: Path) -> None:
    of_log, of_indexes, check = run(folder, following=BASE + COUNT, records=True)
    assert (of_log, of_indexes) == ([], [])
    assert check.size_bytes == path_of(folder, names.LOG).stat().st_size


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(batch(BASE) + batch(BASE), "comes after", id="offsets go back"),
        pytest.param(batch(BASE - 1), f"offset {BASE - 1} comes after", id="below the base"),
        pytest.param(batch(BASE, 3), f"belongs into segment {BASE + 2}", id="the next one's"),
        pytest.param(batch(BASE)[:-1] + b"\xff", "wrong CRC of the batch", id="crc"),
        pytest.param(batch(BASE)[:-1], "", id="cut"),
        pytest.param(batch(BASE) + bytes(100), "", id="zeros behind a closed segment"),
    ],
)
def test_a_batch_that_is_wrong_ends_the_check(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path_of(tmp_path, names.LOG).write_bytes(content)
    (what,), _, check = run(tmp_path, following=BASE + 2)
    assert expected in what and str(tmp_path) not in what
    assert check.size_bytes in (0, len(batch(BASE)))


def test_offsets_too_far_from_the_base(tmp_path: Path) -> None:
    path_of(tmp_path, names.LOG).write_bytes(batch(BASE + 2**31))
    (what,), _, _ = run(tmp_path)
    assert "too far from the segment's base" in what


def test_zeros_behind_the_active_segment_are_room_for_more(folder: Path) -> None:
    path = path_of(folder, names.LOG)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(5000))
    of_log, of_indexes, check = run(folder)
    assert (of_log, of_indexes, check.size_bytes) == ([], [], size)


@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(None, "it is missing", id="missing"),
        pytest.param(lambda data: data + b"\x01", "no whole entries", id="torn"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), "entry ", id="last entry"),
        pytest.param(lambda data: data * 2, "entry ", id="out of order"),
    ],
)
def test_an_index_that_is_wrong(
    folder: Path, kind: str, damage: Callable[[bytes], bytes] | None, expected: str
) -> None:
    path = path_of(folder, kind)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    of_log, of_indexes, _ = run(folder, following=BASE + COUNT)
    assert of_log == []
    assert of_indexes and all(what.startswith(f"{kind}: ") for what in of_indexes)
    assert expected in of_indexes[0]
    assert len(of_indexes) <= MAX_PER_FILE + 1


def test_a_shifted_index_does_not_fill_the_screen(folder: Path) -> None:
    path = path_of(folder, names.INDEX)
    data = bytearray(path.read_bytes())
    for at in range(7, len(data), 8):
        data[at] ^= 1
    path.write_bytes(data)
    _, of_indexes, _ = run(folder, following=BASE + COUNT)
    assert MAX_PER_FILE <= len(of_indexes) <= MAX_PER_FILE + 1


def test_entries_of_batches_that_were_appended_meanwhile(folder: Path) -> None:
    path = path_of(folder, names.LOG)
    path.write_bytes(path.read_bytes()[: len(batch(BASE)) * (COUNT - 3)])
    _, while_in_use, _ = run(folder, is_in_use=True)
    assert [what for what in while_in_use if what.startswith(names.INDEX)] == []
    _, after_a_stop, _ = run(folder)
    assert [what for what in after_a_stop if what.startswith(names.INDEX)]


def test_a_missing_log_is_a_finding(tmp_path: Path) -> None:
    (what,), _, _ = run(tmp_path)
    assert what
