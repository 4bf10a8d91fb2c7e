"""Compaction's share of the disk, on a clock that is moved by hand."""

from __future__ import annotations

import threading
from math import inf, nan

import pytest

from kbroker.log.cleaner.throttle import MAX_PAUSE_SECONDS, THROTTLE_WINDOW_SECONDS, Throttle


class Clock:
    def __init__(self) -> None:
        self.seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("rate", [0.0, -1.0, nan, inf])
def test_no_rate_is_no_bound(rate: float) -> None:
    throttle = Throttle(rate, clock=Clock())
    assert throttle.charge(1 << 40) == 0.0


def test_little_work_waits_until_a_window_is_full() -> None:
    throttle = Throttle(1000, clock=Clock())
    assert throttle.charge(200) == 0.0
    assert throttle.charge(99) == 0.0
    assert throttle.charge(101) == pytest.approx(0.4)


@pytest.mark.parametrize("work_seconds", [0.0, 0.1, 0.25])
def test_over_many_windows_the_rate_is_kept(work_seconds: float) -> None:
    clock = Clock()
    throttle, done = Throttle(1000, clock=clock), 0
    began = clock.seconds
    for _ in range(100):
        clock.seconds += work_seconds
        clock.seconds += throttle.charge(500)
        done += 500
    assert clock.seconds - began == pytest.approx(done / 1000, abs=THROTTLE_WINDOW_SECONDS)


def test_slow_work_is_not_made_up_for_by_a_burst() -> None:
    clock = Clock()
    throttle = Throttle(1000, clock=clock)
    clock.seconds += 100
    assert throttle.charge(1) == 0.0, "the idle window ends here"
    assert throttle.charge(1000) == pytest.approx(1.0)


def test_a_pause_is_one_that_a_thread_can_make() -> None:
    throttle = Throttle(1e-300, clock=Clock())
    assert throttle.charge(1 << 30) == MAX_PAUSE_SECONDS


def test_the_throttle() -> None:
    now = 0.0
    throttle = Throttle(1000.0, clock=lambda: now)
    assert throttle.charge(100) == 0
    assert throttle.charge(900) == pytest.approx(1.0)
    now = 1.0
    assert throttle.charge(100) == 0
    now = 5.0
    assert throttle.charge(1000) == 0, "what was not used is not saved up beyond the window"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("-inf"), float("nan"), float("inf"), 1.8e308])
def test_a_throttle_without_a_number_above_0_is_none(rate: float) -> None:
    """log.cleaner.io.max.bytes.per.second has no validator, in Kafka neither."""
    throttle = Throttle(rate, clock=lambda: 0.0)
    assert throttle.charge(1 << 40) == 0


@pytest.mark.parametrize("rate", [5e-324, 1e-9])
def test_a_throttle_asks_for_no_wait_that_a_thread_cannot_do(rate: float) -> None:
    throttle = Throttle(rate, clock=lambda: 0.0)
    assert 0 < throttle.charge(1) <= threading.TIMEOUT_MAX
