"""One simulation: a seed, one heap of (time, event), a network, and a trace of what happened.

Every random number comes from the seed, in a stream of its own per purpose: another fault draws no
other delays. A failure is one line: the seed, what was wrong, when, and the command that replays it
(`tests.sim.replay`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim.network import Conditions, SimNetwork
from tests.sim.timers import START_MS, SimTimers

REPLAY = "python -m tests.sim.replay"


class SimulationFailure(AssertionError):
    """A seed that failed; the text is the line."""


class Simulation:
    """is_traced: keep what `note` is told; it costs time."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.seed = seed
        self.timers = SimTimers()
        self.network = SimNetwork(
            self.timers, self.random("network"), Conditions.drawn(self.random("conditions"))
        )
        self.is_traced = is_traced
        self.trace: list[str] = []
        self.step_count = 0

    def random(self, purpose: str) -> Random:
        """A stream of random numbers, the same for the same seed and purpose."""
        return Random(f"{self.seed} {purpose}")

    @property
    def elapsed_ms(self) -> int:
        """Virtual time since the start."""
        return self.timers.time_ms - START_MS

    def note(self, text: str) -> None:
        """One line of the trace."""
        if self.is_traced:
            self.trace.append(f"{self.elapsed_ms:>6} {text}")

    def run(self, ms: int) -> None:
        """Let virtual time pass, event after event."""
        end_ms = self.timers.time_ms + ms
        run_next = self.timers.run_next
        while run_next(end_ms):
            self.step_count += 1
        self.timers.time_ms = end_ms

    def run_until(self, is_done: Callable[[], bool], limit_ms: int) -> bool:
        """Let time pass until is_done, which is asked after each event; False if limit_ms passed
        before.
        """
        end_ms = self.timers.time_ms + limit_ms
        while not is_done():
            if not self.timers.run_next(end_ms):
                self.timers.time_ms = end_ms
                return is_done()
            self.step_count += 1
        return True


def failure_line(name: str, seed: int, simulation: Simulation, error: BaseException) -> str:
    """The one line of a failed seed. name: of the simulation, as `tests.sim.replay` knows it."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, AssertionError):
        text = f"{type(error).__name__}: {text}"
    return f"seed {seed} after {simulation.elapsed_ms} ms: {text}; replay: {REPLAY} {name} {seed}"
