"""Limits the file descriptors of connections: each has its socket and, while it sends file ranges,
a duplicate of it.

The other descriptors are for the files of logs (`log.storage.open_files`,
`log.storage.descriptor_reserve`) and for other files of a broker. A connection that would take one
of those is refused, and a response whose connection gets no second descriptor is read and written
instead of sent with sendfile.
"""

from __future__ import annotations

import sys
from typing import Final

from kbroker.log.storage.descriptor_reserve import RESERVE

if sys.platform != "win32":
    import resource

SPARE_SHARE: Final = 1 / 4
"""The share of `kbroker.descriptor.reserve` that is held open. The rest is for files that a broker
opens at any time: its listeners, locks, and the files that workers read and write.
"""

UNLIMITED: Final = sys.maxsize

MAX_SPARE_SHARE: Final = 1 / 8
"""The maximum share of the process's descriptors that is held open as a reserve, independent of
`kbroker.descriptor.reserve`.
"""

MIN_CONNECTIONS: Final = 16
"""The minimum number of descriptors for connections, independent of the process's limit."""


class DescriptorBudget:
    """limit: the descriptors of all connections together. spare: how many the reserve holds open
    for log files.
    """

    __slots__ = ("_spare", "limit", "used")

    def __init__(self, limit: int = UNLIMITED, *, spare: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self._spare = spare
        if spare:
            RESERVE.hold(spare)

    def take(self) -> bool:
        """Take a descriptor, unless log files would lack it. Returns whether it was taken."""
        if self.used >= self.limit or not RESERVE.refill():
            return False
        self.used += 1
        return True

    def refill(self) -> None:
        """Reopen descriptors that the reserve has lent, if possible."""
        RESERVE.refill()

    def close(self) -> None:
        """The broker stopped. Can be called more than once."""
        spare, self._spare = self._spare, 0
        if spare:
            RESERVE.let_go(spare)

    def give_back(self) -> None:
        """Return a descriptor that was taken."""
        self.used -= 1


def descriptor_budget(reserve: int, *, log_files: int) -> DescriptorBudget:
    """The budget of a broker under the limit of this process.

    reserve: `kbroker.descriptor.reserve`. log_files: how many segments may keep their file open.
    """
    limit = _descriptor_limit()
    spare = min(int(reserve * SPARE_SHARE), int(limit * MAX_SPARE_SHARE))
    return DescriptorBudget(room_for_connections(reserve, log_files), spare=spare)


def room_for_connections(reserve: int, log_files: int) -> int:
    """The process's limit without the files that logs may keep open, and without `reserve` for
    everything else.
    """
    limit = _descriptor_limit()
    if limit == UNLIMITED:
        return UNLIMITED
    return max(limit - log_files - reserve, MIN_CONNECTIONS)


def _descriptor_limit() -> int:
    """The process's limit on open descriptors."""
    if sys.platform == "win32":
        return UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
