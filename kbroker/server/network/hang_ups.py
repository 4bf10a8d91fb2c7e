"""Detects that a peer has left while its connection is not read.

A connection that is not read does not see the end of the stream, and one that sends nothing does
not see a reset either. On Linux the kernel reports both without a read (EPOLLRDHUP, EPOLLHUP), even
behind unread bytes. One epoll instance serves all connections of a broker, and the event loop
watches that instance. A connection is registered only while it is not read, so an ordinary request
has no cost. On other systems nothing is registered: the connection is closed when it is read again,
or at `connections.max.idle.ms`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import select
import sys
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

MAX_EVENTS: Final = 256
"""How many are handled in one turn of the event loop; the rest follows in the next."""


class HangUp(enum.Enum):
    """How a peer left."""

    END_OF_STREAM = enum.auto()
    """It ended its stream. It may still read."""
    RESET = enum.auto()
    """Data sent to it does not arrive."""


class HangUpWatch:
    """See the module docstring. Belongs to the thread of the event loop."""

    __slots__ = ("_epoll", "_loop", "_watched")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, Callable[[HangUp], None]] = {}
        self._epoll = None
        if sys.platform == "linux":
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._poll)

    def watch(self, fd: int, on_hang_up: Callable[[HangUp], None]) -> None:
        """Call on_hang_up when the peer of this socket leaves: once for the end of its stream, once
        for a reset.
        """
        if sys.platform == "linux" and self._epoll is not None:
            self._epoll.register(fd, select.EPOLLRDHUP)
            self._watched[fd] = on_hang_up

    def unwatch(self, fd: int) -> None:
        """Undo `watch`, before the socket is closed. Has no effect if it is not watched."""
        if self._watched.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching. Can be called more than once."""
        epoll, self._epoll = self._epoll, None
        self._watched.clear()
        if epoll is not None:
            self._loop.remove_reader(epoll.fileno())
            epoll.close()

    def _poll(self) -> None:
        if sys.platform != "linux" or self._epoll is None:
            return
        for fd, events in self._epoll.poll(0, MAX_EVENTS):
            on_hang_up = self._watched.get(fd)
            if on_hang_up is None:
                continue
            if events & (select.EPOLLHUP | select.EPOLLERR):
                self.unwatch(fd)
                on_hang_up(HangUp.RESET)
            else:
                # the condition persists: report only a reset from now on
                self._epoll.modify(fd, 0)
                on_hang_up(HangUp.END_OF_STREAM)
