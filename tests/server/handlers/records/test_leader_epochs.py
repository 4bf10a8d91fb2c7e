"""OffsetForLeaderEpoch: the end of an epoch, and fencing by the client's own epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kbroker.server.handlers.records.leader_epochs import HANDLERS
from kbroker.server.requests import RequestContext
from tests.replication.world import TOPIC, World, batch
from tests.server.slices import Sliced

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)
FENCING_VERSION = 2
UNDEFINED = (-1, -1)

Asked = tuple[str, int, int, int]
"""(topic, partition, leader epoch, the client's current leader epoch)."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Partition 0: epoch 0 has offsets 0 and 1, epoch 2 has 2 to 4. Partition 1 is empty."""
    made = World(tmp_path, partitions=2)
    made.append(0, batch(2))
    made.host(0, epoch=2, partition_epoch=1)
    made.append(0, batch(3))
    yield made
    made.close()


def request_of(*asked: Asked) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                        partition=index, leader_epoch=epoch, current_leader_epoch=current
                    )
                ],
            )
            for name, index, epoch, current in asked
        ],
    )


def results_of(response: OffsetForLeaderEpochResponse) -> list[tuple[str, int, int, int, int]]:
    """(topic, partition, error, leader epoch, end offset), in the order of the response."""
    return [
        (topic.topic, found.partition, found.error_code, found.leader_epoch, found.end_offset)
        for topic in response.topics
        for found in topic.partitions
    ]


def ask(
    world: World, *asked: Asked, version: int = HANDLER.max_version
) -> list[tuple[str, int, int, int, int]]:
    sliced = Sliced(replicas=world.replicas)
    sent = encode(request_of(*asked), version)
    request, _ = decode(OffsetForLeaderEpochRequest, sent, version)
    context = RequestContext(ApiKey.OFFSET_FOR_LEADER_EPOCH, version)
    response: Any = sliced.answer(HANDLER.handle(sliced.services, context, request))
    decoded, _ = decode(OffsetForLeaderEpochResponse, encode(response, version), version)
    return results_of(decoded)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(world: World, version: int) -> None:
    assert ask(world, (TOPIC, 0, 0, -1), version=version) == [
        (TOPIC, 0, ErrorCode.NONE, 0 if version >= 1 else -1, 2)
    ]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(0, (0, 2), id="an older epoch ends where the next one begins"),
        pytest.param(1, (0, 2), id="without records: the largest epoch below"),
        pytest.param(2, (2, 5), id="the present epoch ends at the log end"),
        pytest.param(3, UNDEFINED, id="newer than all"),
        pytest.param(-1, UNDEFINED, id="none"),
    ],
)
def test_the_end_of_an_epoch(world: World, epoch: int, expected: tuple[int, int]) -> None:
    assert ask(world, (TOPIC, 0, epoch, -1)) == [(TOPIC, 0, ErrorCode.NONE, *expected)]


@pytest.mark.parametrize(
    ("current", "error"),
    [
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_client_is_fenced_by_its_own_epoch(
    world: World, current: int, error: ErrorCode
) -> None:
    expected = UNDEFINED if error else (0, 2)
    assert ask(world, (TOPIC, 0, 0, current)) == [(TOPIC, 0, error, *expected)]
    ((*_, end_offset),) = ask(world, (TOPIC, 0, 0, current), version=FENCING_VERSION - 1)
    assert end_offset == 2, "the request has no such field before v2"


def test_each_partition_has_its_result_in_the_order_of_the_request(world: World) -> None:
    world.host(1, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2))
    partition = world.host(2)
    world.replicas.hosting.read_failed(partition, OSError(5, "Input/output error"))
    asked = [("other", 0, 0, -1), (TOPIC, 2, 0, -1), (TOPIC, 0, 2, -1), (TOPIC, 1, 0, -1)]
    assert ask(world, *asked) == [
        ("other", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *UNDEFINED),
        (TOPIC, 2, ErrorCode.KAFKA_STORAGE_ERROR, *UNDEFINED),
        (TOPIC, 0, ErrorCode.NONE, 2, 5),
        (TOPIC, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER, *UNDEFINED),
    ]


def test_a_request_of_many_partitions_is_answered_in_steps(world: World) -> None:
    sliced = Sliced(seconds=0.001, replicas=world.replicas)
    request = request_of(*[(TOPIC, 0, 0, -1)] * 500)
    context = RequestContext(ApiKey.OFFSET_FOR_LEADER_EPOCH, HANDLER.max_version)
    outcome = HANDLER.handle(sliced.services, context, request)
    assert sliced.turns.due, "the loop has a turn before the end"
    response: Any = sliced.answer(outcome)
    assert results_of(response) == [(TOPIC, 0, ErrorCode.NONE, 0, 2)] * 500


def test_an_error_of_the_whole_request_is_that_of_each_partition() -> None:
    request = request_of((TOPIC, 0, 0, -1), ("other", 7, 1, -1))
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    response: Any = HANDLER.error_response(request, code, "")
    assert results_of(response) == [(TOPIC, 0, code, *UNDEFINED), ("other", 7, code, *UNDEFINED)]
