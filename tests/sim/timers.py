"""`ports.Timers` on virtual time, and the heap of (time, event) on which simulations run.

A simulation of several nodes has one `SimTimers` as its heap; each node's process sees it through
`tests.sim.process.SimProcess`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

START_MS = 1_700_000_000_000
CLOCKS_AHEAD_MS = (-3 * 86_400_000, -3_600_000, -1_500, 0, 1_500, 3_600_000, 3 * 86_400_000)
"""How wrong the wall clock may be; from the least to the most is less than offsets are kept."""


class SimTimer:
    """A handle; cancelled timers stay in the heap and do nothing."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimTimers:
    """Timers that fire when `advance` or `run_next` passes them."""

    def __init__(self) -> None:
        self.time_ms = START_MS
        self.wall_jump_ms = 0
        """How far the wall clock is set forward."""
        self._heap: list[tuple[float, int, SimTimer, Callable[[], None]]] = []
        self._count = 0

    def now_ms(self) -> int:
        return self.time_ms + self.wall_jump_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def jump(self, random: Random) -> None:
        """Set the wall clock forward or back; timers fire when they would have."""
        self.wall_jump_ms = random.choice(CLOCKS_AHEAD_MS)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        timer = SimTimer()
        self._count += 1
        heappush(self._heap, (self.time_ms + delay_ms, self._count, timer, callback))
        return timer

    def forget_all(self) -> None:
        """The process that set these timers has ended."""
        self._heap.clear()

    def run_next(self, end_ms: float) -> bool:
        """Fire the next timer that is due by end_ms; it sees the time it was set for. Returns
        False if there is none.
        """
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            due_ms, _, timer, callback = heappop(heap)
            if timer.cancelled:
                continue
            if due_ms > self.time_ms:
                self.time_ms = int(due_ms)
            callback()
            return True
        return False

    def advance(self, ms: int) -> None:
        """Let ms pass; a timer sees the time it was set for."""
        end_ms = self.time_ms + ms
        while self.run_next(end_ms):
            pass
        self.time_ms = end_ms
