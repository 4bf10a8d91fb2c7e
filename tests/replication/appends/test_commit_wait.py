"""Until all of a log is committed: at once, later, or never under this leadership."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode
from kbroker.replication.appends.commit_wait import when_committed
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import Purgatory
from tests.replication.test_partition import append, fetched, partition
from tests.sim.timers import SimTimers

E = ErrorCode


def test_a_log_that_is_committed() -> None:
    purgatory = Purgatory(SimTimers())
    alone = partition()
    append(alone, 3)
    assert when_committed(alone, purgatory).value is E.NONE
    assert when_committed(partition((1, 2)), purgatory).value is E.NONE, "it is empty"


def test_the_tail_waits_for_the_slowest_member_without_a_deadline() -> None:
    timers = SimTimers()
    led = partition((1, 2, 3))
    append(led, 3)
    outcome = when_committed(led, Purgatory(timers))
    append(led, 2)
    fetched(led, 2, 5)
    timers.advance(86_400_000)
    assert not outcome.done
    fetched(led, 3, 3)  # what was there when it was asked for
    timers.advance(0)
    assert outcome.value is E.NONE


def lead(led: Partition, leader_epoch: int) -> None:
    led.become_leader(
        leader_epoch=leader_epoch,
        partition_epoch=led.partition_epoch + 1,
        replicas=(1, 2),
        isr=(1, 2),
        min_isr=1,
        now_ms=0,
    )


def test_a_leader_that_leads_the_next_epoch_goes_on_waiting() -> None:
    timers = SimTimers()
    led = partition((1, 2))
    append(led, 3)
    outcome = when_committed(led, Purgatory(timers))
    lead(led, 6)
    append(led, 1)
    timers.advance(0)
    assert not outcome.done
    fetched(led, 2, 3)
    timers.advance(0)
    assert outcome.value is E.NONE


def test_leadership_that_is_lost_or_begins_anew() -> None:
    timers = SimTimers()
    for epoch, leader in ((7, 1), (7, 2)):  # another broker may have led epoch 6
        led = partition((1, 2))
        append(led, 3)
        outcome = when_committed(led, Purgatory(timers))
        if leader == 1:
            lead(led, epoch)
        else:
            led.become_follower(
                leader=leader, leader_epoch=epoch, partition_epoch=1, replicas=(1, 2), isr=(1, 2)
            )
        timers.advance(0)
        assert outcome.value is E.NOT_LEADER_OR_FOLLOWER
    assert when_committed(led, Purgatory(timers)).value is E.NOT_LEADER_OR_FOLLOWER


def test_a_directory_that_failed() -> None:
    timers = SimTimers()
    led = partition((1, 2))
    append(led, 3)
    outcome = when_committed(led, Purgatory(timers))
    led.go_offline()
    timers.advance(0)
    assert outcome.value is E.KAFKA_STORAGE_ERROR
