"""The `.lock` of a log directory, which only one broker at a time can hold, kbroker or Apache
Kafka.
"""

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
    """The `.lock` of a log directory, held as long as the broker runs. The system releases it when
    the process dies.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / LOCK_FILE
        self._fd = -1

    def acquire(self) -> None:
        """Raises StartupError if another broker holds it, LogDirectoryError if the file cannot be
        created.
        """
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
            os.close(fd)  # the last holder removed the file meanwhile: try again

    def _lock(self, fd: int) -> None:
        try:
            if sys.platform != "win32":
                # flock also excludes another broker of this process; lockf is what Java's
                # FileChannel.lock uses, so it excludes a Kafka on the same directory
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
        """Release the lock and remove the file, as Kafka does at a clean stop."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._fd)
        self._fd = -1
