"""A single log that cannot be opened is distinguished from a disk that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import CheckpointError
from kbroker.log.storage.damaged import DamagedLog, DamagedLogError, damage_told_by
from kbroker.log.storage.files import LogDirectoryError

DIRECTORY = Path("/data")


def disk_error(number: int) -> LogDirectoryError:
    return LogDirectoryError("/data/t-0/0.log", "open", OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    "number",
    [errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP],
)
def test_a_file_that_the_system_refuses_harms_its_log_only(number: int) -> None:
    said = damage_told_by(disk_error(number), DIRECTORY)
    assert said is not None and "/data/t-0/0.log" in said and "\n" not in said


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_a_disk_that_fails_is_no_damage_of_a_log(number: int) -> None:
    assert damage_told_by(disk_error(number), DIRECTORY) is None


def test_after_a_clean_stop_the_line_names_the_file_to_remove() -> None:
    said = damage_told_by(DamagedLogError("/data/t-0/0.log is empty"), DIRECTORY)
    assert said is not None
    assert "/data/t-0/0.log is empty" in said
    assert str(DIRECTORY / names.DAMAGED_LOGS) in said
    assert "\n" not in said


def test_a_checkpoint_names_itself() -> None:
    said = damage_told_by(CheckpointError(Path("/data/t-0/x"), "version 9"), DIRECTORY)
    assert said is not None and "version 9" in said and "remove" in said


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOENT, "x"), KeyError("x")])
def test_a_surprise_is_no_damage(error: Exception) -> None:
    assert damage_told_by(error, DIRECTORY) is None


@pytest.mark.parametrize(
    ("name", "is_future"),
    [("t-0", False), ("t-0." + "0" * 32 + "-future", True), ("t-0." + "0" * 32 + "-stray", False)],
)
def test_a_copy_that_was_being_moved(name: str, is_future: bool) -> None:
    assert DamagedLog(DIRECTORY / name, 0, 0, True).is_future is is_future
