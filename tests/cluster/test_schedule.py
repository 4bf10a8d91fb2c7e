"""Schedules of faults: what follows from the seed."""

from __future__ import annotations

import pytest

from tests.cluster.schedule import FOLLOWERS, LEADER, Kind, draw_schedule

SEEDS = range(50)


def test_a_seed_gives_the_same_rounds_again() -> None:
    assert draw_schedule(5, 20, brokers=2) == draw_schedule(5, 20, brokers=2)
    assert draw_schedule(5, 20) != draw_schedule(6, 20)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fewer_rounds_are_the_beginning_of_more(seed: int) -> None:
    assert draw_schedule(seed, 50)[:7] == draw_schedule(seed, 7)


def test_the_faults_of_a_round_strike_distinct_nodes() -> None:
    for seed in SEEDS:
        for plan in draw_schedule(seed, 20, brokers=2):
            victims = [fault.victim for fault in plan.faults]
            assert len(set(victims)) == len(victims) in (1, 2)


def test_every_kind_strikes_leaders_followers_and_brokers() -> None:
    struck = {
        (fault.kind, fault.victim)
        for seed in SEEDS
        for plan in draw_schedule(seed, 50, brokers=2)
        for fault in plan.faults
    }
    assert struck == {
        (kind, victim) for kind in Kind for victim in (LEADER, *FOLLOWERS, "broker1", "broker2")
    }


def test_only_kinds_that_the_machine_can_have() -> None:
    plans = draw_schedule(1, 30, kinds=[Kind.KILL, Kind.PAUSE])
    assert {fault.kind for plan in plans for fault in plan.faults} == {Kind.KILL, Kind.PAUSE}


def test_a_round_is_shown_in_one_line() -> None:
    (plan,) = draw_schedule(1, 1, kinds=[Kind.CUT_OUT])
    assert str(plan).startswith(f"cut-out:{plan.faults[0].victim}+0.0s for ")
