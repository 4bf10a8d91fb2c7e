"""A reserve of file descriptors for the files of logs, in case connections use up all others.

A process without a free descriptor cannot open a log file. That is no disk failure, so it takes no
log directory offline. To prevent it the reserve holds descriptors of the null device open: if an
open fails for lack of a descriptor, one of them is closed and the open is repeated. While the
reserve is not full, connections are refused (`server/network/descriptors`). Descriptors belong to
the process, and worker threads open files too: hence one reserve for all brokers of a process, with
a lock. Its size is the largest that one of the brokers requested.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

T = TypeVar("T")

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process, or a system, without a free descriptor."""


class DescriptorReserve:
    """See the module docstring."""

    __slots__ = ("_lock", "_sizes", "_spare")

    def __init__(self) -> None:
        self._lock = Lock()
        self._sizes: list[int] = []  # requested by brokers of this process
        self._spare: list[int] = []

    @property
    def missing(self) -> int:
        """How many descriptors were closed for an open and not replaced yet."""
        return max(self._sizes, default=0) - len(self._spare)

    def hold(self, size: int) -> None:
        """A broker starts: hold at least that many descriptors."""
        with self._lock:
            self._sizes.append(size)
        self.refill()

    def let_go(self, size: int) -> None:
        """Undo `hold`: a broker stopped."""
        with self._lock:
            self._sizes.remove(size)
            while self.missing < 0:
                os.close(self._spare.pop())

    def refill(self) -> bool:
        """Reopen the descriptors that were closed. Returns whether the reserve is full."""
        if self.missing <= 0:
            return True
        with self._lock:
            while self.missing > 0:
                try:
                    fd = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                except OSError:
                    return False
                self._spare.append(fd)
        return True

    def lend(self) -> bool:
        """Close one descriptor, so that the next open succeeds. Returns whether there was one.
        Callable in any thread.
        """
        with self._lock:
            if not self._spare:
                return False
            os.close(self._spare.pop())
        return True


RESERVE: Final = DescriptorReserve()


def opening(attempt: Callable[[], T]) -> T:
    """The result of attempt, which opens a file or a directory. It is repeated while it fails for
    lack of a descriptor and the reserve is not empty. Raises what attempt raises.
    """
    while True:
        try:
            return attempt()
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not RESERVE.lend():
                raise
