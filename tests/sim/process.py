"""The process of one simulated node: its clocks, and whether it runs, is paused, or was killed.

Everything that happens in a node happens within `SimProcess.run`: timers, messages that arrive,
work of the disk that is done. A paused process (SIGSTOP, a long garbage collection, a virtual
machine that is moved) runs nothing; when it resumes, all that was due meanwhile happens at once. A
killed one never runs again: a restart makes a new process, with another origin of its monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim.timers import CLOCKS_AHEAD_MS, SimTimer, SimTimers

MAX_ORIGIN_MS = 1_000_000_000

AfterStep = Callable[[], None]
"""Called after each step of a process: carries out checks."""


class SimProcess:
    """`ports.Timers` of one process on the simulation's heap. after_step: see `AfterStep`."""

    __slots__ = (
        "_after_step",
        "_heap",
        "_held",
        "_origin_ms",
        "_random",
        "is_alive",
        "is_paused",
        "wall_jump_ms",
    )

    def __init__(self, heap: SimTimers, random: Random, after_step: AfterStep) -> None:
        self.is_alive = True
        self.is_paused = False
        self.wall_jump_ms = 0
        self._after_step = after_step
        self._heap = heap
        self._random = random
        self._origin_ms = random.randrange(MAX_ORIGIN_MS) - heap.time_ms
        self._held: list[tuple[SimTimer | None, Callable[[], None]]] = []

    # -- ports.Timers -----------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The wall clock, which `jump` sets wrong."""
        return self._heap.time_ms + self.wall_jump_ms

    def monotonic_ms(self) -> int:
        """The monotonic clock: its origin is unknown, and it does not jump."""
        return self._heap.time_ms + self._origin_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        """Run callback in this process, if it is alive then."""
        timer = self._heap.call_later(max(delay_ms, 0), lambda: self._run(timer, callback))
        return timer

    # -- steps ------------------------------------------------------------------------------------

    def run(self, step: Callable[[], None]) -> None:
        """A step of this process: now, when it resumes, or never."""
        self._run(None, step)

    def _run(self, timer: SimTimer | None, step: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._held.append((timer, step))
            return
        step()
        self._after_step()

    # -- faults -----------------------------------------------------------------------------------

    def jump(self) -> None:
        """Set the wall clock forward or back; timers fire when they would have."""
        self.wall_jump_ms = self._random.choice(CLOCKS_AHEAD_MS)

    def pause(self) -> None:
        """Stop as by SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue: what was due happens now, in its order, or the timers before the messages."""
        self.is_paused = False
        held, self._held = self._held, []
        if self._random.random() < 0.5:
            held.sort(key=lambda each: each[0] is None)
        for timer, step in held:
            if timer is None or not timer.cancelled:
                self._run(timer, step)

    def kill(self) -> None:
        """End as by SIGKILL."""
        self.is_alive = False
        self._held.clear()
