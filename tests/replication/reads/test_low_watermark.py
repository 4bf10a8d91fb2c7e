"""DeleteRecords waits for the low watermark: followers' log starts, brokers that are down, the
timeout, and a leadership that is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import DelayedResponse
from kbroker.replication.reads.low_watermark import NO_LOW_WATERMARK, LowWatermark
from tests.replication.proposals import Brokers, Proposals
from tests.replication.world import World, batch

TIMEOUT_MS = 1_000
EPOCH = 30


class LowWorld(World):
    """A partition of ten records that is led here, with the followers 2 and 3 in sync and at its
    end. brokers: by default all are there.
    """

    brokers: Brokers

    @property
    def partition(self) -> Partition:
        (found,) = self.replicas.partitions()
        return found

    def fetched(self, replica_id: int, start: int) -> None:
        """A follower has all records, and its log begins at start."""
        self.partition.follower_fetched(
            replica_id,
            fetch_offset=10,
            log_start_offset=start,
            broker_epoch=EPOCH,
            now_ms=self.timers.monotonic_ms(),
        )

    def delete(self, offset: int) -> LowWatermark | DelayedResponse[LowWatermark]:
        key = self.partition.topic_partition
        self.replicas.delete_records(key, offset)
        return self.replicas.await_low_watermark(key, offset, TIMEOUT_MS)

    def pending(self, offset: int) -> DelayedResponse[LowWatermark]:
        outcome = self.delete(offset)
        assert isinstance(outcome, DelayedResponse) and not outcome.done
        return outcome


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> LowWorld:
    brokers = Brokers({1: EPOCH, 2: EPOCH, 3: EPOCH})
    made = LowWorld(
        tmp_path_factory.mktemp("low"), partitions=0, isr_ports=IsrPorts(brokers, Proposals())
    )
    made.brokers = brokers
    made.host(0, replicas=(1, 2, 3))
    made.append(0, batch(10))
    for replica_id in (2, 3):
        made.fetched(replica_id, 0)
    return made


def test_a_single_replica_is_not_waited_for(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.append(0, batch(10))
    (partition,) = world.replicas.partitions()
    key = partition.topic_partition
    assert world.replicas.delete_records(key, 4) == 4
    assert world.replicas.await_low_watermark(key, 4, TIMEOUT_MS) == (ErrorCode.NONE, 4)


def test_it_is_there_once_every_follower_begins_there(world: LowWorld) -> None:
    pending = world.pending(4)
    world.fetched(2, 4)
    world.timers.advance(0)
    assert not pending.done
    world.fetched(3, 5)
    assert not pending.done, "a response leaves in a turn of its own"
    world.timers.advance(0)
    assert pending.value == (ErrorCode.NONE, 4)
    assert not world.partition.start_watchers
    assert world.delete(3) == (ErrorCode.NONE, 4)


def test_a_follower_that_begins_earlier_is_named_at_the_timeout(world: LowWorld) -> None:
    pending = world.pending(4)
    world.fetched(2, 4)
    world.fetched(3, 2)
    world.timers.advance(TIMEOUT_MS - 1)
    assert not pending.done
    world.timers.advance(1)
    assert pending.value == (ErrorCode.REQUEST_TIMED_OUT, 2)
    assert world.partition.log.log_start_offset == 4, "the leader's records are gone all the same"
    assert not world.partition.start_watchers


def test_a_broker_that_is_fenced_is_not_waited_for(world: LowWorld) -> None:
    world.fetched(2, 4)
    pending = world.pending(4)
    del world.brokers.epochs[3]
    world.host(0, partition_epoch=1, replicas=(1, 2, 3), isr=(1, 2))
    world.timers.advance(0)
    assert pending.value == (ErrorCode.NONE, 4)


def test_a_follower_that_has_not_fetched_from_this_leader_is_waited_for(world: LowWorld) -> None:
    world.host(0, partition_epoch=1, replicas=(1, 2, 3, 4), isr=(1, 2, 3))
    world.brokers.epochs[4] = EPOCH
    for replica_id in (2, 3):
        world.fetched(replica_id, 4)
    pending = world.pending(4)
    world.timers.advance(TIMEOUT_MS)
    assert pending.value == (ErrorCode.REQUEST_TIMED_OUT, NO_LOW_WATERMARK)


@pytest.mark.parametrize("loss", ["another leads", "offline", "removed"])
def test_a_leadership_that_is_lost_ends_the_wait(world: LowWorld, loss: str) -> None:
    partition = world.partition
    pending = world.pending(4)
    match loss:
        case "another leads":
            world.host(0, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2, 3))
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        case "offline":
            partition.go_offline()
            error = ErrorCode.KAFKA_STORAGE_ERROR
        case _:
            world.remove(0)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.timers.advance(0)
    assert pending.value == (error, NO_LOW_WATERMARK)
    assert not partition.start_watchers


def test_in_a_new_epoch_of_this_leader_the_wait_goes_on(world: LowWorld) -> None:
    pending = world.pending(4)
    world.host(0, epoch=1, partition_epoch=1, replicas=(1, 2, 3))
    world.timers.advance(0)
    assert not pending.done
    for replica_id in (2, 3):
        world.fetched(replica_id, 4)
    world.timers.advance(0)
    assert pending.value == (ErrorCode.NONE, 4)


def test_a_client_that_has_gone_leaves_nothing_behind(world: LowWorld) -> None:
    pending = world.pending(4)
    pending.cancel()
    assert not world.partition.start_watchers
    assert not world.replicas.purgatory.waiting
