"""The way of markers into partitions: through the log, or through the coordinator of a topic."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.coordinator.transaction.markers import MarkerResults, MarkerRouter, WriteMarkers
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batch_header import read_batch_header
from kbroker.protocol.control_records import ControlType, control_type
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import iter_records
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


class Router:
    """A router over a log in memory, on a broker that hosts partition 0 of each topic."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.groups = Groups()
        self.router = MarkerRouter(
            self.log,
            {GROUPS: self.groups},
            SimTimers(),
            knows=lambda topic, partition: partition == 0,
        )

    def write(self, *partitions: TopicPartition, commit: bool = True) -> Deferred[MarkerResults]:
        request = WriteMarkers(
            partitions,
            lambda results, now_ms: [],
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
