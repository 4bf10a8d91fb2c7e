"""The `.lock` of a log directory: one broker at a time, be it this one or Apache Kafka."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

from kbroker.log.storage.files import OPEN_FLAGS, LogDirectoryError
from kbroker.model import StartupError

LOCK_FILE: Final = ".lock"


class DirectoryLock:
    """The `.lock` of a log directory, held as long as the broker runs. The system frees it when the
    process dies.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / LOCK_FILE
        self._fd = -1

    def acquire(self) -> None:
        """Raises StartupError if another broker has it, LogDirectoryError if it cannot be made."""
        while True:
            try:
                fd = os.open(self.path, OPEN_FLAGS | os.O_CREAT, 0o644)
            except OSError as error:
                raise LogDirectoryError(self.path, "create", error) from error
            try:
                self._lock(fd)
                if os.fstat(fd).st_ino == os.stat(self.path).st_ino:
                    self._fd = fd
                    return
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # the last holder removed the file while we waited for it: try again

    def _lock(self, fd: int) -> None:
        try:
            if sys.platform != "win32":
                # flock keeps out another broker of this process too; lockf is what Java's
                # FileChannel.lock takes, so a Kafka on the same directory is seen as well
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StartupError(
                    f"log directory {self.path.parent} is locked by another broker ({self.path}): "
                    "stop that broker or give this one a log.dirs of its own"
                ) from error
            raise LogDirectoryError(self.path, "lock", error) from error

    def release(self) -> None:
        """Give the lock up and remove the file, as Kafka does at a clean stop."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._fd)
        self._fd = -1
