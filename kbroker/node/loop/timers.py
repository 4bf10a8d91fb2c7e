"""The `Timers` port over the running event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class LoopTimers:
    """The wall clock for stored timestamps, the loop's monotonic clock for deadlines."""

    __slots__ = ("_loop", "_wall_clock_ns")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._loop = loop
        self._wall_clock_ns = wall_clock_ns

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch."""
        return self._wall_clock_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """The loop's monotonic clock, in ms."""
        return int(self._loop.time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Run callback on the loop thread after delay_ms of monotonic time."""
        return self._loop.call_later(delay_ms / 1000, callback)
