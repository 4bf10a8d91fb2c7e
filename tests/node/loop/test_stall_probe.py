"""The stall probe on a clock that only the test moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kbroker.node.loop.stall_probe import BUSY_SECONDS, RECENT_SECONDS, REST_SECONDS, StallProbe


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Timers in order; `now` moves to what is due, or further (a stall)."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 1.0
        self.looks = 0
        self._number = 0
        self._timers: list[tuple[float, int, Timer, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer()
        self._number += 1
        heapq.heappush(self._timers, (self.now + seconds, self._number, timer, callback))
        return timer

    def run(self, seconds: float, *, share: float = 0.0) -> None:
        """Let time pass; share of it is spent working."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer, callback = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self.work(max(0.0, due - self.now), share)
            self.looks += 1
            callback()
        self.work(max(0.0, end - self.now), share)

    def work(self, seconds: float, share: float = 1.0) -> None:
        """No timer fires meanwhile."""
        self.now += seconds
        self.cpu += seconds * share


def probe_on(loop: Loop) -> StallProbe:
    probe = StallProbe(loop.call_later, clock=lambda: loop.now, cpu_clock=lambda: loop.cpu)
    probe.start()
    return probe


def test_a_broker_at_rest_is_left_alone() -> None:
    loop = Loop()
    probe = probe_on(loop)
    loop.run(10.0, share=0.001)
    assert probe.resting
    assert loop.looks <= 10.0 / REST_SECONDS + 1
    assert probe.stalls.maximum < 1e-9


def test_a_stall_is_seen_while_the_broker_works() -> None:
    loop = Loop()
    probe = probe_on(loop)
    loop.run(1.0, share=0.5)
    assert not probe.resting
    assert loop.looks >= 0.95 / BUSY_SECONDS
    assert probe.stalls.maximum < 1e-9
    loop.work(0.040)
    loop.run(0.1, share=0.5)
    assert 0.040 - BUSY_SECONDS <= probe.stalls.maximum <= 0.040


def test_the_first_request_wakes_the_probe() -> None:
    loop = Loop()
    probe = probe_on(loop)
    loop.run(1.0)
    assert probe.resting
    probe.wake()
    assert not probe.resting
    loop.work(0.040)
    loop.run(1.0)
    assert probe.stalls.maximum >= 0.040 - BUSY_SECONDS
    assert probe.resting, "and the probe rests again"


def test_the_recent_maximum_forgets() -> None:
    loop = Loop()
    probe = probe_on(loop)
    loop.work(0.5)
    loop.run(RECENT_SECONDS + 1)
    assert 0.499 - BUSY_SECONDS < probe.recent_maximum <= 0.5
    loop.run(RECENT_SECONDS + 1)
    assert probe.recent_maximum < 1e-9
    assert 0.499 - BUSY_SECONDS < probe.stalls.maximum <= 0.5


def test_after_stop_nothing_looks() -> None:
    loop = Loop()
    probe = probe_on(loop)
    probe.stop()
    probe.wake()
    loop.run(1.0)
    assert loop.looks == 0
