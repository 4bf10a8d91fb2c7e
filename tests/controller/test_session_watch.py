"""Sessions of brokers on virtual time: who is fenced, and when."""

from __future__ import annotations

import pytest

from kbroker.controller.session_watch import SessionWatch
from tests.controller.cluster import Cluster
from tests.sim.timers import SimTimers


class World:
    """Three brokers that are not fenced, sessions of 8 s that began now."""

    def __init__(self) -> None:
        self.cluster = Cluster(brokers=(1, 2, 3))
        self.timers = SimTimers()
        self.watch = SessionWatch(8000, self.timers)
        self.watch.begin(self.cluster.image.brokers.values())

    def contact(self, broker_id: int) -> None:
        self.watch.contact(self.cluster.image.brokers[broker_id])

    def check(self) -> bool:
        """One check. Returns whether there may be more to fence."""
        return self.cluster.run(self.watch.fence_one(self.cluster.controller))

    def run(self, duration_ms: int, *beating: int) -> None:
        """Let time pass with a check each second; these brokers send a heartbeat before each."""
        for _ in range(duration_ms // 1000):
            self.timers.advance(1000)
            for broker_id in beating:
                self.contact(broker_id)
            while self.check():
                pass

    @property
    def fenced(self) -> list[int]:
        return [each.id for each in self.cluster.image.brokers.values() if each.fenced]


def test_a_silent_broker_is_fenced_after_its_session() -> None:
    world = World()
    world.run(8000, 1, 3)
    assert world.fenced == []
    world.run(1000, 1, 3)
    assert world.fenced == [2]
    world.run(60_000, 1, 3)
    assert world.fenced == [2]


def test_the_broker_in_the_controllers_own_process_is_not_replaced() -> None:
    """It has a valid session without one contact: another process with its id may not register."""
    world = World()
    broker = world.cluster.image.brokers[2]
    world.watch.spare(2)
    world.timers.advance(60_000)
    assert world.watch.is_valid(broker)
    assert not world.watch.is_valid(world.cluster.image.brokers[1])


def test_the_broker_in_the_controllers_own_process_is_never_silent() -> None:
    world = World()
    world.watch.spare(2)
    world.contact(2)
    world.watch.begin(world.cluster.image.brokers.values())
    world.run(60_000, 1)
    assert world.fenced == [3]


def test_brokers_are_fenced_one_by_one() -> None:
    world = World()
    world.run(8000)
    world.timers.advance(1000)
    assert world.check() and world.fenced == [1]
    assert world.check() and world.fenced == [1, 2]
    assert world.check() and world.fenced == [1, 2, 3]
    assert not world.check()


def test_the_log_says_who_was_fenced(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.run(9000, 1, 2)
    epoch = world.cluster.epoch_of(3)
    assert caplog.messages == [
        f"Node 1: fencing broker 3 at epoch {epoch}: no heartbeat for more than 8000 ms"
    ]


def test_a_stall_of_this_process_fences_no_broker() -> None:
    world = World()
    world.run(5000, 1, 2)
    world.timers.advance(60_000)  # heartbeats wait in the sockets
    assert not world.check()
    world.run(2000, 1, 2)
    assert world.fenced == []
    world.run(1000, 1, 2)
    assert world.fenced == [3]


def test_a_session_is_that_of_one_incarnation() -> None:
    world = World()
    former = world.cluster.image.brokers[2]
    assert world.watch.is_valid(former)
    world.cluster.register(2)
    assert not world.watch.is_valid(world.cluster.image.brokers[2])
    world.contact(2)
    world.run(10_000, 1, 2, 3)
    assert not world.watch.is_valid(former)
    assert world.watch.is_valid(world.cluster.image.brokers[2])


def test_a_fenced_broker_has_no_session_when_a_controller_takes_over() -> None:
    world = World()
    world.cluster.beat(2, fence=True)
    world.timers.advance(100_000)
    world.watch.begin(world.cluster.image.brokers.values())
    valid = [each.id for each in world.cluster.image.brokers.values() if world.watch.is_valid(each)]
    assert valid == [1, 3]
