"""The lock of a log directory: against another process, another broker of this one, and its own
removal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.log.storage.directory_lock import LOCK_FILE, DirectoryLock
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import StartupError


def test_a_taken_lock_stops_the_start_in_one_line(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from kbroker.log.storage.directory_lock import DirectoryLock\n"
            f"lock = DirectoryLock({str(tmp_path)!r}); lock.acquire()\n"
            "print('locked', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        with pytest.raises(StartupError) as caught:
            DirectoryLock(tmp_path).acquire()
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    finally:
        holder.communicate()
    lock = DirectoryLock(tmp_path)  # the system freed it with the process
    lock.acquire()
    with pytest.raises(StartupError):
        DirectoryLock(tmp_path).acquire()  # another broker in this process
    assert (tmp_path / ".lock").read_bytes() == b""
    lock.release()
    lock.release()
    assert not (tmp_path / ".lock").exists()


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match="create") as caught:
        DirectoryLock(tmp_path / "missing").acquire()
    assert str(tmp_path / "missing" / LOCK_FILE) in str(caught.value)


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last holder removes the file at its stop: a lock on the old file would have no effect."""
    real = DirectoryLock._lock
    locked: list[int] = []

    def lock(self: DirectoryLock, fd: int) -> None:
        if not locked:
            os.unlink(tmp_path / LOCK_FILE)
        locked.append(os.fstat(fd).st_ino)
        real(self, fd)

    monkeypatch.setattr(DirectoryLock, "_lock", lock)
    mine = DirectoryLock(tmp_path)
    mine.acquire()
    assert len(locked) == 2 and (tmp_path / LOCK_FILE).exists()
    with pytest.raises(StartupError):
        DirectoryLock(tmp_path).acquire()
    mine.release()


def test_a_refused_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    mine = DirectoryLock(tmp_path)
    mine.acquire()
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        with pytest.raises(StartupError):
            DirectoryLock(tmp_path).acquire()
    if opened:
        assert len(os.listdir("/proc/self/fd")) == opened
    mine.release()
