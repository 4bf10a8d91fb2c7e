"""Where a share group begins that nothing is known of; which share partitions stay open; whom a
write wakes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import (
    BATCHES_PER_STEP,
    UNINITIALIZED,
    SharePlace,
    StateFound,
    StateWrite,
)
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.reads.offsets import ListedOffset
from kbroker.replication.time_slices import FairSlices
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.acknowledgement import ACCEPT, REJECT, RELEASE, STEP_TYPES, Acknowledgement
from kbroker.share.acquisition import AcquireLimits
from kbroker.share.open_partitions import OpenSharePartition
from kbroker.share.partitions import AcknowledgeOutcome, SharePartitions
from kbroker.share.runs import ACQUIRED, AVAILABLE
from tests.replication.test_time_slices import Ticks, Turns
from tests.share.test_skips import FakeReplica, FakeReplicas, batch
from tests.sim.timers import START_MS, SimTimers


class AskedReplicas:
    """Answers with the timestamp it was asked for."""

    def offset_of(self, partition: TopicPartition, timestamp: int) -> Deferred[ListedOffset]:
        return Deferred.of(ListedOffset(offset=timestamp, timestamp=timestamp))


@pytest.mark.parametrize(
    ("age_ms", "asked"),
    [(0, START_MS), (1000, START_MS - 1000), (START_MS, 0), (START_MS + 1, 0), (START_MS + 2, 0)],
)
def test_an_age_beyond_the_epoch_is_no_name_of_an_offset(age_ms: int, asked: int) -> None:
    """share.auto.offset.reset=by_duration: and a time before 1970 would be -1, the latest."""
    reset = f"by_duration:PT{age_ms // 1000}.{age_ms % 1000:03d}S"
    partitions = SharePartitions.__new__(SharePartitions)
    partitions._timers = SimTimers()
    partitions._replicas = AskedReplicas()  # type: ignore[assignment]  # a stand-in
    partitions._config_of = lambda group_id: replace(ShareGroupConfig(), auto_offset_reset=reset)
    assert partitions._first_offset("g", TopicPartition("t", 0)).value.timestamp == asked


KEY = SharePlace("g", (bytes(15) + b"t", 0))
LIMITS = AcquireLimits(
    max_records=100,
    batch_size=100,
    is_strict=True,
    max_locks=100,
    delivery_limit=5,
    lock_ms=30_000,
)


class OneReplica(FakeReplicas):
    """One partition, whose leadership the test changes."""

    def __init__(self, replica: FakeReplica, timers: SimTimers) -> None:
        super().__init__(replica, timers)
        self.lead: Callable[[TopicPartition, int | None], None] = lambda partition, epoch: None

    def on_leadership(self, callback: Any) -> None:
        self.lead = callback

    def offset_of(self, partition: TopicPartition, timestamp: int) -> Deferred[ListedOffset]:
        return Deferred.of(ListedOffset(offset=0))


class SlowStates:
    """States that are read and written when the test says so."""

    def __init__(self) -> None:
        self.reads: list[Deferred[StateFound]] = []
        self.writes: list[tuple[StateWrite, Deferred[ErrorCode]]] = []

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        self.reads.append(Deferred())
        return self.reads[-1]

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        written: Deferred[ErrorCode] = Deferred()
        self.writes.append((write, written))
        return written

    def found(self, start_offset: int = 0) -> None:
        self.reads.pop(0).resolve(StateFound(ErrorCode.NONE, 1, start_offset))

    def written(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.writes.pop(0)[1].resolve(error)


class Group:
    """A share group and one partition with ten records. has_session: whether it has one here."""

    def __init__(self, max_locks: int = 100) -> None:
        self.timers = SimTimers()
        self.replica = FakeReplica([batch(offset, 1) for offset in range(10)])
        self.replicas = OneReplica(self.replica, self.timers)
        self.states = SlowStates()
        self.config = replace(
            ShareGroupConfig(),
            group_share_partition_max_record_locks=max_locks,
            auto_offset_reset="earliest",
        )
        self.partitions = SharePartitions(
            cast(ReplicaManager, self.replicas), self.states, self.timers, lambda _: self.config
        )
        self.has_session = True
        self.partitions.is_read = lambda group_id: self.has_session

    def opened(self, key: SharePlace = KEY) -> OpenSharePartition:
        opening = self.partitions.open(key)
        self.states.found()
        assert isinstance(opening.value, OpenSharePartition)
        return opening.value

    def acquire(self, found: OpenSharePartition, first: int, last: int) -> None:
        assert self.partitions.acquire(found, "m", [(first, last)], LIMITS)

    def acknowledge(self, first: int, last: int, *types: int) -> Deferred[AcknowledgeOutcome]:
        item = Acknowledgement(first, last, types)
        return at_once(self.partitions.acknowledge(KEY, "m", [item], may_renew=False))

    def disconnect(self) -> None:
        """The last session of the group ends, as `ShareReader` does it."""
        self.has_session = False
        released = self.partitions.release("g", "m")
        released.on_done(lambda _: self.partitions.close_group("g"))


class Fetch:
    """A fetch that waits."""

    def __init__(self) -> None:
        self.woken = 0

    def more(self, size_bytes: int) -> None:
        raise AssertionError

    def wake(self) -> None:
        self.woken += 1


def test_a_state_that_is_read_after_the_last_session_is_not_kept() -> None:
    """Nothing would close the share partition, and another broker may reset the state."""
    group = Group()
    opening = group.partitions.open(KEY)
    group.disconnect()
    group.states.found()
    assert opening.done
    assert group.partitions.find(KEY) is None
    group.has_session = True
    again = group.partitions.open(KEY)
    group.states.found(start_offset=7)
    assert isinstance(again.value, OpenSharePartition) and again.value.core.start_offset == 7


def test_a_session_that_begins_while_the_former_ones_state_is_read_reads_its_own() -> None:
    group = Group()
    opening = group.partitions.open(KEY)
    group.disconnect()
    group.has_session = True
    group.states.found()
    assert opening.value is ErrorCode.NOT_LEADER_OR_FOLLOWER, "retriable"
    assert group.partitions.find(KEY) is None
    assert group.opened() is group.partitions.find(KEY)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_state_that_is_reset_while_it_is_read_is_read_again(is_lost: bool) -> None:
    group = Group()
    opening = group.partitions.open(KEY)
    group.partitions.forget(KEY)
    if is_lost:
        group.states.reads.pop(0).resolve(StateFound(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        assert opening.value is ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        group.states.found()
        assert opening.value is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert group.opened() is group.partitions.find(KEY)


def test_the_acknowledgement_of_a_last_request_keeps_nothing_open() -> None:
    group = Group()
    group.has_session = False
    outcome = group.acknowledge(0, 3, ACCEPT)
    group.states.found(start_offset=2)
    assert outcome.value.error is ErrorCode.INVALID_REQUEST
    assert group.partitions.find(KEY) is None


def test_a_first_position_is_written_though_no_session_is_left() -> None:
    group = Group()
    group.has_session = False
    group.partitions.open(KEY)
    group.states.found(start_offset=UNINITIALIZED)
    assert group.states.writes[0][0].start_offset == 0
    group.states.written()
    assert group.partitions.find(KEY) is None


def test_records_that_are_done_with_wake_no_fetch() -> None:
    """Two hundred idle members may wait for the records of a queue of which one reads each."""
    group = Group()
    found, fetch = group.opened(), Fetch()
    group.acquire(found, 0, 9)
    found.wait(fetch)
    outcomes = [group.acknowledge(0, 0, ACCEPT), group.acknowledge(1, 2, REJECT)]
    group.states.written()
    group.states.written()
    assert [outcome.value.error for outcome in outcomes] == [ErrorCode.NONE] * 2
    assert found.core.start_offset == 3 and not fetch.woken


@pytest.mark.parametrize(
    ("max_locks", "types", "error"),
    [
        pytest.param(100, [ACCEPT, RELEASE], ErrorCode.NONE, id="available again"),
        pytest.param(4, [ACCEPT, ACCEPT], ErrorCode.NONE, id="fewer in flight"),
        pytest.param(100, [ACCEPT, ACCEPT], ErrorCode.COORDINATOR_NOT_AVAILABLE, id="not written"),
    ],
)
def test_a_write_wakes_fetches_if_they_can_read_or_it_fails(
    max_locks: int, types: list[int], error: ErrorCode
) -> None:
    group = Group(max_locks)
    found, fetch = group.opened(), Fetch()
    group.acquire(found, 0, min(max_locks, 10) - 1)
    found.wait(fetch)
    group.acknowledge(0, 1, *types)
    assert not fetch.woken
    group.states.written(error)
    assert fetch.woken == 1


def test_a_new_leadership_closes_the_partition_for_every_group() -> None:
    group = Group()
    found = group.opened()
    group.replicas.lead(TopicPartition("events", 1), 1)
    assert group.partitions.find(KEY) is found
    group.replicas.lead(group.replica.topic_partition, 0)
    assert group.partitions.find(KEY) is found, "the leadership in which it was opened"
    group.replicas.lead(group.replica.topic_partition, 1)
    assert group.partitions.find(KEY) is None


def test_what_a_departed_member_had_is_released_at_once_and_written_in_slices() -> None:
    """It may come back at once: what it acquires then is not released."""
    group = Group()
    turns = Turns()
    group.replicas.fair_slices = FairSlices(turns, seconds=0.01, clock=Ticks())
    keys = [SharePlace("g", (KEY.place[0], index)) for index in range(100)]
    opened = [group.opened(key) for key in keys]
    for found in opened:
        group.acquire(found, 0, 3)
    released = group.partitions.release("g", "m")
    for found in opened:
        assert found.core.next_deadline_ms() is None, "no record is acquired"
        group.acquire(found, 4, 7)
    former = 0
    while len(group.states.writes) < len(keys):
        assert former < len(group.states.writes) <= former + 10
        former = len(group.states.writes)
        turns.turn()
    assert not released.done
    for _ in keys:
        group.states.written()
    assert released.value == dict.fromkeys(keys, ErrorCode.NONE)
    for found in opened:
        states = [(run.first, run.last, run.state) for run in found.core._runs]
        assert states == [(0, 3, AVAILABLE), (4, 7, ACQUIRED)]


def test_what_is_not_written_when_the_broker_stops_is_answered() -> None:
    group = Group()
    turns = Turns()
    group.replicas.fair_slices = slices = FairSlices(turns, seconds=0.01, clock=Ticks())
    for index in range(100):
        found = group.opened(SharePlace("g", (KEY.place[0], index)))
        group.acquire(found, 0, 3)
    released = group.partitions.release("g", "m")
    slices.close()
    while group.states.writes:
        group.states.written()
    errors = list(released.value.values())
    assert set(errors) == {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}


class BusyGroup(Group):
    """A group whose member has acquired very many records, and acknowledges them with one type and
    another in turn.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.turns = Turns()
        self.replicas.fair_slices = FairSlices(self.turns, seconds=0.001, clock=Ticks())
        self.found = self.opened()
        limits = LIMITS._replace(max_records=count, max_locks=count)
        assert self.partitions.acquire(self.found, "m", [(0, count - 1)], limits)

    def steps(self) -> Generator[None, None, Deferred[AcknowledgeOutcome]]:
        item = Acknowledgement(0, self.count - 1, [ACCEPT, REJECT] * (self.count // 2))
        return self.partitions.acknowledge(KEY, "m", [item], may_renew=False)

    def still_acquired(self) -> int:
        runs = self.found.core._runs
        return sum(run.last - run.first + 1 for run in runs if run.state == ACQUIRED)


def test_very_many_records_are_acknowledged_in_steps_and_written_in_parts() -> None:
    count = 2 * BATCHES_PER_STEP + 10
    group = BusyGroup(count)
    steps = group.steps()
    while group.still_acquired() == count:
        next(steps)
    assert count - group.still_acquired() <= STEP_TYPES
    outcome = at_once(steps)
    sizes = []
    while group.states.writes:
        (write, _) = group.states.writes[0]
        sizes.append(len(write.batches))
        assert (write.start_offset, write.delivery_complete_count) == (0, count)
        assert not outcome.done
        group.states.written()
        while group.turns.due:
            group.turns.turn()
    assert sizes == [BATCHES_PER_STEP, BATCHES_PER_STEP, 10]
    assert outcome.value.error is ErrorCode.NONE
    assert group.found.core.start_offset == count


def test_after_a_part_that_is_not_written_no_other_follows() -> None:
    group = BusyGroup(3 * BATCHES_PER_STEP)
    outcome = at_once(group.steps())
    for error in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        group.states.written(error)
        while group.turns.due:
            group.turns.turn()
    assert not group.states.writes
    assert outcome.value.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.still_acquired() == group.count


def test_parts_that_are_not_written_when_the_broker_stops() -> None:
    group = BusyGroup(3 * BATCHES_PER_STEP)
    outcome = at_once(group.steps())
    group.replicas.fair_slices.close()
    group.states.written()
    assert not group.states.writes
    assert outcome.value.error is not ErrorCode.NONE


def test_a_partition_that_is_lost_while_its_records_are_acknowledged() -> None:
    group = BusyGroup(4 * STEP_TYPES)
    steps = group.steps()
    while group.still_acquired() == group.count:
        next(steps)
    group.replicas.lead(group.replica.topic_partition, 1)
    assert at_once(steps).value.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not group.states.writes


def test_locks_end_though_an_acknowledgement_of_them_does_not() -> None:
    """The timer finds no lock while all of them are in a change."""
    group = BusyGroup(4 * STEP_TYPES)
    steps = group.steps()
    while group.still_acquired():
        next(steps)
    group.timers.advance(LIMITS.lock_ms)
    assert group.found.timer is None
    steps.close()
    assert group.still_acquired() == group.count and group.found.timer is not None
    group.timers.advance(1)
    assert group.states.writes and not group.still_acquired()


def test_the_last_request_of_a_group_is_not_overtaken_by_the_end_of_its_session() -> None:
    group = BusyGroup(4 * STEP_TYPES)
    steps = group.steps()
    while group.still_acquired():
        next(steps)
    group.has_session = False
    group.partitions.close_group("g")
    assert group.partitions.find(KEY) is group.found
    outcome = at_once(steps)
    group.states.written()
    assert outcome.value.error is ErrorCode.NONE
    assert group.partitions.find(KEY) is None, "it is closed at rest"
