"""Mutes a connection: it starts no request for a time, because its client exceeded a quota
(KIP-219).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Muting:
    """The muting of one connection. on_over: called when the time has passed; `is_muted` is kept
    until `end`.
    """

    __slots__ = ("_loop", "_on_over", "_timer", "_until", "is_muted")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_over: Callable[[], None]) -> None:
        self._loop = loop
        self._on_over: Callable[[], None] | None = on_over
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self.is_muted = False

    def begin(self, milliseconds: int) -> None:
        """Mute for that time; a longer mute in progress is not shortened."""
        until = self._loop.time() + milliseconds / 1000
        if self._on_over is None or (self.is_muted and until <= self._until):
            return
        if self._timer is not None:
            self._timer.cancel()
        self.is_muted = True
        self._until = until
        self._timer = self._loop.call_at(until, self._on_over)

    def end(self) -> None:
        """Requests may start again."""
        self.is_muted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The connection is closed. Leaves no reference cycle."""
        self.end()
        self._on_over = None
