"""A stopped log: which segments are linked, which are copied, and which refuse the snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.storage import names
from kbroker.log.tools.snapshot_manifest import PartitionSnapshot, SnapshotError
from kbroker.log.tools.snapshot_segments import StoppedLog, log_bytes, scan_segment, snapshot_log
from kbroker.log.tools.snapshot_writer import PartitionWriter
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.checksum import crc32c

COUNT = 10


def batches(first: int, count: int = COUNT) -> bytes:
    """One record each."""
    return b"".join(
        build_batch([(1000 + offset, b"k", b"value", [])], base_offset=offset)
        for offset in range(first, first + count)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Segments of the offsets 0 to 9, 10 to 19 and 20 to 29."""
    made = tmp_path / "t-0"
    made.mkdir()
    for base in (0, 10, 20):
        (made / names.offset_name(base, names.LOG)).write_bytes(batches(base))
    return made


def taken(
    folder: Path, *, start: int = 0, high_watermark: int = 30, is_clean: bool = True
) -> tuple[PartitionSnapshot, dict[int, bool], list[str]]:
    """The entry, by base offset whether the file is linked, and the notes."""
    output = folder.parent / "out"
    output.mkdir()
    log = StoppedLog(folder, 0, start, high_watermark, is_clean)
    steps = list(snapshot_log(log, PartitionWriter(output)))
    (entry,) = [step for step in steps if isinstance(step, PartitionSnapshot)]
    for file in entry.files:
        content = (output / file.name).read_bytes()
        assert (len(content), crc32c(content)) == (file.size_bytes, file.crc32c)
    links = {
        file.base_offset: (output / file.name).samefile(folder / file.name) for file in entry.files
    }
    return entry, links, [step for step in steps if isinstance(step, str)]


def test_full_segments_are_linked_and_the_last_is_copied(folder: Path) -> None:
    entry, links, notes = taken(folder)
    assert links == {0: True, 10: True, 20: False}
    assert (entry.log_start_offset, entry.log_end_offset, entry.high_watermark) == (0, 30, 30)
    assert notes == []
    assert log_bytes(folder) == sum(file.size_bytes for file in entry.files)


@pytest.mark.parametrize(("high_watermark", "linked"), [(0, []), (19, [0]), (20, [0, 10])])
def test_what_may_be_truncated_is_copied(
    folder: Path, high_watermark: int, linked: list[int]
) -> None:
    """A follower truncates down to the high watermark, and in place."""
    _, links, _ = taken(folder, high_watermark=high_watermark)
    assert [base for base, is_link in links.items() if is_link] == linked


def test_the_last_segment_with_records_is_copied(folder: Path) -> None:
    (folder / names.offset_name(30, names.LOG)).write_bytes(b"")
    entry, links, _ = taken(folder)
    assert links == {0: True, 10: True, 20: False}
    assert entry.log_end_offset == 30


def test_segments_of_deleted_records_are_left_out(folder: Path) -> None:
    entry, links, _ = taken(folder, start=13)
    assert list(links) == [10, 20]
    assert (entry.log_start_offset, entry.log_end_offset) == (13, 30)


def test_zeros_behind_the_last_batch_are_left_out(folder: Path) -> None:
    path = folder / names.offset_name(20, names.LOG)
    content = path.read_bytes()
    path.write_bytes(content + bytes(5000))
    entry, _, notes = taken(folder)
    assert (entry.files[-1].size_bytes, notes) == (len(content), [])


def test_a_full_segment_that_is_still_to_be_cut_is_copied(folder: Path) -> None:
    """The broker was killed between a roll and the cut of the preallocated file."""
    path = folder / names.offset_name(10, names.LOG)
    content = path.read_bytes()
    path.write_bytes(content + bytes(5000))
    entry, links, notes = taken(folder, is_clean=False)
    assert (links, notes) == ({0: True, 10: False, 20: False}, [])
    assert entry.files[1].size_bytes == len(content)
    assert entry.log_end_offset == 30


def test_a_log_without_records(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / names.offset_name(42, names.LOG)).write_bytes(bytes(100))
    entry, _, _ = taken(folder, high_watermark=42)
    assert (entry.log_start_offset, entry.log_end_offset) == (42, 42)
    assert [(each.base_offset, each.size_bytes) for each in entry.files] == [(42, 0)]


def test_a_torn_end_after_a_crash_is_left_out(folder: Path) -> None:
    path = folder / names.offset_name(20, names.LOG)
    path.write_bytes(path.read_bytes()[:-3])
    (folder / names.offset_name(30, names.LOG)).write_bytes(b"")
    entry, _, notes = taken(folder, is_clean=False)
    assert entry.log_end_offset == 29
    assert [each.base_offset for each in entry.files] == [0, 10, 20]
    assert len(notes) == 1
    assert "no whole batch at position" in notes[0]


@pytest.mark.parametrize(("base", "is_clean"), [(20, True), (10, False), (0, True)])
def test_damage_refuses_the_snapshot(folder: Path, base: int, is_clean: bool) -> None:
    path = folder / names.offset_name(base, names.LOG)
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=r"wrong CRC of the batch .* kbroker dump-log --verify"):
        taken(folder, is_clean=is_clean)


def test_a_folder_without_segments(tmp_path: Path) -> None:
    log = StoppedLog(tmp_path, 0, 0, 0, True)
    with pytest.raises(SnapshotError, match="has no segment"):
        list(snapshot_log(log, PartitionWriter(tmp_path)))


def test_offsets_that_go_back_are_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(batches(5, 2) + batches(5, 1))
    scan = scan_segment(path, path.stat().st_size, 5)
    assert (scan.valid_bytes, scan.next_offset) == (len(batches(5, 2)), 7)
    assert scan.problem is not None
    assert "comes after a later one" in scan.problem
