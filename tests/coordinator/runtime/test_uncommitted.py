"""Responses that wait until the log of a shard is committed."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.uncommitted import Uncommitted
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from tests.sim.timers import SimTimers

E = ErrorCode
TIMEOUT_MS = 5_000


class World:
    def __init__(self) -> None:
        self.timers = SimTimers()
        self.uncommitted = Uncommitted(self.timers, TIMEOUT_MS)
        self.told: list[tuple[str, ErrorCode]] = []

    def wait(self, name: str) -> None:
        self.uncommitted.wait().on_done(lambda error: self.told.append((name, error)))

    def timers_left(self) -> int:
        return sum(not timer.cancelled for _, _, timer, _ in self.timers._heap)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_to_wait_for(world: World) -> None:
    world.wait("read")
    assert world.told == [("read", E.NONE)]
    assert world.timers_left() == 0


def test_an_answer_waits_for_the_writes_before_it_only(world: World) -> None:
    first = world.uncommitted.add()
    world.wait("first")
    world.wait("read")
    second = world.uncommitted.add()
    world.wait("second")
    world.uncommitted.settle(first, E.NONE)
    assert world.told == [("first", E.NONE), ("read", E.NONE)]
    world.uncommitted.settle(second, E.NONE)
    assert world.told[2:] == [("second", E.NONE)]
    assert not world.uncommitted.writes


def test_an_answer_that_is_late_fails_and_its_write_stays(world: World) -> None:
    write = world.uncommitted.add()
    world.wait("write")
    world.timers.advance(TIMEOUT_MS - 1_000)
    world.wait("read")
    world.timers.advance(1_000)
    assert world.told == [("write", E.REQUEST_TIMED_OUT)]
    world.timers.advance(TIMEOUT_MS)
    assert world.told[1:] == [("read", E.REQUEST_TIMED_OUT)]
    world.wait("later")
    assert len(world.told) == 2, "what timed out may still be lost"
    world.uncommitted.settle(write, E.NONE)
    assert world.told[2:] == [("later", E.NONE)]
    world.timers.advance(TIMEOUT_MS)
    assert len(world.told) == 3
    assert world.timers_left() == 0


def test_one_timer_however_many_wait(world: World) -> None:
    for number in range(100):
        world.uncommitted.add()
        world.wait(str(number))
    assert world.timers_left() == 1


def test_what_contains_a_failed_write_is_not_answered(world: World) -> None:
    failed, other = world.uncommitted.add(), world.uncommitted.add()
    world.wait("both")
    world.uncommitted.settle(failed, E.NOT_LEADER_OR_FOLLOWER)
    assert world.told == []
    world.uncommitted.settle(other, E.NOT_LEADER_OR_FOLLOWER)
    world.wait("later")
    assert world.told == [("both", E.NOT_LEADER_OR_FOLLOWER), ("later", E.NOT_LEADER_OR_FOLLOWER)]


def test_a_write_with_too_few_replicas_is_committed_and_says_so(world: World) -> None:
    write = world.uncommitted.add()
    world.wait("write")
    world.uncommitted.settle(write, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    world.wait("read")
    assert world.told == [("write", E.NOT_ENOUGH_REPLICAS_AFTER_APPEND), ("read", E.NONE)]


def test_a_shard_that_is_unloaded_answers_everything_with_that(world: World) -> None:
    write = world.uncommitted.add()
    world.wait("write")
    world.uncommitted.close(E.NOT_COORDINATOR)
    world.wait("later")
    world.uncommitted.settle(write, E.NONE)  # too late
    assert world.told == [("write", E.NOT_COORDINATOR), ("later", E.NOT_COORDINATOR)]
    assert world.timers_left() == 0


def test_an_answer_that_asks_again(world: World) -> None:
    """Its callback waits for the next write within the call that settles the first."""
    first = world.uncommitted.add()
    answers: list[Deferred[ErrorCode]] = []

    def again(_: ErrorCode) -> None:
        world.uncommitted.add()
        answers.append(world.uncommitted.wait())

    world.uncommitted.wait().on_done(again)
    world.wait("second")
    world.uncommitted.settle(first, E.NONE)
    assert world.told == [("second", E.NONE)]
    assert [answer.done for answer in answers] == [False]
