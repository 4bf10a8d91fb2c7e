"""A small disk for one node, a tmpfs that can be filled; and fsync that takes long."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.cluster.run_names import unmount

FILLER: Final = "filler"
CHUNK_BYTES: Final = 1 << 16
STRACE_TIMEOUT_S: Final = 10.0


class SmallDisk:
    """A tmpfs mounted at `path`. name: shown as its device, so that a later run knows whose it
    is.
    """

    def __init__(self, name: str, path: Path, size_bytes: int) -> None:
        self.path = path
        self._name = name
        self._size_bytes = size_bytes
        self._is_mounted = False

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes},mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, self._name, str(self.path)]
        subprocess.run(command, check=True)
        self._is_mounted = True
        return self

    def fill(self) -> None:
        """Leave no byte free."""
        fd = os.open(self.path / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(fd, bytes(CHUNK_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(fd)

    def free(self) -> None:
        """End what `fill` began."""
        (self.path / FILLER).unlink(missing_ok=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_mounted:
            self._is_mounted = False
            unmount(str(self.path))


def strace_problem() -> str | None:
    """None if fsync can be delayed here, else why not."""
    return None if shutil.which("strace") else "needs strace"


class SlowSync:
    """While it is open, each fsync of a process takes delay_ms longer."""

    def __init__(self, pid: int, delay_ms: int) -> None:
        calls = "fsync,fdatasync"
        self._command = ["strace", "--quiet=all", "-f", "-p", str(pid), "-o", os.devnull]
        self._command += ["-e", f"trace={calls}"]
        self._command += ["-e", f"inject={calls}:delay_enter={delay_ms * 1000}"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()  # strace lets its process go on
        try:
            process.wait(STRACE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
