"""Measures stalls of the event loop: a timer that records how late it fires.

While the broker is busy the timer fires every `busy_seconds`, so a measured stall lacks at most
that time; in an idle broker it fires `1 / REST_SECONDS` times a second, and the first request wakes
the probe (`wake`). The CPU time of the loop's thread shows whether the broker is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kbroker.metrics import Histogram
from kbroker.ports import Cancellable

BUSY_SECONDS: Final = 0.010
"""The interval in an idle broker, which is long because waking an idle processor costs tens of
microseconds.
"""

REST_SECONDS: Final = 0.2
WORK_SHARE: Final = 0.02
"""The share of CPU time below which the broker counts as idle."""

RECENT_SECONDS: Final = 60.0
"""`recent_maximum` covers the last one or two of these intervals."""


class StallProbe:
    """See the module. call_later: that of the loop (seconds, callback). clock: monotonic, in
    seconds; not the loop's own, which does not advance during a turn. cpu_clock: seconds of CPU of
    the loop's thread.

    stalls: all measurements, in seconds; one for each time the timer fires while busy.
    """

    __slots__ = (
        "_call_later",
        "_clock",
        "_cpu_clock",
        "_cpu_s",
        "_handle",
        "_last",
        "_previous",
        "_recent",
        "_recent_since",
        "busy_seconds",
        "due",
        "on_stall",
        "resting",
        "stalls",
    )

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Cancellable],
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._handle: Cancellable | None = None
        self.busy_seconds = BUSY_SECONDS
        """Seconds between two measurements while the broker is busy."""
        self.due = self._last = self._cpu_s = 0.0
        self._recent = self._previous = self._recent_since = 0.0
        self.resting = False
        """Whether the next measurement is far away, so that `wake` is needed."""
        self.stalls = Histogram()
        self.on_stall: Callable[[float], None] | None = None
        """Called with each measured delay, in seconds (for benchmarks)."""

    @property
    def recent_maximum(self) -> float:
        """The longest delay of the last one or two minutes, in seconds."""
        return max(self._recent, self._previous)

    def start(self) -> None:
        """Begin to measure, on the loop's thread."""
        self._last = self._recent_since = self._clock()
        self._cpu_s = self._cpu_clock()
        self._plan(self.busy_seconds)

    def reset(self) -> None:
        """Reset the measurements, when the broker begins to serve clients."""
        self.stalls = Histogram()
        self._recent = self._previous = 0.0

    def stop(self) -> None:
        """Stop measuring."""
        self.resting = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def wake(self) -> None:
        """Measure again soon, since a request has arrived. Callers skip it while `resting` is
        false.
        """
        if self._handle is not None:
            self._handle.cancel()
            self._last = self._clock()
            self._cpu_s = self._cpu_clock()
            self._plan(self.busy_seconds)

    def _plan(self, seconds: float) -> None:
        self.resting = seconds > self.busy_seconds
        self.due = self._clock() + seconds
        self._handle = self._call_later(seconds, self._look)

    def _look(self) -> None:
        now, cpu_s = self._clock(), self._cpu_clock()
        late = max(0.0, now - self.due)
        self.stalls.observe(late)
        if now - self._recent_since >= RECENT_SECONDS:
            self._previous, self._recent, self._recent_since = self._recent, 0.0, now
        self._recent = max(self._recent, late)
        if self.on_stall is not None:
            self.on_stall(late)
        is_busy = cpu_s - self._cpu_s > WORK_SHARE * (now - self._last)
        self._last, self._cpu_s = now, cpu_s
        self._plan(self.busy_seconds if is_busy else REST_SECONDS)
