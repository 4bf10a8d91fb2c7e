"""States of share partitions at another broker: each API on the wire, batches, and errors; and a
leader whose share coordinator moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.broker.remote.remote_share_states import PURPOSE, STATE_BATCH_BYTES, RoutedShareStates
from kbroker.coordinator.share_state.persister import CLUSTER_TRIES, RetryingSharePersister
from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.share_partition_state import (
    SharePlace,
    StateBatch,
    StateFound,
    StateSummary,
    StateWrite,
)
from kbroker.server.network.memory_pool import MemoryPool
from tests.broker.peers import Image, Peers, Sent
from tests.sim.timers import SimTimers

E = ErrorCode
TOPIC: Uuid = bytes(15) + b"\x07"
OTHER: Uuid = bytes(15) + b"\x08"
HERE, THERE, NOWHERE, UNKNOWN = 0, 1, 2, 3
"""Partitions of `__share_group_state`; a share partition has its own number there."""
KEY = SharePlace("g", (TOPIC, THERE))
BATCH = StateBatch(10, 12, 2, 1)
WRITE = StateWrite(3, 4, 10, 5, [BATCH])


class Coordinator:
    """This broker's. asked: keys."""

    def __init__(self) -> None:
        self.asked: list[SharePlace] = []

    def partition_of(self, key: SharePlace) -> int:
        return key.place[1]

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        self.asked.append(key)
        return Deferred.of(StateFound(E.NOT_COORDINATOR))

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        return self._error(key)

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> Deferred[ErrorCode]:
        return self._error(key)

    def delete(self, key: SharePlace) -> Deferred[ErrorCode]:
        return self._error(key)

    def summarize(self, key: SharePlace) -> Deferred[StateSummary]:
        self.asked.append(key)
        return Deferred.of(StateSummary(E.NOT_COORDINATOR))

    def _error(self, key: SharePlace) -> Deferred[ErrorCode]:
        self.asked.append(key)
        return Deferred.of(E.NOT_COORDINATOR)


class World:
    def __init__(self) -> None:
        self.peers = Peers()
        self.coordinator = Coordinator()
        self.image = Image(__share_group_state=[1, 2, -1])
        self.image.topics_by_id[TOPIC] = object()
        peers: Any = self.peers
        coordinator: Any = self.coordinator
        image: Any = self.image
        self.memory = MemoryPool()
        self.states = RoutedShareStates(1, coordinator, peers, lambda: image, self.memory)

    def one(self) -> Sent:
        (sent,) = self.peers.take()
        assert (sent.broker_id, sent.purpose) == (2, PURPOSE)
        return sent


Ask = Callable[[RoutedShareStates, SharePlace], Deferred[Any]]

CALLS: list[tuple[Ask, Any, Any]] = [
    (
        lambda states, key: states.read(key, 4),
        ReadShareGroupStateRequest.PartitionData(partition=THERE, leader_epoch=4),
        StateFound,
    ),
    (
        lambda states, key: states.write(key, WRITE),
        WriteShareGroupStateRequest.PartitionData(
            partition=THERE,
            state_epoch=3,
            leader_epoch=4,
            start_offset=10,
            delivery_complete_count=5,
            state_batches=[BATCH],  # type: ignore[list-item]  # it has the fields of the struct
        ),
        lambda error: error,
    ),
    (
        lambda states, key: states.initialize(key, 3, 10),
        InitializeShareGroupStateRequest.PartitionData(
            partition=THERE, state_epoch=3, start_offset=10
        ),
        lambda error: error,
    ),
    (
        lambda states, key: states.delete(key),
        DeleteShareGroupStateRequest.PartitionData(partition=THERE),
        lambda error: error,
    ),
    (
        lambda states, key: states.summarize(key),
        ReadShareGroupStateSummaryRequest.PartitionData(partition=THERE, leader_epoch=0),
        StateSummary,
    ),
]
IDS = ["read", "write", "initialize", "delete", "summarize"]


@pytest.mark.parametrize(("ask", "part", "failed"), CALLS, ids=IDS)
def test_a_call_on_the_wire(ask: Ask, part: Any, failed: Any) -> None:
    world = World()
    ask(world.states, KEY)
    request = world.one().request
    (topic,) = request.topics
    assert (request.group_id, bytes(topic.topic_id)) == ("g", TOPIC)
    assert topic.partitions == [part]
    assert not world.coordinator.asked


@pytest.mark.parametrize(("ask", "part", "failed"), CALLS, ids=IDS)
@pytest.mark.parametrize("partition", [HERE, NOWHERE, UNKNOWN])
def test_other_states_are_of_this_brokers_coordinator(
    ask: Ask, part: Any, failed: Any, partition: int
) -> None:
    world = World()
    key = SharePlace("g", (TOPIC, partition))
    assert ask(world.states, key).value == failed(E.NOT_COORDINATOR)
    assert world.coordinator.asked == [key] and not world.peers.sent


@pytest.mark.parametrize(("ask", "part", "failed"), CALLS, ids=IDS)
def test_a_request_without_a_response_is_tried_again(ask: Ask, part: Any, failed: Any) -> None:
    world = World()
    asked = ask(world.states, KEY)
    world.one().fail()
    assert asked.value == failed(E.COORDINATOR_NOT_AVAILABLE)


def test_calls_are_charged_by_their_batches_and_without_room_tried_again() -> None:
    world = World()
    first = world.states.write(KEY, WRITE)
    small = world.memory.used
    second = world.states.write(KEY, WRITE._replace(batches=[BATCH] * 11))
    assert world.memory.used == 2 * small + 10 * STATE_BATCH_BYTES
    world.memory.charge(world.memory.limit)
    assert world.states.write(KEY, WRITE).value is E.COORDINATOR_NOT_AVAILABLE
    world.memory.release(world.memory.limit)
    world.one().response.resolve(written(p1=0))
    world.one().response.resolve(written(p1=0))
    assert (first.value, second.value) == (E.NONE, E.NONE)
    assert world.memory.used == 0


def test_a_state_that_was_read() -> None:
    world = World()
    read = world.states.read(KEY, 4)
    kind = ReadShareGroupStateResponse
    found = kind.PartitionResult(
        partition=THERE,
        state_epoch=3,
        start_offset=10,
        state_batches=[
            kind.StateBatch(first_offset=10, last_offset=12, delivery_state=2, delivery_count=1)
        ],
    )
    results = [kind.ReadStateResult(topic_id=TOPIC, partitions=[found])]
    world.one().response.resolve(kind(results=results))
    assert read.value == StateFound(E.NONE, 3, 10, [BATCH])


def test_a_summary() -> None:
    world = World()
    summarized = world.states.summarize(KEY)
    kind = ReadShareGroupStateSummaryResponse
    found = kind.PartitionResult(
        partition=THERE, state_epoch=3, leader_epoch=4, start_offset=10, delivery_complete_count=5
    )
    results = [kind.ReadStateSummaryResult(topic_id=TOPIC, partitions=[found])]
    world.one().response.resolve(kind(results=results))
    assert summarized.value == StateSummary(E.NONE, 10, 4, 5, 3)


def written(**errors: int) -> WriteShareGroupStateResponse:
    """Of partitions p1, p2 ... of TOPIC."""
    kind = WriteShareGroupStateResponse
    return kind(
        results=[
            kind.WriteStateResult(
                topic_id=TOPIC,
                partitions=[kind.PartitionResult(partition=int(name[1:]), error_code=error)],
            )
            for name, error in errors.items()
        ]
    )


@pytest.mark.parametrize(
    ("topic", "error", "told"),
    [
        (TOPIC, E.NONE, E.NONE),
        (TOPIC, E.FENCED_STATE_EPOCH, E.FENCED_STATE_EPOCH),
        (TOPIC, E.FENCED_LEADER_EPOCH, E.FENCED_LEADER_EPOCH),
        (TOPIC, E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (TOPIC, E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (OTHER, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, None, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_errors_of_the_coordinator(topic: Uuid, error: ErrorCode | None, told: ErrorCode) -> None:
    """A topic that this broker knows and the coordinator does not was created a moment ago."""
    world = World()
    write = world.states.write(SharePlace("g", (topic, THERE)), WRITE)
    answer = written() if error is None else written(p1=int(error))
    for result in answer.results:
        result.topic_id = topic
    world.one().response.resolve(answer)
    assert write.value is told


def test_calls_of_a_group_and_an_api_share_a_request() -> None:
    world = World()
    image: Any = world.image
    image.leaders |= {("__share_group_state", index): 2 for index in range(1, 6)}
    keys = [SharePlace("g", (TOPIC, index)) for index in range(1, 6)]
    writes = [world.states.write(key, WRITE) for key in keys]
    world.states.delete(keys[0])
    world.states.write(SharePlace("h", keys[0].place), WRITE)
    first, deletion, other_group = world.peers.take()
    assert isinstance(first.request, WriteShareGroupStateRequest)
    assert isinstance(deletion.request, DeleteShareGroupStateRequest)
    assert other_group.request.group_id == "h"
    first.response.resolve(written(p1=0))
    (second,) = world.peers.take()
    (topic,) = second.request.topics
    assert [part.partition for part in topic.partitions] == [2, 3, 4, 5]
    second.response.resolve(written(p5=16, p3=0, p2=int(E.FENCED_STATE_EPOCH), p4=0))
    assert [write.value for write in writes] == [
        E.NONE,
        E.FENCED_STATE_EPOCH,
        E.NONE,
        E.NONE,
        E.NOT_COORDINATOR,
    ]


@pytest.mark.parametrize("response", [InitializeShareGroupStateResponse, None])
def test_the_results_of_initialize_and_delete(response: Any) -> None:
    world = World()
    if response is None:
        asked = world.states.delete(KEY)
        deleted = DeleteShareGroupStateResponse
        part = deleted.PartitionResult(partition=THERE, error_code=int(E.INVALID_REQUEST))
        topic = deleted.DeleteStateResult(topic_id=TOPIC, partitions=[part])
        answer: Any = deleted(results=[topic])
    else:
        asked = world.states.initialize(KEY, 1, 0)
        kind = InitializeShareGroupStateResponse
        made = kind.PartitionResult(partition=THERE, error_code=int(E.INVALID_REQUEST))
        answer = kind(results=[kind.InitializeStateResult(topic_id=TOPIC, partitions=[made])])
    world.one().response.resolve(answer)
    assert asked.value is E.INVALID_REQUEST


def test_a_write_follows_its_coordinator_to_another_broker() -> None:
    """The coordinator loads, resigns, dies; the next one takes the write."""
    world = World()
    timers = SimTimers()
    persister = RetryingSharePersister(
        world.states, timers, lambda: Deferred.of(E.NONE), tries=CLUSTER_TRIES
    )
    write = persister.write(KEY, WRITE)
    for error in (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR):
        world.one().response.resolve(written(p1=int(error)))
        assert not write.done
        timers.advance(1_000)
    world.one().fail()
    world.image.leaders["__share_group_state", THERE] = -1
    timers.advance(1_000)
    world.image.leaders["__share_group_state", THERE] = 3
    timers.advance(2_000)
    (sent,) = world.peers.take()
    assert sent.broker_id == 3
    sent.response.resolve(written(p1=0))
    assert write.value is E.NONE
