"""Checkpoints: each directory has those of its own partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from tests.log.directories.manager import fill, start

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    """a in d1, b in d2; three records each."""
    manager = start(tmp_path)
    fill(manager, A)
    fill(manager, B)
    assert manager.directory_of(A) != manager.directory_of(B)
    return manager


def read(manager: LogManager, key: TopicPartition, name: str) -> dict[TopicPartition, int]:
    directory = manager.directory_of(key)
    assert directory is not None
    return read_offsets(directory / name)


def test_recovery_points_stay_below_the_end_of_an_active_segment(manager: LogManager) -> None:
    for log in manager.logs.values():
        log.flush()
        assert log.recovery_point == 3
    manager.checkpoints.write_recovery_points()
    assert read(manager, A, names.RECOVERY_POINTS) == {A: 2}
    assert read(manager, B, names.RECOVERY_POINTS) == {B: 2}


def test_high_watermarks_end_with_their_log_and_are_read_again(manager: LogManager) -> None:
    unknown = TopicPartition("unknown", 0)
    manager.checkpoints.write_high_watermarks({A: 2, B: 100, unknown: 5})
    assert manager.checkpoints.read_high_watermarks() == {A: 2, B: 3}
    assert read(manager, A, names.HIGH_WATERMARKS) == {A: 2}


def test_only_starts_behind_a_segment_s_base_are_written(manager: LogManager) -> None:
    manager.logs[A].log_start_offset = 2
    manager.checkpoints.write_start_offsets()
    assert read(manager, A, names.LOG_START_OFFSETS) == {A: 2}
    assert read(manager, B, names.LOG_START_OFFSETS) == {}


def test_a_thread_writes_values_not_the_state_of_then(manager: LogManager) -> None:
    (checkpoint, _) = manager.checkpoints.of_high_watermarks({A: 1})
    manager.logs[A].log_end_offset = 0
    checkpoint.write()
    assert read(manager, A, names.HIGH_WATERMARKS) == {A: 1}


@pytest.mark.parametrize("content", ["", "9\n", "0\n1\nx\n"])
def test_high_watermarks_that_cannot_be_read_are_found_again(
    manager: LogManager, content: str
) -> None:
    manager.checkpoints.write_high_watermarks({A: 1, B: 1})
    directory = manager.directory_of(A)
    assert directory is not None
    (directory / names.HIGH_WATERMARKS).write_text(content)
    assert manager.checkpoints.read_high_watermarks() == {B: 1}


def test_a_disk_that_fails_is_offline_and_the_other_is_written(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = manager.directory_of(A)
    assert broken is not None
    real = names.RECOVERY_POINTS
    (broken / real).unlink(missing_ok=True)

    def fail(path: Path, *_: object, **__: object) -> None:
        if path.is_relative_to(broken):
            raise LogDirectoryError(path, "write", OSError(5, "Input/output error"))
        written.append(path)

    written: list[Path] = []
    monkeypatch.setattr("kbroker.log.storage.checkpoint.atomic_write", fail)
    manager.checkpoints.write_recovery_points()
    assert list(manager.offline_directories) == [broken]
    assert [path.parent for path in written] == manager.directories
    assert list(manager.logs) == [B]
