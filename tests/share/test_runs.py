"""Runs of records: where one may be cut, and which neighbours are one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.share.runs import ACQUIRED, AVAILABLE, Change, Run


def acquired() -> Run:
    run = Run(10, 19, ACQUIRED, 3)
    run.member, run.deadline_ms = "m", 77
    return run


def test_a_tail_has_the_state_and_the_pending_change_of_the_whole() -> None:
    run = acquired()
    run.change, run.former = Change(), (AVAILABLE, "before", 5)
    tail = run.tail(15)
    assert (tail.first, tail.last) == (15, 19)
    assert (tail.state, tail.deliveries, tail.member, tail.deadline_ms) == (ACQUIRED, 3, "m", 77)
    assert tail.change is run.change and tail.former == (AVAILABLE, "before", 5)
    assert (run.first, run.last) == (10, 19), "the caller shortens the head"


def test_a_new_run_goes_back_to_its_own_state() -> None:
    run = Run(0, 0, AVAILABLE, 2)
    assert run.former == (AVAILABLE, "", 0)
    assert (run.member, run.change) == ("", None)


def pending(run: Run) -> None:
    run.change = Change()


@pytest.mark.parametrize(
    "differ",
    [
        lambda run: setattr(run, "state", AVAILABLE),
        lambda run: setattr(run, "deliveries", 4),
        lambda run: setattr(run, "member", "n"),
        lambda run: setattr(run, "deadline_ms", 78),
        pending,
    ],
    ids=["state", "deliveries", "member", "deadline", "pending change"],
)
def test_runs_that_are_not_alike(differ: Callable[[Run], None]) -> None:
    one, other = acquired(), acquired()
    assert one.is_like(other)
    differ(other)
    assert not one.is_like(other) and not other.is_like(one)


def test_two_parts_of_one_pending_change_stay_apart() -> None:
    """Each remembers its own former state."""
    one, other = acquired(), acquired()
    one.change = other.change = Change()
    assert not one.is_like(other)
