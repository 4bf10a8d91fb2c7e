"""Checks whether a range of a file is in the page cache, so that sendfile does not wait for a disk.

Linux can count the cached pages of a range (cachestat, since 6.5); elsewhere the first and last
byte are tested, which misses evicted pages in the middle.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_CACHESTAT: Final = 451
"""Its system call number; the same on every architecture that is listed below."""

_MACHINES: Final = frozenset({"x86_64", "aarch64", "armv7l", "riscv64", "ppc64le", "s390x"})

PagesOf = Callable[[int, int, int], int]
"""(descriptor, position, count) -> how many of the range's pages are cached. Raises OSError."""


def system_pages_of() -> PagesOf | None:
    """The system call, with its own buffers, for one thread; None where the system does not have
    it.
    """
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return None
    try:
        import ctypes

        # PyDLL: the call never blocks, so it need not release the interpreter's lock
        call = ctypes.PyDLL(None, use_errno=True).syscall
    except (ImportError, OSError, AttributeError):
        return None
    call.restype = ctypes.c_long
    call.argtypes = [
        ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint
    ]  # fmt: skip
    wanted, found = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
    wanted_at, found_at = ctypes.addressof(wanted), ctypes.addressof(found)

    def pages_of(fd: int, position: int, count: int) -> int:
        wanted[0], wanted[1] = position, count
        if call(_CACHESTAT, fd, wanted_at, found_at, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(found[0])

    return pages_of


class PageCache:
    """pages_of: None where the system cannot count pages. Not locked: each node has its own, for
    its loop thread.
    """

    __slots__ = ("_page_bytes", "_pages_of")

    @classmethod
    def of_system(cls) -> PageCache:
        """A page cache with the system call if available. Imports ctypes then (5 ms), so not for
        the loop of a serving node.
        """
        return cls(system_pages_of())

    def __init__(self, pages_of: PagesOf | None) -> None:
        self._pages_of = pages_of
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

    def holds(self, fd: int, position: int, count: int) -> bool:
        """Whether all of the range is in memory; count > 0. True where the file system cannot tell.

        Pages that are being read count as cached, except the last.
        """
        last = position + count - 1
        if not _is_there(fd, last):
            return False
        if self._pages_of is not None:
            try:
                return self._pages_of(fd, position, count) >= self._pages(position, last)
            except OSError:  # an older system, or one that forbids the call
                self._pages_of = None
        return _is_there(fd, position)

    def was_read(self, fd: int, position: int, count: int) -> None:
        """The range was just read. If none of its pages is cached after that, the file system
        caches them elsewhere, and counting is useless from now on.
        """
        if self._pages_of is not None and count > 0:
            try:
                counts = self._pages_of(fd, position, count) > 0
            except OSError:
                counts = False
            if not counts:
                self._pages_of = None

    def _pages(self, first: int, last: int) -> int:
        return last // self._page_bytes - first // self._page_bytes + 1


def _is_there(fd: int, position: int) -> bool:
    if _NO_WAIT is None:
        return True
    try:
        os.preadv(fd, [bytearray(1)], position, _NO_WAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
