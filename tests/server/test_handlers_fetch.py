"""Fetch through the codec in every version; what is read and when is tested in replication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.log.files import FileSlice
from kbroker.model import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codec import decode, encode, encode_parts
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.server.dispatch import RequestContext
from kbroker.server.handlers.fetch import HANDLERS
from tests.replication.world import TOPIC, TOPIC_ID, World, batch, fetch_request, partitions_of
from tests.server.test_handlers_produce import image

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=1)
    yield made
    made.close()


def handle(world: World, version: int, request: FetchRequest) -> Any:  # a response or a Deferred
    received, _ = decode(FetchRequest, encode(request, version), version)
    services: Any = SimpleNamespace(replicas=world.replicas, image=image(), timers=world.timers)
    context = RequestContext(ApiKey.FETCH, version, arrived_ms=world.timers.now_ms())
    return HANDLER.handle(services, context, received)


def on_the_wire(response: FetchResponse, version: int) -> FetchResponse:
    parts = [
        part if isinstance(part, bytes | bytearray | memoryview) else part.read()  # type: ignore[attr-defined]
        for part in encode_parts(response, version)
    ]
    decoded, end = decode(FetchResponse, b"".join(parts), version)
    assert end == sum(map(len, parts))
    return decoded


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(world: World, version: int) -> None:
    made = batch(3)
    world.append(batches=made)
    topic_id = TOPIC_ID if version >= 13 else bytes(16)
    response = handle(world, version, fetch_request({0: 1}, topic_id=topic_id))
    assert isinstance(partitions_of(response)[0].records, FileSlice)
    received = on_the_wire(response, version)
    (topic,) = received.responses
    assert (topic.topic, topic.topic_id) == ((TOPIC, bytes(16)) if version < 13 else ("", TOPIC_ID))
    data = topic.partitions[0]
    assert bytes(data.records or b"") == bytes(made)  # type: ignore[arg-type]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 3, 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_is_empty_not_null(world: World, version: int) -> None:
    request = fetch_request({0: 0, 5: 0}, topic_id=TOPIC_ID if version >= 13 else bytes(16))
    received = on_the_wire(handle(world, version, request), version)
    for data in partitions_of(received).values():
        assert data.records is not None
        assert len(data.records) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [15, 16, 18])
@pytest.mark.parametrize("waits", [False, True])
def test_who_leads_elsewhere_is_named(world: World, version: int, waits: bool) -> None:
    if waits:
        world.host(1)
    else:
        world.host(1, leader=2, epoch=4, replicas=(1, 2))
    request = fetch_request({1: 0}, topic_id=TOPIC_ID, max_wait_ms=500)
    outcome = handle(world, version, request)
    if waits:
        assert isinstance(outcome, Deferred)
        world.host(1, leader=2, epoch=4, partition_epoch=1, replicas=(1, 2))
        world.timers.advance(0)
        outcome = outcome.value
    received = on_the_wire(outcome, version)
    data = partitions_of(received)[1]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < 16:
        assert received.node_endpoints == []
        return
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 4)
    assert [endpoint.host for endpoint in received.node_endpoints] == ["two.example"]


def test_a_replica_by_its_state(world: World) -> None:
    request = fetch_request({0: 0}, topic_id=TOPIC_ID)
    request.replica_state = FetchRequest.ReplicaState(replica_id=9, replica_epoch=1)
    data = partitions_of(handle(world, 15, request))[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_unknown_session(world: World) -> None:
    response = on_the_wire(handle(world, 12, fetch_request({}, session=(77, 3))), 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_request_given_up(world: World) -> None:
    response = HANDLER.error_response(fetch_request({2: 0}), ErrorCode.KAFKA_STORAGE_ERROR, "")
    assert isinstance(response, FetchResponse)
    assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partitions_of(response)[2].error_code == ErrorCode.KAFKA_STORAGE_ERROR
