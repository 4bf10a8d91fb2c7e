"""Markers for partitions that other brokers lead: requests and their outcomes one by one, and a
coordinator on a virtual clock whose peers fail, answer late and lose leaderships, by seed.
"""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar, cast

import pytest

from kbroker.broker.remote import remote_markers
from kbroker.broker.remote.remote_markers import PURPOSE, RemoteMarkers
from kbroker.coordinator.runtime.coordinator_log import AppendOutcome
from kbroker.coordinator.transaction import completion
from kbroker.coordinator.transaction.markers import (
    MarkerResults,
    MarkerRouter,
    MarkerWriter,
    WriteMarkers,
)
from kbroker.coordinator.transaction.state import AT_REST
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, UnlimitedMemory
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.control_records import (
    ControlType,
    control_type,
    marker_coordinator_epoch,
)
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.server.network.memory_pool import MemoryPool
from tests.broker.peers import Image, Peers, Sent
from tests.coordinator.simulation import Outcome
from tests.coordinator.transaction.world import Client, TransactionWorld

E = ErrorCode
P0, P1, P2, Q0 = *(TopicPartition("p", index) for index in range(3)), TopicPartition("q", 0)

R = TypeVar("R", bound=Response)


class World:
    """Broker 1, whose peer 2 leads p and q."""

    def __init__(self) -> None:
        self.peers = Peers()
        peers: Any = self.peers
        self.image = Image(p=[2, -1], q=[2])
        image: Any = self.image
        self.memory = MemoryPool()
        self.remote = RemoteMarkers(1, peers, lambda: image, self.memory)

    def write(
        self, *partitions: TopicPartition, producer_id: int = 9, leader_id: int = 2
    ) -> Deferred[MarkerResults]:
        request = WriteMarkers(
            partitions,
            lambda results, now_ms: [],
            transactional_id=f"tx {producer_id}",
            producer_id=producer_id,
            producer_epoch=3,
            commit=True,
            transaction_version=2,
        )
        return self.remote.write_markers(leader_id, request, partitions, coordinator_epoch=5)


def producers(sent: Sent) -> list[int]:
    return [marker.producer_id for marker in sent.request.markers]


def response(
    *results: tuple[int, dict[TopicPartition, ErrorCode | int]],
) -> WriteTxnMarkersResponse:
    """Of (producer id, errors)."""
    kind = WriteTxnMarkersResponse
    return kind(
        markers=[
            kind.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    kind.WritableTxnMarkerTopicResult(
                        name=partition.topic,
                        partitions=[
                            kind.WritableTxnMarkerPartitionResult(
                                partition_index=partition.partition, error_code=int(error)
                            )
                        ],
                    )
                    for partition, error in errors.items()
                ],
            )
            for producer_id, errors in results
        ]
    )


def test_leaders_are_those_of_the_metadata() -> None:
    world = World()
    assert [world.remote.leader_of(each) for each in (P0, P1, P2)] == [2, -1, None]


def test_a_marker_on_the_wire() -> None:
    world = World()
    written = world.write(Q0, P1, P0)
    (sent,) = world.peers.take()
    assert (sent.broker_id, sent.purpose) == (2, PURPOSE)
    kind = WriteTxnMarkersRequest
    assert sent.request == kind(
        markers=[
            kind.WritableTxnMarker(
                producer_id=9,
                producer_epoch=3,
                transaction_result=True,
                topics=[
                    kind.WritableTxnMarkerTopic(name="p", partition_indexes=[0, 1]),
                    kind.WritableTxnMarkerTopic(name="q", partition_indexes=[0]),
                ],
                coordinator_epoch=5,
                transaction_version=2,
            )
        ]
    )
    sent.response.resolve(response((9, {P0: E.NONE, P1: E.NONE, Q0: E.NONE})))
    assert written.value == dict.fromkeys((P0, P1, Q0), E.NONE)


def test_each_broker_has_a_queue() -> None:
    world = World()
    for producer_id in (1, 2, 3):
        world.write(P0, producer_id=producer_id)
    world.write(P0, producer_id=4, leader_id=3)
    first, other = world.peers.take()
    assert (producers(first), producers(other), other.broker_id) == ([1], [4], 3)
    first.fail()
    (sent,) = world.peers.take()
    assert producers(sent) == [2, 3]


def test_outcomes_are_found_by_producer_and_partition() -> None:
    world = World()
    world.write(Q0, producer_id=1)
    waiting = [world.write(P0), world.write(P1, Q0), world.write(P0, producer_id=8)]
    world.peers.take()[0].fail()
    (sent,) = world.peers.take()
    errors = {P0: E.NONE, P1: E.NOT_LEADER_OR_FOLLOWER, Q0: E.TRANSACTION_COORDINATOR_FENCED}
    sent.response.resolve(response((8, {P0: E.INVALID_PRODUCER_EPOCH}), (9, {**errors})))
    assert [each.value for each in waiting] == [
        {P0: E.NONE},
        {P1: E.NOT_LEADER_OR_FOLLOWER, Q0: E.TRANSACTION_COORDINATOR_FENCED},
        {P0: E.INVALID_PRODUCER_EPOCH},
    ]


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        pytest.param({P0: E.UNKNOWN_TOPIC_OR_PARTITION}, E.NOT_LEADER_OR_FOLLOWER, id="unknown"),
        pytest.param({P0: 999}, E.UNKNOWN_SERVER_ERROR, id="an error of the future"),
        pytest.param({P1: E.NONE}, E.UNKNOWN_SERVER_ERROR, id="no result"),
    ],
)
def test_what_is_no_outcome_is_tried_again(
    errors: dict[TopicPartition, ErrorCode | int], outcome: ErrorCode
) -> None:
    world = World()
    written = world.write(P0)
    world.peers.sent[0].response.resolve(response((9, errors)))
    assert written.value == {P0: outcome}
    assert outcome not in completion.MARKER_DONE


@pytest.mark.parametrize("error", [E.NETWORK_EXCEPTION, E.REQUEST_TIMED_OUT, E.UNSUPPORTED_VERSION])
def test_a_request_without_a_response_is_tried_again(error: ErrorCode) -> None:
    world = World()
    written = world.write(P0, P1)
    world.peers.sent[0].fail(error)
    assert written.value == dict.fromkeys((P0, P1), E.NETWORK_EXCEPTION)


def test_the_markers_of_another_coordinator_are_dropped() -> None:
    world = World()
    in_flight, dropped, kept = (world.write(P0, producer_id=number) for number in (1, 2, 3))
    world.remote.drop(lambda transactional_id: transactional_id in ("tx 1", "tx 2"))
    assert dropped.value == {P0: E.NOT_COORDINATOR}
    assert not in_flight.done and not kept.done
    world.peers.take()[0].fail()
    (sent,) = world.peers.take()
    assert producers(sent) == [3]


def test_a_marker_without_room_is_tried_again() -> None:
    world = World()
    first = world.write(P0, producer_id=1)
    held = world.memory.used
    assert world.write(P0, P1, producer_id=2) and world.memory.used > 2 * held
    world.memory.charge(world.memory.limit)
    refused = world.write(P0, P1)
    assert refused.value == dict.fromkeys((P0, P1), E.NETWORK_EXCEPTION)
    world.memory.release(world.memory.limit)
    world.peers.take()[0].fail()
    (sent,) = world.peers.take()
    assert first.done and producers(sent) == [2]
    sent.fail()
    assert world.memory.used == 0


# -- by seed ---------------------------------------------------------------------------------------

TRIED_AGAIN = (
    E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    E.REQUEST_TIMED_OUT,
    E.KAFKA_STORAGE_ERROR,
    E.UNKNOWN_TOPIC_OR_PARTITION,
)
WRITTEN_ANYWAY = (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.REQUEST_TIMED_OUT)
STEPS = 80
Marker = tuple[int, int, bool]
"""Producer id, epoch, commit."""


class Simulation(TransactionWorld):
    """Broker 1 coordinates; it and brokers 2 and 3 lead the partitions of `out`. markers: those
    that each partition has. ended: the marker of each transaction whose end was confirmed.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.image = Image(out=[1, 2, 3, 2, 3, -1])
        self.partitions = [TopicPartition(*key) for key in self.image.leaders]
        self.has_faults = True
        self.written: dict[TopicPartition, list[Marker]] = {each: [] for each in self.partitions}
        self.epochs: dict[tuple[TopicPartition, int], int] = {}
        """The last coordinator epoch, by partition and producer id."""
        self.ended: list[tuple[Marker, set[TopicPartition]]] = []
        super().__init__()
        self.clients = [Client(self, transactional_id=name, version=2) for name in "abc"]
        self.open: dict[str, set[TopicPartition]] = {}

    def marker_writer(self) -> MarkerWriter:
        image: Any = self.image
        peers: Any = self
        remote = RemoteMarkers(1, peers, lambda: image, UnlimitedMemory())
        return MarkerRouter(
            LocalLeader(self), {}, self.timers, knows=lambda topic, index: True, others=remote
        )

    # the peers

    def send(
        self, broker_id: int, purpose: str, request: Request, response_type: type[R]
    ) -> Deferred[R]:
        answer: Deferred[R] = Deferred()
        if self.has_faults and self.random.random() < 0.1:
            answer.fail(KafkaError(E.NETWORK_EXCEPTION))
            return answer

        def arrive() -> None:
            is_lost = self.has_faults and self.random.random() < 0.1
            found = self.serve(broker_id, cast(WriteTxnMarkersRequest, request))
            if is_lost:
                answer.fail(KafkaError(E.NETWORK_EXCEPTION))
            else:
                answer.resolve(cast(R, found))

        self.timers.call_later(self.random.choice([1, 5, 400]), arrive)
        return answer

    def serve(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        results = []
        for marker in request.markers:
            errors: dict[TopicPartition, ErrorCode | int] = {}
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    partition = TopicPartition(topic.name, index)
                    errors[partition] = self.append(
                        broker_id,
                        partition,
                        (marker.producer_id, marker.producer_epoch, marker.transaction_result),
                        marker.coordinator_epoch,
                    )
            results.append((marker.producer_id, errors))
        return response(*results)

    def append(
        self, broker_id: int, partition: TopicPartition, marker: Marker, coordinator_epoch: int
    ) -> ErrorCode:
        if self.image.leaders[partition] != broker_id:
            return E.NOT_LEADER_OR_FOLLOWER
        key = partition, marker[0]
        if coordinator_epoch < self.epochs.get(key, -1):
            return E.TRANSACTION_COORDINATOR_FENCED
        error = E.NONE
        if self.has_faults and self.random.random() < 0.4:
            error = self.random.choice(TRIED_AGAIN)
        if error is E.NONE or error in WRITTEN_ANYWAY:
            self.written[partition].append(marker)
            self.epochs[key] = coordinator_epoch
        return error

    # the steps

    def step(self) -> None:
        kind = self.random.random()
        if kind < 0.1:
            partition = self.random.choice(self.partitions)
            self.image.leaders[partition] = self.random.choice([-1, 1, 2, 3])
        elif kind < 0.15:
            self.lead()
        elif kind < 0.5:
            self.timers.advance(self.random.choice([1, 10, 300, 2_000]))
        else:
            self.use(self.random.choice(self.clients))

    def use(self, client: Client) -> None:
        opened = self.open.get(client.transactional_id)
        if client.producer_id < 0 or self.random.random() < 0.05:
            if client.init() is E.NONE:
                self.open.pop(client.transactional_id, None)
        elif opened is None or self.random.random() < 0.4:
            partitions = self.random.sample(self.partitions, self.random.randint(1, 4))
            if client.add(*partitions) is E.NONE:
                self.open.setdefault(client.transactional_id, set()).update(partitions)
        else:
            commit = self.random.random() < 0.5
            if client.end(commit=commit) is E.NONE:
                self.ended.append(((client.producer_id, client.epoch, commit), opened))
                del self.open[client.transactional_id]

    def finish(self) -> None:
        """Nothing fails any more; every partition gets a leader."""
        self.has_faults = False
        for partition, leader in self.image.leaders.items():
            if leader < 0:
                self.image.leaders[partition] = 3
        self.timers.advance(120_000)

    def check(self) -> None:
        for transaction in self.shard().transactions.values():
            assert transaction.state in AT_REST, transaction
        for (producer_id, epoch, commit), partitions in self.ended:
            for partition in partitions:
                found = self.written[partition]
                assert (producer_id, epoch, commit) in found, f"{partition} has no marker"
                assert (producer_id, epoch, not commit) not in found


class LocalLeader:
    """The log of the partitions that broker 1 leads."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def append(
        self, topic_partition: TopicPartition, batch: bytearray, *, transaction_version: int = 0
    ) -> Deferred[AppendOutcome]:
        header = read_batch_header(batch)
        (record,) = iter_records(batch, header)
        marker = (
            header.producer_id,
            header.producer_epoch,
            control_type(record) is ControlType.COMMIT,
        )
        epoch = marker_coordinator_epoch(record)
        error = self.simulation.append(1, topic_partition, marker, epoch)
        if error is E.UNKNOWN_TOPIC_OR_PARTITION:  # its metadata are those of the coordinator
            error = E.NOT_LEADER_OR_FOLLOWER
        outcome: AppendOutcome = Outcome(error)
        return Deferred.of(outcome)

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        raise AssertionError


def simulate(seed: int) -> Simulation:
    simulation = Simulation(seed)
    for _ in range(STEPS):
        simulation.step()
    simulation.finish()
    simulation.check()
    return simulation


@pytest.mark.parametrize("seed", range(30))
def test_every_partition_gets_the_marker_of_its_transaction(seed: int) -> None:
    simulate(seed)


def test_transactions_end_in_most_seeds() -> None:
    assert sum(len(simulate(seed).ended) for seed in range(10)) > 20


def lost_responses_count(entries: Any, error: KafkaError) -> None:
    for entry in entries:
        entry.fail_all(E.NONE)


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        pytest.param(
            completion,
            "MARKER_DONE",
            completion.MARKER_DONE | {E.NOT_ENOUGH_REPLICAS},
            id="a marker is dropped on a retriable error",
        ),
        pytest.param(
            remote_markers,
            "_outcome_of",
            lambda error: error,
            id="what a leader does not know yet counts as deleted",
        ),
        pytest.param(
            remote_markers, "_fail", lost_responses_count, id="a lost response counts as success"
        ),
    ],
)
def test_a_mutant_is_found(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, mutant: object
) -> None:
    monkeypatch.setattr(module, name, mutant)
    for seed in range(30):
        try:
            simulate(seed)
        except AssertionError as error:
            assert "has no marker" in str(error)
            return
    raise AssertionError("no seed finds it")
