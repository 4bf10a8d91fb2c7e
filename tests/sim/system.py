"""The modules `os` and `fcntl` as kbroker sees them on a simulated disk."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk


class SimOs:
    """What `kbroker.log.storage.files` uses of `os`."""

    def __init__(self, disk: SimDisk) -> None:
        self.path = SimpleNamespace(
            isdir=disk.isdir, dirname=os.path.dirname, join=os.path.join, exists=self._exists
        )
        self._disk = disk
        self.open, self.close, self.write = disk.open, disk.close, disk.write_next
        self.pread, self.preadv, self.pwrite = disk.pread, disk.preadv, disk.pwrite
        self.lseek = disk.lseek
        self.ftruncate, self.fsync = disk.ftruncate, disk.fsync
        self.stat, self.fstat, self.scandir = disk.stat, disk.fstat, disk.scandir
        self.replace, self.unlink, self.rmdir = disk.replace, disk.unlink, disk.unlink
        self.makedirs, self.utime, self.fspath = disk.makedirs, disk.utime, os.fspath
        self.chmod = disk.chmod

    def _exists(self, path: Any) -> bool:
        try:
            self._disk.stat(path)
        except FileNotFoundError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        """The constants of `os`, which are kept once they were asked for."""
        if name.startswith(("O_", "RWF_", "SEEK_")):
            value = self.__dict__[name] = getattr(os, name)
            return value
        raise AttributeError(f"SimDisk has no os.{name}")


class SimLocks:
    """What `kbroker.log.storage.directory_lock` uses of `fcntl`."""

    LOCK_EX, LOCK_NB = 2, 4

    def __init__(self, disk: SimDisk) -> None:
        self.flock = self.lockf = disk.lock
