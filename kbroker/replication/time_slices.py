"""Runs long work on the loop thread in small steps, with the loop's other work in between.

Each of ten thousand partitions is created or checked within a millisecond, but all of them together
would make every client wait for seconds. So steps are run for `SLICE_SECONDS`, then the loop does
other work. `TimeSlices` keeps the order of what was added; in `FairSlices` pieces of work that do
not concern one another take turns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from kbroker.model import InvariantError
from kbroker.ports import Deferred, Timers, broker_stopping
from kbroker.protocol.errors import KafkaError

R = TypeVar("R")

SLICE_SECONDS: Final = 0.005
"""A slice ends with the step during which this is over."""

STEP_ITEMS: Final = 32
"""Items that take some ten microseconds each between two pauses."""


class TimeSlices:
    """Steps of several pieces of work, strictly in the order in which the pieces came.

    timers: None takes all steps at once, within `add`. clock: seconds, steady, and not the loop's
    own, which stands still during a turn.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_is_working",
        "_planned",
        "_seconds",
        "_timers",
        "_waiting",
        "_work",
        "slices",
    )

    def __init__(
        self,
        timers: Timers | None,
        *,
        seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timers = timers
        self._seconds = seconds
        self._clock = clock
        self._work: deque[tuple[Iterator[object], Callable[[], None] | None]] = deque()
        self._waiting: deque[Deferred[None]] = deque()
        self._is_working = False
        self._planned = False
        self._closed = False
        self.slices = 0
        """The number of slices so far."""

    @property
    def idle(self) -> bool:
        """Whether no step is left."""
        return not self._work

    def add(self, steps: Iterator[object], then: Callable[[], None] | None = None) -> None:
        """Take these steps (each `next` is one) after all earlier ones, then call `then`.

        Begins at once where nothing is before them, so what fits into one slice is done on return.
        """
        if self._closed:
            return
        self._work.append((steps, then))
        if not self._is_working and (self._timers is None or not self._planned):
            self._slice()

    def when_done(self) -> Deferred[None]:
        """Resolves once the steps of all work added so far are taken; fails with
        BROKER_NOT_AVAILABLE if `close` drops them.
        """
        if self._closed:
            return Deferred.failed(broker_stopping())
        if not self._work:
            return Deferred.of(None)
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._work.append((iter(()), self._resolve_oldest))
        return done

    def _resolve_oldest(self) -> None:
        self._waiting.popleft().resolve(None)

    def finish(self) -> None:
        """Take all steps that are left, and from now on those of each `add` within it. Blocks."""
        self._timers = None
        if not self._is_working:
            self._slice()

    def close(self) -> None:
        """Take no further step, not even of work that is added later: `then` of `add` is not
        called, and every pending `when_done` fails.
        """
        self._closed = True
        self._work.clear()
        waiting, self._waiting = self._waiting, deque()
        for done in waiting:
            done.fail(broker_stopping())

    def _slice(self) -> None:
        self._planned = False
        self._is_working = True
        self.slices += 1
        work = self._work
        until = self._clock() + self._seconds
        try:
            while work:
                steps, then = work[0]
                for _ in steps:
                    if self._timers is not None and self._clock() >= until:
                        return
                if work:  # not closed by a step
                    work.popleft()
                    if then is not None:
                        then()
        finally:
            self._is_working = False
            if work and self._timers is not None and not self._planned:
                self._planned = True  # also after a step that failed: the others are not its fault
                self._timers.call_later(0, self._slice)


SlicedSteps = Iterator[Deferred[Any] | None]
"""Steps that may wait. When a step yields a Deferred, the next step is taken once it is done; that
step reads its value, which raises the KafkaError of a failed one.
"""

Steps = Generator[Deferred[Any] | None, None, R]
"""`SlicedSteps` that return a result."""


class WorkMeter:
    """Sums the time that slices take. clock: nanoseconds, steady."""

    __slots__ = ("clock", "total_ns")

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.total_ns = 0


class SlicedWork:
    """A piece of work in `FairSlices`. `cancel` ends it without calling `then`. meter: sums the
    time of its steps, but not of `then`.
    """

    __slots__ = ("_steps", "_then", "meter")

    def __init__(
        self,
        steps: SlicedSteps,
        then: Callable[[Exception | None], None],
        meter: WorkMeter | None = None,
    ) -> None:
        self._steps: SlicedSteps | None = steps
        self._then: Callable[[Exception | None], None] | None = then
        self.meter = meter

    @property
    def is_over(self) -> bool:
        return self._then is None

    def cancel(self) -> SlicedSteps | None:
        """End the work. No effect once it is done. Returns the steps that are left."""
        steps, self._steps, self._then = self._steps, None, None
        return steps

    def fail(self, error: KafkaError) -> None:
        """Take no further step and call `then` with error, unless the work is over."""
        then = self._then
        self.cancel()
        if then is not None:
            then(error)

    def run(self, is_time_up: Callable[[], bool]) -> Deferred[Any] | None:
        """Take steps until the time is up, one at least, and call `then` after the last one or with
        what a step raised. Returns what is to be waited for.
        """
        failure: Exception | None = None
        meter = self.meter
        started_ns = 0 if meter is None else meter.clock()
        try:
            while (steps := self._steps) is not None:
                waits_for = next(steps)
                if waits_for is not None and not waits_for.done:
                    return waits_for
                if is_time_up():
                    return None
        except StopIteration:
            pass
        except InvariantError:
            self.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the top frame of the work: `then` is told
            failure = error
        finally:
            if meter is not None:
                meter.total_ns += meter.clock() - started_ns
        then = self._then
        self.cancel()
        try:
            if then is not None:
                then(failure)
        finally:
            del failure, then  # the traceback holds this frame, and `then` perhaps the failure
        return None


class SlicedAnswer(Deferred[R]):
    """The Deferred that a piece of work resolves. work: None until it begins; the code that begins
    it passes the meter on.
    """

    __slots__ = ("meter", "work")

    def __init__(self) -> None:
        super().__init__()
        self.work: SlicedWork | None = None
        self.meter: WorkMeter | None = None

    def measure(self, meter: WorkMeter) -> None:
        """Sum the time of all slices from now on."""
        self.meter = meter
        if self.work is not None:
            self.work.meter = meter


class FairSlices:
    """Steps of independent pieces of work, which take turns: a slice of one piece per turn of the
    loop.

    The first step of a piece is taken at once, further ones while the present turn has time left:
    all pieces that are begun within one turn share one slice. clock: as for `TimeSlices`.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_seconds",
        "_timers",
        "_turn_is_planned",
        "_until",
        "_waiting",
    )

    def __init__(
        self,
        timers: Timers,
        *,
        seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timers = timers
        self._seconds = seconds
        self._clock = clock
        self._waiting: deque[SlicedWork] = deque()
        self._turn_is_planned = False
        self._until = 0.0
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of pieces of work that wait for their turn."""
        return len(self._waiting)

    def begin(
        self,
        steps: SlicedSteps,
        then: Callable[[Exception | None], None],
        meter: WorkMeter | None = None,
    ) -> SlicedWork:
        """Take these steps (each `next` is one), then call `then` with what a step raised or None;
        perhaps before this returns. meter: sums the time of the steps.
        """
        work = SlicedWork(steps, then, meter)
        if not self._turn_is_planned:
            self._until = self._clock() + self._seconds
            self._plan_turn()
        self._run(work)
        return work

    def close(self) -> None:
        """Fail all unfinished work with BROKER_NOT_AVAILABLE; work that waits for a Deferred fails
        once that is done, and later work after its first slice.
        """
        self._closed = True
        while self._waiting:
            self._waiting.popleft().fail(broker_stopping())

    def _run(self, work: SlicedWork) -> None:
        waits_for = work.run(self._is_time_up)
        if waits_for is not None:
            resume = partial(self._resume, work)  # the steps read the value or raise the error
            waits_for.on_done(resume, resume)
        elif not work.is_over:
            self._queue(work)

    def _resume(self, work: SlicedWork, result: object) -> None:
        """The Deferred that the work waited for is done: queue its next step."""
        del result
        if not work.is_over:
            self._queue(work)
            if not self._turn_is_planned:
                self._plan_turn()

    def _queue(self, work: SlicedWork) -> None:
        if self._closed:
            work.fail(broker_stopping())
        else:
            self._waiting.append(work)

    def _is_time_up(self) -> bool:
        return self._clock() >= self._until

    def _plan_turn(self) -> None:
        self._turn_is_planned = True
        self._timers.call_later(0, self._turn)

    def _turn(self) -> None:
        self._turn_is_planned = False
        waiting = self._waiting
        self._until = self._clock() + self._seconds
        if waiting:
            self._plan_turn()
        while waiting:
            work = waiting.popleft()
            if not work.is_over:
                self._run(work)
                if self._is_time_up():
                    return


class Pace:
    """Says when steps over many items should pause: every so many items."""

    __slots__ = ("_items", "_left")

    def __init__(self, items: int = STEP_ITEMS) -> None:
        self._items = self._left = items

    def is_due(self) -> bool:
        """Whether to pause now. Called once for each item, topics and other lists included."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._items
        return True
