"""The loop of a follower: effects in order, outcomes reported, one fetcher per leader."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.followers.fetchers import (
    EFFECT_BYTES,
    STEP_BYTES,
    ReplicaFetcher,
    ReplicaFetchers,
    fetcher_number,
)
from kbroker.replication.followers.followed_partition import AppendFetched, LogChange
from kbroker.replication.followers.follower import CHANGE_PATIENCE_MS, FollowedPartitions
from kbroker.replication.followers.follower_log import FollowerLogs
from kbroker.replication.followers.follower_session import ReplicaFetchLimits
from kbroker.replication.partition import Partition
from kbroker.replication.role import Role
from kbroker.replication.time_slices import FairSlices, Steps
from tests.replication.batch_log import BatchLog
from tests.replication.follower_world import (
    BACKOFF_MS,
    NODE_ID,
    TOPIC_ID,
    failed_count,
    fetched,
    key_of,
)
from tests.sim.timers import SimTimers


class LeaderStub:
    """A `fetchers.LeaderEndPoint` whose answers a test gives."""

    def __init__(self) -> None:
        self.fetches: list[tuple[FetchRequest, Deferred[FetchResponse]]] = []
        self.lists: list[tuple[ListOffsetsRequest, Deferred[ListOffsetsResponse]]] = []

    def fetch(self, request: FetchRequest) -> Deferred[FetchResponse]:
        self.fetches.append((request, Deferred()))
        return self.fetches[-1][1]

    def list_offsets(self, request: ListOffsetsRequest) -> Deferred[ListOffsetsResponse]:
        self.lists.append((request, Deferred()))
        return self.lists[-1][1]


class Logs(FollowerLogs):
    """Logs without files. failure: raised by the next change. wait: what the next change waits
    for. in_steps: whether an append takes more than one step.
    """

    __slots__ = ("changes", "failure", "in_steps", "wait")

    def __init__(self) -> None:
        self._under_way = {}
        self.changes: list[LogChange] = []
        self.failure: Exception | None = None
        self.wait: Deferred[None] | None = None
        self.in_steps = True

    def append_next(self, change: AppendFetched) -> AppendFetched | None:
        if self.in_steps:
            return change
        for _ in self._append(change.followed.partition, change):
            pass
        return None

    def _append(self, partition: Partition, change: LogChange) -> Steps[None]:  # type: ignore[override]  # of any kind
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.changes.append(change)
        wait, self.wait = self.wait, None
        yield wait


class FetcherWorld:
    """A fetcher of one leader, on virtual time. broken: partitions with a storage error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.timers = SimTimers()
        self.slices = FairSlices(self.timers, clock=lambda: 0.0)
        self.leader = LeaderStub()
        self.logs = Logs()
        self.broken: list[Partition] = []
        self.fetcher = self.make(1, 0)

    def make(self, leader_id: int, number: int) -> ReplicaFetcher:
        follower = FollowedPartitions(
            NODE_ID, ReplicaFetchLimits(), backoff_ms=BACKOFF_MS, broker_epoch=lambda: 7
        )
        return ReplicaFetcher(
            follower,
            self.leader,
            self.logs,
            self.timers,
            slices=self.slices,
            on_storage_error=lambda partition, error: self.broken.append(partition),
        )

    def partition(self, index: int = 0, *, leader: int = 1, epoch: int = 5) -> Partition:
        made = Partition(
            TopicPartition("t", index),
            TOPIC_ID,
            NODE_ID,
            BatchLog(self.folder),  # type: ignore[arg-type]  # as much of a log as is asked for
        )
        made.become_follower(
            leader=leader, leader_epoch=epoch, partition_epoch=0, replicas=(1, 2, 3), isr=(1,)
        )
        return made

    def answer(self, *errors: ErrorCode) -> None:
        """Answer the newest fetch, one error per partition."""
        topic = FetchResponse.FetchableTopicResponse(
            topic_id=TOPIC_ID,
            partitions=[fetched(index, error=error) for index, error in enumerate(errors)],
        )
        self.leader.fetches[-1][1].resolve(FetchResponse(session_id=3, responses=[topic]))


@pytest.fixture
def world(tmp_path: Path) -> FetcherWorld:
    return FetcherWorld(tmp_path)


def test_partitions_of_one_turn_are_in_one_request(world: FetcherWorld) -> None:
    world.fetcher.follow(world.partition(0))
    world.fetcher.follow(world.partition(1))
    assert not world.leader.fetches
    world.timers.advance(0)
    ((request, _),) = world.leader.fetches
    assert len(request.topics[0].partitions) == 2
    world.answer(ErrorCode.NONE, ErrorCode.NONE)
    world.timers.advance(0)
    assert len(world.logs.changes) == 2
    assert len(world.leader.fetches) == 2


def test_a_delayed_partition_is_asked_for_when_it_is_due(world: FetcherWorld) -> None:
    world.fetcher.follow(world.partition())
    world.timers.advance(0)
    world.leader.fetches[-1][1].fail(KafkaError(ErrorCode.NETWORK_EXCEPTION))
    world.timers.advance(BACKOFF_MS - 1)
    assert len(world.leader.fetches) == 1
    world.timers.advance(1)
    assert len(world.leader.fetches) == 2


def test_out_of_range_asks_for_offsets(world: FetcherWorld) -> None:
    world.fetcher.follow(world.partition())
    world.timers.advance(0)
    world.answer(ErrorCode.OFFSET_OUT_OF_RANGE)
    world.timers.advance(0)
    ((_, answer),) = world.leader.lists
    data = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=0)
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[data])
    answer.resolve(ListOffsetsResponse(topics=[topic]))
    world.timers.advance(0)
    assert len(world.leader.lists) == 2


@pytest.mark.parametrize(
    ("failure", "is_failed", "is_broken"),
    [
        (KafkaError(ErrorCode.CORRUPT_MESSAGE), False, False),
        (KafkaError(ErrorCode.INVALID_RECORD), False, False),
        (KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE), True, False),
        (LogDirectoryError("/d", "write", OSError(errno.EIO, "broken")), True, True),
        (LogDirectoryError("/d", "open", OSError(errno.EMFILE, "full")), False, False),
        (ValueError("a surprise"), True, False),
    ],
)
def test_changes_that_fail(
    world: FetcherWorld, failure: Exception, is_failed: bool, is_broken: bool
) -> None:
    partitions = [world.partition(index) for index in range(2)]
    for each in partitions:
        world.fetcher.follow(each)
    world.timers.advance(0)
    world.logs.failure = failure
    world.answer(ErrorCode.NONE, ErrorCode.NONE)
    world.timers.advance(0)
    assert failed_count(world.fetcher.follower) == int(is_failed)
    assert world.broken == ([partitions[0]] if is_broken else [])
    assert len(world.logs.changes) == 1, "the other partition is not affected"
    assert len(world.leader.fetches) == 2


def test_an_answer_of_many_partitions_takes_several_turns(world: FetcherWorld) -> None:
    for index in range(10):
        world.fetcher.follow(world.partition(index))
    world.timers.advance(0)
    world.slices._clock = lambda: len(world.logs.changes) * 0.002
    world.answer(*[ErrorCode.NONE] * 10)
    turns = 0
    while len(world.leader.fetches) == 1:
        turns += 1
        assert world.timers.run_next(world.timers.time_ms)
    assert len(world.logs.changes) == 10
    assert turns >= 3


def test_what_is_appended_in_one_step_needs_no_turn_of_the_loop(world: FetcherWorld) -> None:
    world.logs.in_steps = False
    for index in range(2):
        world.fetcher.follow(world.partition(index))
    world.timers.advance(0)
    world.answer(ErrorCode.NONE, ErrorCode.NONE)
    assert len(world.logs.changes) == 2
    assert len(world.leader.fetches) == 2


def test_an_answer_of_very_many_partitions_takes_several_turns_even_then(
    world: FetcherWorld,
) -> None:
    world.logs.in_steps = False
    count = STEP_BYTES // EFFECT_BYTES * 2
    for index in range(count):
        world.fetcher.follow(world.partition(index))
    world.timers.advance(0)
    world.slices._clock = lambda: len(world.logs.changes) * 0.001
    world.answer(*[ErrorCode.NONE] * count)
    assert count // 2 <= len(world.logs.changes) < count
    assert len(world.leader.fetches) == 1
    world.timers.advance(0)
    assert len(world.logs.changes) == count
    assert len(world.leader.fetches) == 2


@pytest.mark.parametrize(
    ("failure", "is_failed"),
    [
        (KafkaError(ErrorCode.CORRUPT_MESSAGE), False),
        (LogDirectoryError("/d", "write", OSError(errno.EIO, "broken")), True),
        (ValueError("a surprise"), True),
    ],
)
def test_a_step_that_fails_concerns_one_partition(
    world: FetcherWorld, failure: Exception, is_failed: bool
) -> None:
    world.logs.in_steps = False
    partitions = [world.partition(index) for index in range(2)]
    for each in partitions:
        world.fetcher.follow(each)
    world.timers.advance(0)
    world.logs.failure = failure
    world.answer(ErrorCode.NONE, ErrorCode.NONE)
    assert failed_count(world.fetcher.follower) == int(is_failed)
    assert world.broken == ([partitions[0]] if isinstance(failure, LogDirectoryError) else [])
    assert len(world.logs.changes) == 1, "the other partition is not affected"
    assert len(world.leader.fetches) == 2


def test_a_change_that_waits_holds_up_no_other_and_then_the_next_request(
    world: FetcherWorld,
) -> None:
    for index in range(2):
        world.fetcher.follow(world.partition(index))
    world.timers.advance(0)
    world.logs.wait = wait = Deferred()
    world.answer(ErrorCode.NONE, ErrorCode.NONE)
    world.timers.advance(CHANGE_PATIENCE_MS - 1)
    assert len(world.logs.changes) == 2
    assert len(world.leader.fetches) == 1
    wait.resolve(None)
    world.timers.advance(0)
    assert len(world.leader.fetches) == 2
    assert not world.leader.fetches[-1][0].forgotten_topics_data


def test_a_change_that_takes_long_is_left_out_of_the_next_request(world: FetcherWorld) -> None:
    for index in range(2):
        world.fetcher.follow(world.partition(index))
    world.timers.advance(0)
    world.logs.wait = wait = Deferred()
    world.answer(ErrorCode.NONE, ErrorCode.NONE)
    world.timers.advance(CHANGE_PATIENCE_MS)
    assert len(world.leader.fetches) == 2
    assert world.leader.fetches[-1][0].forgotten_topics_data[0].partitions == [0]
    wait.resolve(None)
    world.timers.advance(0)
    world.leader.fetches[-1][1].resolve(FetchResponse(session_id=3))
    world.timers.advance(0)
    assert [each.partition for each in world.leader.fetches[-1][0].topics[0].partitions] == [0]


def test_a_later_leadership_waits_for_the_change_of_an_earlier_one(world: FetcherWorld) -> None:
    """Where the log ends is not known before."""
    fetchers = ReplicaFetchers(world.make, world.logs)
    partition = world.partition(leader=1)
    fetchers.update(partition)
    world.timers.advance(0)
    world.logs.wait = wait = Deferred()
    world.answer(ErrorCode.NONE)
    fetchers.update(partition)
    assert world.logs.is_changing(partition)
    partition.become_follower(
        leader=3, leader_epoch=6, partition_epoch=1, replicas=(1, 2, 3), isr=(3,)
    )
    fetchers.update(partition)
    world.timers.advance(CHANGE_PATIENCE_MS)
    assert len(world.leader.fetches) == 1
    wait.resolve(None)
    world.timers.advance(0)
    ((_, _), (request, _)) = world.leader.fetches
    assert request.topics[0].partitions[0].current_leader_epoch == 6
    fetchers.close()


def test_a_partition_that_is_gone_when_its_change_ends_is_not_followed(
    world: FetcherWorld,
) -> None:
    fetchers = ReplicaFetchers(world.make, world.logs)
    partition = world.partition(leader=1)
    fetchers.update(partition)
    world.timers.advance(0)
    world.logs.wait = wait = Deferred()
    world.answer(ErrorCode.NONE)
    partition.become_follower(
        leader=3, leader_epoch=6, partition_epoch=1, replicas=(1, 2, 3), isr=(3,)
    )
    fetchers.update(partition)
    partition.remove()
    fetchers.update(partition)
    wait.resolve(None)
    world.timers.advance(0)
    assert len(world.leader.fetches) == 1


def test_a_surprise_in_an_answer_does_not_end_the_fetcher(world: FetcherWorld) -> None:
    world.fetcher.follow(world.partition())
    world.timers.advance(0)
    topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[fetched(0)])
    topic.partitions[0].error_code = 30_000  # no error has this code
    world.leader.fetches[-1][1].resolve(FetchResponse(session_id=3, responses=[topic]))
    world.timers.advance(BACKOFF_MS)
    assert len(world.leader.fetches) == 2


def test_a_closed_fetcher_takes_no_answer(world: FetcherWorld) -> None:
    world.fetcher.follow(world.partition())
    world.timers.advance(0)
    world.fetcher.close()
    world.answer(ErrorCode.NONE)
    world.timers.advance(BACKOFF_MS)
    assert not world.logs.changes
    assert len(world.leader.fetches) == 1
    for act in (world.fetcher.follow, lambda each: world.fetcher.unfollow(key_of())):
        do: Callable[[Partition], None] = act
        do(world.partition())
    world.timers.advance(BACKOFF_MS)
    assert len(world.leader.fetches) == 1


def test_each_leader_has_its_fetcher(world: FetcherWorld) -> None:
    made: dict[tuple[int, int], ReplicaFetcher] = {}

    def make(leader_id: int, number: int) -> ReplicaFetcher:
        made[leader_id, number] = world.make(leader_id, number)
        return made[leader_id, number]

    fetchers = ReplicaFetchers(make, world.logs)
    partition = world.partition(leader=1)
    fetchers.update(partition)
    fetchers.update(world.partition(1, leader=3))
    assert sorted(made) == [(1, 0), (3, 0)]
    partition.become_follower(
        leader=3, leader_epoch=6, partition_epoch=1, replicas=(1, 2, 3), isr=(3,)
    )
    first = made[1, 0]
    fetchers.update(partition)
    assert len(first.follower) == 0
    assert len(made[3, 0].follower) == 2
    partition.become_leader(
        leader_epoch=7, partition_epoch=2, replicas=(1, 2, 3), isr=(2,), min_isr=1, now_ms=0
    )
    fetchers.update(partition)
    assert len(made[3, 0].follower) == 1
    fetchers.log_start_moved(partition)
    fetchers.close()
    world.timers.advance(0)
    assert not world.leader.fetches


def test_without_a_leader_nothing_is_fetched(world: FetcherWorld) -> None:
    fetchers = ReplicaFetchers(world.make, world.logs)
    fetchers.update(world.partition(leader=-1))
    world.timers.advance(0)
    assert not world.leader.fetches


def test_the_partitions_of_a_topic_are_spread_evenly() -> None:
    numbers = [fetcher_number(TopicPartition("t", index), 3) for index in range(9)]
    assert sorted(numbers) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert fetcher_number(TopicPartition("t", 4), 1) == 0


def test_another_number_of_fetchers_spreads_the_partitions_anew(world: FetcherWorld) -> None:
    made: dict[tuple[int, int], ReplicaFetcher] = {}

    def make(leader_id: int, number: int) -> ReplicaFetcher:
        made[leader_id, number] = world.make(leader_id, number)
        return made[leader_id, number]

    fetchers = ReplicaFetchers(make, world.logs)
    partitions = [world.partition(index, leader=1) for index in range(4)]
    for partition in partitions:
        fetchers.update(partition)
    fetchers.resize(1, partitions)
    assert sorted(made) == [(1, 0)]
    fetchers.resize(2, partitions)
    assert {place: len(each.follower) for place, each in made.items()} == {(1, 0): 2, (1, 1): 2}
    fetchers.resize(1, partitions)
    assert len(made[1, 0].follower) == 4
    fetchers.close()


def test_another_number_of_fetchers_spreads_the_partitions_at_once(world: FetcherWorld) -> None:
    """`num.replica.fetchers` is altered while the broker runs; what leads here is left alone."""
    made: dict[tuple[int, int], ReplicaFetcher] = {}

    def make(leader_id: int, number: int) -> ReplicaFetcher:
        fetcher = made[leader_id, number] = world.make(leader_id, number)
        return fetcher

    def followed() -> dict[tuple[int, int], int]:
        return {place: len(each.follower) for place, each in made.items() if len(each.follower)}

    fetchers = ReplicaFetchers(make, world.logs)
    partitions = [world.partition(index, leader=1 + index % 2) for index in range(8)]
    leading = world.partition(8)
    leading.role = Role.LEADER
    for partition in (*partitions, leading):
        fetchers.update(partition)
    assert followed() == {(1, 0): 4, (2, 0): 4}
    fetchers.resize(4, [*partitions, leading])
    assert sum(followed().values()) == 8
    assert {number for _, number in followed()} == {0, 1, 2, 3}
    fetchers.resize(1, [*partitions, leading])
    assert followed() == {(1, 0): 4, (2, 0): 4}
    fetchers.close()
