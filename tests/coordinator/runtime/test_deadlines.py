"""Deadlines: which fire when, and that ended ones hold no memory."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from random import Random

import pytest

from kbroker.coordinator.runtime.deadlines import MIN_STALE, Deadline, Deadlines
from kbroker.coordinator.runtime.result import Results

WEEKS_MS = 2**31 - 1


class Owner:
    def on_deadline(self, now_ms: int) -> Results:
        return []


@pytest.mark.parametrize("seed", range(20))
def test_all_fire_at_their_time_and_none_that_was_cancelled(seed: int) -> None:
    """Against a dictionary of times."""
    source = Random(seed)
    fired: list[int] = []

    def fire(number: int, now_ms: int) -> Results:
        fired.append(number)
        return []

    deadlines = Deadlines()
    all_of_them = [Deadline(partial(fire, number)) for number in range(100)]
    due: dict[int, int] = {}
    for now_ms in range(400):
        for _ in range(source.randrange(20)):
            number = source.randrange(len(all_of_them))
            if source.random() < 0.4:
                deadlines.cancel(all_of_them[number])
                due.pop(number, None)
            else:
                due[number] = now_ms + source.randrange(1, 60)
                deadlines.set(all_of_them[number], due[number])
        fired.clear()
        deadlines.fire(now_ms)
        assert sorted(fired) == sorted(number for number, at_ms in due.items() if at_ms <= now_ms)
        due = {number: at_ms for number, at_ms in due.items() if at_ms > now_ms}
        next_ms = deadlines.next_ms()
        assert (next_ms is None) == (not due)
        assert next_ms is None or next_ms <= min(due.values())
        assert len(deadlines) <= 2 * len(due) + MIN_STALE + 1
    assert deadlines.fire(1000) == []
    assert len(deadlines) == 0


def test_what_is_cancelled_or_brought_forward_is_let_go_before_its_time() -> None:
    deadlines = Deadlines()
    owners: list[weakref.ref[Owner]] = []
    for _ in range(1000):
        cancelled, hurried = Owner(), Owner()
        owners += [weakref.ref(cancelled), weakref.ref(hurried)]
        far = Deadline(cancelled.on_deadline)
        deadlines.set(far, WEEKS_MS)
        deadlines.cancel(far)
        near = Deadline(hurried.on_deadline)
        deadlines.set(near, WEEKS_MS)
        deadlines.set(near, 1)
        deadlines.fire(2)
    del cancelled, hurried, far, near
    gc.collect()
    assert sum(owner() is not None for owner in owners) <= MIN_STALE + 1
    assert len(deadlines) <= MIN_STALE + 1


def test_set_and_cancelled_at_the_same_moment_again_and_again() -> None:
    deadlines = Deadlines()
    deadline = Deadline(Owner().on_deadline)
    for _ in range(1000):
        deadlines.set(deadline, WEEKS_MS)
        deadlines.cancel(deadline)
        deadlines.set(deadline, WEEKS_MS)
    assert len(deadlines) <= MIN_STALE + 2
    assert deadlines.next_ms() == WEEKS_MS
