"""Waiters end once: ready, at the deadline, or cancelled; never inside the event that woke them."""

from __future__ import annotations

import pytest

from kbroker.replication.purgatory import DelayedResponse, Purgatory, Waiter
from tests.sim.timers import SimTimers


class Recorder(Waiter):
    """Writes down what happens to it."""

    __slots__ = ("events", "fault", "response")

    def __init__(self, purgatory: Purgatory) -> None:
        super().__init__(purgatory)
        self.events: list[str] = []
        self.fault = False
        self.response: DelayedResponse[str] = DelayedResponse(self)

    def complete(self) -> None:
        self.events.append("complete")
        if self.fault:
            raise ValueError("a waiter's own fault")
        self.response.resolve("done")

    def expire(self) -> None:
        self.events.append("expire")

    def withdraw(self) -> None:
        self.events.append("withdraw")


@pytest.fixture
def timers() -> SimTimers:
    return SimTimers()


@pytest.fixture
def purgatory(timers: SimTimers) -> Purgatory:
    return Purgatory(timers)


def test_ready_ends_in_the_next_turn(purgatory: Purgatory, timers: SimTimers) -> None:
    waiter = Recorder(purgatory)
    waiter.set_deadline(100)
    assert purgatory.waiting == 1
    waiter.ready()
    waiter.ready()
    assert waiter.events == []
    timers.advance(200)
    assert waiter.events == ["withdraw", "complete"]
    assert waiter.response.value == "done"
    assert purgatory.waiting == 0


def test_the_deadline(purgatory: Purgatory, timers: SimTimers) -> None:
    waiter = Recorder(purgatory)
    waiter.set_deadline(100)
    timers.advance(99)
    assert waiter.events == []
    timers.advance(1)
    waiter.ready()
    timers.advance(10)
    assert waiter.events == ["withdraw", "expire"]
    assert purgatory.waiting == 0


@pytest.mark.parametrize("ready_before", [False, True])
def test_cancelled(purgatory: Purgatory, timers: SimTimers, ready_before: bool) -> None:
    waiter = Recorder(purgatory)
    waiter.set_deadline(100)
    if ready_before:
        waiter.ready()
    waiter.response.cancel()
    waiter.response.cancel()
    timers.advance(200)
    assert waiter.events == ["withdraw"]
    assert not waiter.response.done
    assert purgatory.waiting == 0


def test_a_faulty_waiter_does_not_hold_up_the_others(
    purgatory: Purgatory, timers: SimTimers
) -> None:
    faulty, good = Recorder(purgatory), Recorder(purgatory)
    faulty.fault = True
    faulty.ready()
    good.ready()
    with pytest.raises(ValueError, match="own fault"):
        timers.advance(0)
    timers.advance(0)
    assert good.response.value == "done"
