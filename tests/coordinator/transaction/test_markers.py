"""The routing of markers to partitions: through the log, or through the coordinator of a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.coordinator.transaction.markers import MarkerResults, MarkerRouter, WriteMarkers
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.coordinator.simulation import MemoryLog
from tests.coordinator.transaction.world import OUT, Client, TransactionWorld
from tests.sim.timers import SimTimers

E = ErrorCode
GROUPS = "__consumer_offsets"
OFFSETS = TopicPartition(GROUPS, 0)


class Groups:
    """The coordinator of `__consumer_offsets`. written: (partition, transaction, commit)."""

    def __init__(self) -> None:
        self.written: list[tuple[int, Transactional, bool]] = []
        self.outcome: Deferred[ErrorCode] = Deferred.of(E.NONE)

    def write_marker(
        self,
        partition: int,
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[ErrorCode]:
        self.written.append((partition, transaction, commit))
        return self.outcome


class Others:
    """Broker 2. leaders: those of partitions; a missing partition was deleted."""

    node_id = 1

    def __init__(self, leaders: dict[TopicPartition, int]) -> None:
        self.leaders = leaders
        self.asked: list[tuple[int, list[TopicPartition], int]] = []
        self.outcome: Deferred[MarkerResults] = Deferred()
        self.dropped: list[bool] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition)

    def write_markers(
        self,
        leader_id: int,
        request: WriteMarkers,
        partitions: Sequence[TopicPartition],
        *,
        coordinator_epoch: int,
    ) -> Deferred[MarkerResults]:
        self.asked.append((leader_id, list(partitions), coordinator_epoch))
        return self.outcome

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        self.dropped.append(is_dropped("tx"))


class Router:
    """A router over a log in memory, on a broker that hosts partition 0 of each topic."""

    def __init__(self, others: Others | None = None) -> None:
        self.log = MemoryLog()
        self.groups = Groups()
        self.router = MarkerRouter(
            self.log,
            {GROUPS: self.groups},
            SimTimers(),
            knows=lambda topic, partition: partition == 0,
            others=others,
        )

    def write(self, *partitions: TopicPartition, commit: bool = True) -> Deferred[MarkerResults]:
        request = WriteMarkers(
            partitions,
            lambda results, now_ms: [],
            transactional_id="tx",
            producer_id=9,
            producer_epoch=3,
            commit=commit,
            transaction_version=2,
        )
        return self.router.write_markers(request, coordinator_epoch=5)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_a_control_batch_of_the_partition(commit: bool) -> None:
    world = Router()
    assert world.write(OUT, commit=commit).value == {OUT: E.NONE}
    (batch,) = world.log.batches[OUT]
    header = read_batch_header(batch)
    assert (header.producer_id, header.producer_epoch, header.is_control) == (9, 3, True)
    (record,) = iter_records(batch, header)
    assert control_type(record) is (ControlType.COMMIT if commit else ControlType.ABORT)
    assert world.groups.written == []


def test_a_marker_among_offsets_goes_through_their_coordinator() -> None:
    world = Router()
    world.groups.outcome = outcome = Deferred[ErrorCode]()
    written = world.write(OFFSETS, OUT)
    assert world.groups.written == [(0, Transactional(9, 3), True)]
    assert not written.done
    outcome.resolve(E.NOT_COORDINATOR)
    assert written.value == {OFFSETS: E.NOT_COORDINATOR, OUT: E.NONE}


def test_a_marker_for_offsets_that_are_not_here() -> None:
    world = Router()
    elsewhere = TopicPartition(GROUPS, 1)
    assert world.write(elsewhere).value == {elsewhere: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.groups.written == []


def test_a_marker_that_fails_does_not_fail_the_others() -> None:
    world = Router()
    other = TopicPartition("out", 1)
    world.log.errors = [E.NOT_LEADER_OR_FOLLOWER]
    assert world.write(OUT, other).value == {OUT: E.NOT_LEADER_OR_FOLLOWER, other: E.NONE}
    world.log.delayed = True
    written = world.write(OUT)
    assert not written.done
    ((_, appended),) = world.log.waiting
    appended.fail(KafkaError(E.KAFKA_STORAGE_ERROR))
    assert written.value == {OUT: E.KAFKA_STORAGE_ERROR}


HERE, THERE, NOWHERE, DELETED = (TopicPartition("out", index) for index in range(4))


def of_two_brokers() -> tuple[Router, Others]:
    others = Others({HERE: 1, THERE: 2, NOWHERE: -1})
    return Router(others), others


def test_partitions_are_grouped_by_their_leaders() -> None:
    world, _ = of_two_brokers()
    partitions = [HERE, THERE, NOWHERE, DELETED]
    assert list(map(list, world.router.by_leader(partitions))) == [[each] for each in partitions]
    assert list(Router().router.by_leader(partitions)) == [partitions]


def test_markers_of_several_leaders_are_answered_when_all_are_written() -> None:
    world, others = of_two_brokers()
    world.log.delayed = True
    written = world.write(HERE, THERE, NOWHERE, DELETED)
    assert others.asked == [(2, [THERE], 5)]
    world.log.commit()
    assert not written.done
    others.outcome.resolve({THERE: E.NOT_ENOUGH_REPLICAS})
    assert written.value == {
        HERE: E.NONE,
        THERE: E.NOT_ENOUGH_REPLICAS,
        NOWHERE: E.LEADER_NOT_AVAILABLE,
        DELETED: E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert HERE in world.log.batches and THERE not in world.log.batches


def test_markers_for_other_leaders_are_dropped_with_their_coordinator() -> None:
    world, others = of_two_brokers()
    world.router.drop(lambda transactional_id: transactional_id == "tx")
    assert others.dropped == [True]
    Router().router.drop(lambda transactional_id: True)


class Unreachable(TransactionWorld):
    """A broker that leads partitions cannot be asked at first."""

    is_reachable = False

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        if not self.is_reachable:
            return Deferred.failed(KafkaError(E.NETWORK_EXCEPTION))
        return super().write_markers(request, coordinator_epoch=coordinator_epoch)


def test_markers_that_could_not_be_sent_are_sent_again() -> None:
    world = Unreachable()
    client = Client(world)
    client.init()
    client.add(OUT)
    assert client.end(commit=True) is E.NONE  # the decision is committed
    assert client.init() is E.CONCURRENT_TRANSACTIONS
    world.is_reachable = True
    world.timers.advance(10_000)
    assert world.markers == [(OUT, client.producer_id, client.epoch, True)]
    assert client.init() is E.NONE
