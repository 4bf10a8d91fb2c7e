"""Files that a crash left half done in a log's folder are completed or deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.recovery.leftovers import parse_name, settle_temporary_files
from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError
from kbroker.protocol.batches.batch_builder import build_batch
from tests.log.recovery.folders import NOW_MS, fill, open_log


def test_deleted_and_cleaned_files_go(tmp_path: Path) -> None:
    folder = tmp_path / "topic-0"
    folder.mkdir()
    for name in ("00000000000000000007.log.deleted", "00000000000000000009.index.cleaned"):
        (folder / name).write_bytes(b"x")
    open_log(tmp_path)
    assert not list(folder.glob("*.deleted")) + list(folder.glob("*.cleaned"))


def test_a_finished_swap_takes_the_place_of_the_segments_it_covers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    bases = list(log.segments.base_offsets)
    log.close()
    folder = tmp_path / "topic-0"
    merged = b"".join(
        (folder / names.offset_name(base, names.LOG)).read_bytes() for base in bases[:2]
    )
    for kind in (names.INDEX, names.TIME_INDEX):
        (folder / (names.offset_name(0, kind) + names.SWAP)).write_bytes(b"")
    (folder / (names.offset_name(0, names.LOG) + names.SWAP)).write_bytes(merged)
    log = open_log(tmp_path, clean_shutdown=True, recovery_point=120)
    assert log.segments.base_offsets == [0, *bases[2:]]
    assert log.segments.first.size == len(merged)
    assert log.log_end_offset == 120


def test_an_unfinished_swap_group_is_thrown_away(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.close()
    folder = tmp_path / "topic-0"
    (folder / "00000000000000000000.log.swap").write_bytes(b"half")
    (folder / "00000000000000000000.log.cleaned").write_bytes(b"")
    log = open_log(tmp_path, clean_shutdown=True)
    assert log.log_end_offset == 20
    assert not list(folder.glob("*.swap"))


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (f"{7:020d}.log", (7, ".log", "")),
        (f"{7:020d}.txnindex.deleted", (7, ".txnindex", ".deleted")),
        (f"{7:020d}.snapshot", (7, ".snapshot", "")),
        (f"{7:020d}.checkpoint", None),
        ("7.log", None),
        ("leader-epoch-checkpoint", None),
    ],
)
def test_only_the_files_of_a_log_count(name: str, parsed: tuple[int, str, str] | None) -> None:
    assert parse_name(name) == parsed


def test_what_counts_is_listed_with_its_size_and_the_rest_stays(tmp_path: Path) -> None:
    for name, size in ((f"{0:020d}.log", 5), (f"{0:020d}.index", 8), ("other", 1)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / f"{0:020d}.timeindex.deleted").touch()
    assert settle_temporary_files(str(tmp_path)) == {(0, ".log"): 5, (0, ".index"): 8}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{0:020d}.index",
        f"{0:020d}.log",
        "other",
    ]


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").mkdir()
    with pytest.raises(LogDirectoryError, match="directory"):
        settle_temporary_files(str(tmp_path))


def swap(folder: Path, base: int, offsets: range) -> None:
    batches = [build_batch([(NOW_MS, b"k", b"v", [])], base_offset=offset) for offset in offsets]
    (folder / f"{base:020d}.log.swap").write_bytes(b"".join(batches))
    (folder / f"{base:020d}.index.swap").touch()


def test_a_swap_covers_the_segments_up_to_its_last_offset(tmp_path: Path) -> None:
    """The segment after it, and every producer snapshot, are kept."""
    swap(tmp_path, 0, range(12))
    for base in (0, 5, 11, 12):
        for kind in (".log", ".index", ".snapshot"):
            (tmp_path / f"{base:020d}{kind}").write_bytes(b"old")
    found = settle_temporary_files(str(tmp_path))
    assert sorted(offset for offset, kind in found if kind == ".log") == [0, 12]
    assert sorted(offset for offset, kind in found if kind == ".snapshot") == [0, 5, 11, 12]
    assert (tmp_path / f"{0:020d}.log").stat().st_size == found[0, ".log"] > 3
    assert (tmp_path / f"{0:020d}.index").stat().st_size == found[0, ".index"] == 0
    assert settle_temporary_files(str(tmp_path)) == found


def test_a_swap_before_the_group_that_was_not_complete_is_finished(tmp_path: Path) -> None:
    swap(tmp_path, 0, range(3))
    swap(tmp_path, 10, range(10, 13))
    for base in (0, 10):
        (tmp_path / f"{base:020d}.log").write_bytes(b"old")
    (tmp_path / f"{10:020d}.timeindex.cleaned").touch()
    settle_temporary_files(str(tmp_path))
    assert (tmp_path / f"{0:020d}.log").read_bytes() != b"old"
    assert (tmp_path / f"{10:020d}.log").read_bytes() == b"old"
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".swap", ".cleaned")]
