"""Descriptors that are kept for the files of logs while connections take all others.

A process that has no descriptor left cannot open a log file. That is no failure of the disk, so no
log directory goes offline for it. To keep it from happening the reserve holds descriptors of the
null device open: if an open fails for lack of a descriptor, one of these is closed and the open
is repeated. While the reserve is not full, connections are refused (`server/network/descriptors`).
Descriptors belong to the process, and worker threads open files too: hence one reserve for all
brokers of a process, with a lock. It is as large as the largest that one of them asked for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

T = TypeVar("T")

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the system, has no more."""


class DescriptorReserve:
    """See the module docstring."""

    __slots__ = ("_lock", "_sizes", "_spare")

    def __init__(self) -> None:
        self._lock = Lock()
        self._sizes: list[int] = []  # that brokers of this process asked for
        self._spare: list[int] = []

    @property
    def missing(self) -> int:
        """How many descriptors were lent and could not be replaced."""
        return max(self._sizes, default=0) - len(self._spare)

    def hold(self, size: int) -> None:
        """Keep so many from now on: a broker starts."""
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
        """Replace what was lent. Returns whether the reserve is full."""
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
        """Close one, so that the next open finds a descriptor. Returns whether there was one. In
        any thread.
        """
        with self._lock:
            if not self._spare:
                return False
            os.close(self._spare.pop())
        return True


RESERVE: Final = DescriptorReserve()


def opening(attempt: Callable[[], T]) -> T:
    """The result of attempt, which opens a file or a directory. It is repeated while it fails for
    lack of a descriptor and the reserve has one. Raises what attempt raises.
    """
    while True:
        try:
            return attempt()
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not RESERVE.lend():
                raise
