"""The two ends of a replica as a follower moves them, and what its watchers are told."""

from __future__ import annotations

import pytest

from kbroker.model import InvariantError, TopicPartition
from kbroker.replication.leaders.replica_ends import ReplicaEnds
from kbroker.replication.purgatory import OffsetWaiter, Purgatory
from tests.replication.number_log import Listener, NumberLog
from tests.sim.timers import SimTimers


def ends(log: NumberLog, high_watermark: int = 0) -> ReplicaEnds:
    return ReplicaEnds(
        TopicPartition("t", 0),
        log,  # type: ignore[arg-type]  # a log of numbers only
        high_watermark,
    )


@pytest.mark.parametrize(("checkpoint", "expected"), [(0, 2), (4, 4), (99, 10)])
def test_a_checkpoint_is_kept_within_the_log(checkpoint: int, expected: int) -> None:
    log = NumberLog(2, 10)
    made = ends(log, checkpoint)
    assert made.high_watermark == made.last_stable_offset == expected
    assert log.told == [expected]


@pytest.mark.parametrize(("of_leader", "expected"), [(2, 3), (5, 5), (8, 8), (12, 8)], ids=str)
def test_a_followers_high_watermark_is_its_leaders_within_its_log(
    of_leader: int, expected: int
) -> None:
    made = ends(NumberLog(1, 8), 3)
    made.follower_advanced(of_leader, 0)
    assert made.high_watermark == made.last_stable_offset == expected


@pytest.mark.parametrize(("cut_to", "expected"), [(8, 3), (3, 3), (2, 2), (1, 1)])
def test_a_cut_log_takes_the_high_watermark_along(cut_to: int, expected: int) -> None:
    log = NumberLog(1, 8)
    made = ends(log, 3)
    log.log_end_offset = cut_to
    made.truncated()
    assert made.high_watermark == made.last_stable_offset == expected
    assert log.told[-1] == expected


def test_a_log_that_begins_anew_is_committed_up_to_its_start() -> None:
    log = NumberLog(1, 8)
    made = ends(log, 3)
    log.log_start_offset = log.log_end_offset = 20
    made.truncated()
    assert made.high_watermark == 20


def test_records_that_are_deleted_were_committed() -> None:
    log = NumberLog(1, 8)
    made, consumer = ends(log, 3), Listener()
    made.watch(consumer)
    log.log_start_offset = 5
    made.log_start_moved()
    assert made.high_watermark == made.last_stable_offset == log.told[-1] == 5
    assert consumer.heard == [(0, 0)]


@pytest.mark.parametrize(("unstable", "stable"), [(0, 2), (4, 4), (6, 6), (9, 6), (None, 6)])
def test_the_last_stable_offset_lies_between_the_logs_start_and_the_high_watermark(
    unstable: int | None, stable: int
) -> None:
    log = NumberLog(2, 8)
    made = ends(log, 2)
    log.first_unstable_offset = unstable
    made.follower_advanced(6, 0)
    assert (made.high_watermark, made.last_stable_offset) == (6, stable)


def test_bytes_are_heard_of_once_they_are_below_the_high_watermark() -> None:
    log = NumberLog()
    made, consumer = ends(log), Listener()
    made.watch(consumer)
    for end, of_leader in ((2, 0), (4, 2), (6, 6)):
        log.log_end_offset = end
        made.follower_advanced(of_leader, 100)
    assert consumer.heard == [(100, 100), (200, 200)]
    made.unwatch(consumer)
    assert made.watcher_count == 0


def test_waiters_are_ready_in_order_and_those_that_ended_are_dropped() -> None:
    made, purgatory = ends(NumberLog(0, 8)), Purgatory(SimTimers())
    waiters = [OffsetWaiter(purgatory) for _ in range(3)]
    for waiter, offset in zip(waiters, (2, 4, 6), strict=True):
        made.wait_for(waiter, offset)
    waiters[0].cancel()
    made.follower_advanced(5, 0)
    assert [waiter.is_ready for waiter in waiters] == [False, True, False]


def test_a_log_that_was_moved_replaces_the_one_it_was_copied_from() -> None:
    made, copy = ends(NumberLog(1, 8), 3), NumberLog(1, 8)
    made.replace_log(copy)  # type: ignore[arg-type]  # a log of numbers only
    assert made.log is copy and copy.told == [3]  # type: ignore[comparison-overlap]  # numbers
    with pytest.raises(InvariantError):
        made.replace_log(NumberLog(1, 9))  # type: ignore[arg-type]  # a log of numbers only
