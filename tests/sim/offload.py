"""`ports.Offload` without threads: work is run at once, or when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.ports import Offload, OffloadFactory, Random, Timers

Work = Callable[[], None]
Then = Callable[[OSError | None], None]


def run_inline(work: Work, then: Then) -> None:
    """Runs both at once, within the call."""
    failure: OSError | None = None
    try:
        work()
    except OSError as error:
        failure = error
    then(failure)


class HeldOffload:
    """A slow disk or a busy thread: work is held, in order, until the test runs it. It may fail.

    held: the work that waits. done: how many pieces were run.
    """

    def __init__(self) -> None:
        self.held: list[tuple[Work, Then]] = []
        self.done = 0

    def __call__(self, work: Work, then: Then) -> None:
        self.held.append((work, then))

    def run_one(self, failure: OSError | None = None) -> bool:
        """Run the oldest piece; False if there is none. failure: reported after the work was run,
        in place of its own outcome.
        """
        if not self.held:
            return False
        work, then = self.held.pop(0)
        self.done += 1
        if failure is None:
            run_inline(work, then)
        else:
            work()
            then(failure)
        return True

    def run(self) -> None:
        """Run all that is held now; what that adds stays held."""
        for _ in range(len(self.held)):
            self.run_one()

    def close(self) -> None:
        """Held work stays held, so that a test can end it after the close."""


class DelayedOffload:
    """Workers that take random, simulated time, and may overtake each other: what is given is run
    then, in a turn of its own. max_delay_ms: of most of the work; a few take ten times as long.
    """

    def __init__(self, timers: Timers, random: Random, *, max_delay_ms: float = 20.0) -> None:
        self._timers = timers
        self._random = random
        self._max_delay_ms = max_delay_ms
        self._is_closed = False

    def __call__(self, work: Work, then: Then) -> None:
        if self._is_closed:
            self._timers.call_later(0, lambda: then(OSError("closed")))
            return
        delay_ms = self._random.uniform(0, self._max_delay_ms)
        if self._random.random() < 0.05:
            delay_ms *= 10
        self._timers.call_later(delay_ms, lambda: run_inline(work, then))

    def close(self) -> None:
        """What was given before is still run."""
        self._is_closed = True


class _Closable:
    """A ClosableOffload over an Offload; nothing is under way when it is closed."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    def __call__(self, work: Work, then: Then) -> None:
        self._offload(work, then)

    def close(self) -> None:
        pass


def always(offload: Offload) -> OffloadFactory:
    """A factory that gives the same Offload for every purpose."""
    return lambda name, threads: _Closable(offload)
