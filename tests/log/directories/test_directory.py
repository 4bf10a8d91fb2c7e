"""One log directory: what its checkpoints say, damaged logs, and files that are due."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.directories.directory import LogDirectory, remove_all
from kbroker.log.manager import LogManager
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.damaged import DamagedLog
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from tests.log.directories.manager import NOW_MS, fill, start

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    return start(tmp_path)


def directory_of(manager: LogManager, key: TopicPartition) -> LogDirectory:
    directory = manager.hosting(key)
    assert directory is not None
    return directory


def test_the_recovery_point_of_a_closed_segment_is_the_log_s(manager: LogManager) -> None:
    log = fill(manager, A)
    log.roll(NOW_MS)
    log.flush()
    assert directory_of(manager, A).recovery_points() == {A: 3}
    fill(manager, A, 1)
    log.flush()
    assert log.recovery_point == 4
    assert directory_of(manager, A).recovery_points() == {A: 3}
    log.release()
    log.closed = True
    assert directory_of(manager, A).recovery_points() == {A: 4}


def test_while_removed_segments_wait_for_their_names_the_start_is_written(
    manager: LogManager,
) -> None:
    log = fill(manager, A)
    log.roll(NOW_MS)
    log.log_start_offset = 3
    log.segments.remove([log.segments.first], due_ms=NOW_MS)
    assert directory_of(manager, A).start_offsets() == {A: 3}
    log.jobs.settle()
    assert directory_of(manager, A).start_offsets() == {}


def damaged(directory: LogDirectory, key: TopicPartition, *, was_clean: bool = True) -> Path:
    folder = directory.path / str(key)
    folder.mkdir(parents=True)
    (folder / "file").touch()
    directory.damaged[key] = DamagedLog(folder, 7, 5, was_clean)
    return folder


def test_only_logs_that_were_closed_in_order_are_kept_in_mind(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path)
    damaged(directory, A)
    damaged(directory, B, was_clean=False)
    directory.write_damaged()
    path = tmp_path / names.DAMAGED_LOGS
    assert read_offsets(path) == {A: 7}
    assert directory.start_offsets() == {A: 5, B: 5}
    directory.damaged.clear()
    directory.write_damaged()
    assert not path.exists()
    directory.write_damaged()


def test_a_damaged_log_is_deleted_as_any_other(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path)
    folder = damaged(directory, A)
    directory.write_damaged()
    assert directory.schedule_delete_damaged(A, unique="0" * 32, due_ms=NOW_MS)
    assert not folder.exists() and not (tmp_path / names.DAMAGED_LOGS).exists()
    assert directory.take_due(NOW_MS - 1) == []
    (due,) = directory.take_due(NOW_MS)
    assert due.endswith("-delete") and Path(due, "file").exists()
    assert directory.take_due(NOW_MS) == []
    assert not directory.schedule_delete_damaged(A, unique="0" * 32, due_ms=NOW_MS)


def test_files_and_folders_that_are_due_are_taken_once(manager: LogManager) -> None:
    log = fill(manager, A)
    log.roll(NOW_MS)
    log.segments.remove([log.segments.first], due_ms=NOW_MS)
    log.jobs.settle()
    directory = directory_of(manager, A)
    due = directory.take_due(NOW_MS)
    assert {Path(path).suffix for path in due} == {".deleted"} and len(due) == 3
    assert directory.take_due(NOW_MS) == []
    remove_all(due)
    assert not [path for path in due if Path(path).exists()]


def test_all_are_removed_before_the_first_fault_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "inner").touch()
    file.touch()
    fault = LogDirectoryError(folder, "delete", OSError(5, "Input/output error"))

    def fail(path: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.directories.directory.remove_tree", fail)
        with pytest.raises(LogDirectoryError):
            remove_all([str(folder), str(tmp_path / "missing"), str(file)])
    assert folder.exists() and not file.exists()
    remove_all([str(folder), str(file)])
    assert not folder.exists()


@pytest.mark.parametrize("content", ["", "not a number\n", "0\n5\na 0 1\n"])
def test_a_checkpoint_that_is_lost_costs_only_time(tmp_path: Path, content: str) -> None:
    directory = LogDirectory(tmp_path)
    assert directory.read_or_forget(names.RECOVERY_POINTS) is None
    (tmp_path / names.RECOVERY_POINTS).write_text(content)
    assert directory.read_or_forget(names.RECOVERY_POINTS) is None
    (tmp_path / names.RECOVERY_POINTS).write_text("0\n1\na 0 1\n")
    assert directory.read_or_forget(names.RECOVERY_POINTS) == {A: 1}
