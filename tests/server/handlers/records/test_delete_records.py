"""DeleteRecords: each partition's result, and which partitions and offsets are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.metadata.internal_topics import CONSUMER_OFFSETS
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest, DeleteRecordsResponse
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.reads.low_watermark import NO_LOW_WATERMARK
from kbroker.server.handlers.records import delete_records
from kbroker.server.handlers.records.delete_records import HANDLERS
from kbroker.server.requests import RequestContext
from tests.replication.proposals import Brokers, Proposals
from tests.replication.world import TOPIC, World, batch
from tests.server.slices import Sliced

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)
END_OFFSET = 6


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three partitions of six records, in two batches each."""
    made = World(tmp_path, partitions=3)
    for index in range(3):
        made.append(index, batch(3))
        made.append(index, batch(3))
    yield made
    made.close()


def request_of(*asked: tuple[str, int, int]) -> DeleteRecordsRequest:
    """asked: (topic, partition, offset); each is a topic of its own in the request."""
    return DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsRequest.DeleteRecordsPartition(
                        partition_index=index, offset=offset
                    )
                ],
            )
            for name, index, offset in asked
        ],
        timeout_ms=1000,
    )


def results_of(response: DeleteRecordsResponse) -> dict[tuple[str, int], tuple[int, int]]:
    """(low watermark, error) by (topic, partition)."""
    return {
        (topic.name, found.partition_index): (found.low_watermark, found.error_code)
        for topic in response.topics
        for found in topic.partitions
    }


def ask(
    world: World, *asked: tuple[str, int, int], version: int = HANDLER.max_version
) -> DeleteRecordsResponse:
    known = {TOPIC: range(4), CONSUMER_OFFSETS: range(1)}
    image = SimpleNamespace(
        partition=lambda name, index: object() if index in known.get(name, ()) else None
    )
    sliced = Sliced(replicas=world.replicas, image=image)
    request, _ = decode(DeleteRecordsRequest, encode(request_of(*asked), version), version)
    context = RequestContext(ApiKey.DELETE_RECORDS, version)
    response: Any = sliced.answer(HANDLER.handle(sliced.services, context, request))
    decoded, _ = decode(DeleteRecordsResponse, encode(response, version), version)
    return decoded


def start_of(world: World, index: int = 0) -> int:
    log = world.logs.get(TopicPartition(TOPIC, index))
    assert log is not None
    return log.log_start_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(world: World, version: int) -> None:
    response = ask(world, (TOPIC, 0, 4), (TOPIC, 1, -1), version=version)
    assert results_of(response) == {(TOPIC, 0): (4, 0), (TOPIC, 1): (END_OFFSET, 0)}
    assert [start_of(world, index) for index in range(3)] == [4, END_OFFSET, 0]


@pytest.mark.parametrize(
    ("offset", "low_watermark", "error"),
    [
        pytest.param(0, 2, ErrorCode.NONE, id="deleted before"),
        pytest.param(2, 2, ErrorCode.NONE, id="the start"),
        pytest.param(4, 4, ErrorCode.NONE, id="within a batch"),
        pytest.param(END_OFFSET, END_OFFSET, ErrorCode.NONE, id="all"),
        pytest.param(7, NO_LOW_WATERMARK, ErrorCode.OFFSET_OUT_OF_RANGE, id="beyond"),
        pytest.param(-2, NO_LOW_WATERMARK, ErrorCode.OFFSET_OUT_OF_RANGE, id="negative"),
    ],
)
def test_offsets(world: World, offset: int, low_watermark: int, error: ErrorCode) -> None:
    ask(world, (TOPIC, 0, 2))
    assert results_of(ask(world, (TOPIC, 0, offset))) == {(TOPIC, 0): (low_watermark, error)}
    assert start_of(world) == (2 if error else low_watermark)


def test_a_refused_partition_leaves_the_others_alone(world: World) -> None:
    world.host(1, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2))
    response = ask(
        world,
        (TOPIC, 1, 3),
        ("other", 0, 3),
        (TOPIC, 3, 3),
        (CONSUMER_OFFSETS, 0, 3),
        (TOPIC, 0, 3),
    )
    refused = NO_LOW_WATERMARK
    assert results_of(response) == {
        (TOPIC, 1): (refused, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("other", 0): (refused, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, 3): (refused, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (CONSUMER_OFFSETS, 0): (refused, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, 0): (3, ErrorCode.NONE),
    }
    assert [topic.name for topic in response.topics] == [TOPIC, "other", CONSUMER_OFFSETS]


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_a_topic_that_is_only_compacted_keeps_its_records(world: World, policy: str) -> None:
    world.configure(cleanup_policy=policy)
    expected = (
        (NO_LOW_WATERMARK, ErrorCode.POLICY_VIOLATION)
        if policy == "compact"
        else (3, ErrorCode.NONE)
    )
    assert results_of(ask(world, (TOPIC, 0, 3))) == {(TOPIC, 0): expected}


def test_a_disk_that_is_lost(world: World) -> None:
    partition = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert partition is not None
    world.replicas.hosting.read_failed(partition, OSError(5, "Input/output error"))
    results = results_of(ask(world, (TOPIC, 0, 3), (TOPIC, 1, 3)))
    assert results == {
        (TOPIC, 0): (NO_LOW_WATERMARK, ErrorCode.KAFKA_STORAGE_ERROR),
        (TOPIC, 1): (3, ErrorCode.NONE),
    }


def test_of_a_partition_named_twice_the_last_offset_counts(world: World) -> None:
    response = ask(world, (TOPIC, 0, 5), (TOPIC, 1, 1), (TOPIC, 0, 2))
    assert results_of(response) == {(TOPIC, 0): (2, 0), (TOPIC, 1): (1, 0)}
    assert sum(len(topic.partitions) for topic in response.topics) == 2


def test_partitions_are_deleted_from_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_records, "DELETIONS_PER_STEP", 1)
    image = SimpleNamespace(partition=lambda name, index: object())
    sliced = Sliced(seconds=0.001, replicas=world.replicas, image=image)
    asked = [(TOPIC, index, 3) for index in range(3)]
    context = RequestContext(ApiKey.DELETE_RECORDS, HANDLER.max_version)
    outcome = HANDLER.handle(sliced.services, context, request_of(*asked))
    starts = [[start_of(world, index) for index in range(3)]]
    while sliced.turns.due:
        sliced.turns.turn()
        starts.append([start_of(world, index) for index in range(3)])
    assert [3, 0, 0] in starts and [3, 3, 0] in starts and starts[-1] == [3, 3, 3]
    response: Any = sliced.answer(outcome)
    assert results_of(response) == {(TOPIC, index): (3, 0) for index in range(3)}


def test_an_error_of_the_whole_request_is_that_of_each_partition() -> None:
    request = request_of((TOPIC, 0, 3), ("other", 7, 1))
    response: Any = HANDLER.error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
    error = (NO_LOW_WATERMARK, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert results_of(response) == {(TOPIC, 0): error, ("other", 7): error}


def test_the_response_waits_for_followers(tmp_path: Path) -> None:
    epochs = {1: 1, 2: 1}
    world = World(tmp_path, partitions=0, isr_ports=IsrPorts(Brokers(epochs), Proposals()))
    for index in range(2):
        world.host(index, replicas=(1, 2))
        world.append(index, batch(3))
        follower_fetched(world, index, 0)
    image = SimpleNamespace(partition=lambda name, index: object())
    sliced = Sliced(replicas=world.replicas, image=image)
    request = request_of((TOPIC, 0, 2), (TOPIC, 1, -1))
    outcome = HANDLER.handle(sliced.services, RequestContext(ApiKey.DELETE_RECORDS, 2), request)
    assert isinstance(outcome, Deferred)
    assert not outcome.done
    assert [start_of(world, index) for index in range(2)] == [2, 3], "the leader deletes at once"
    follower_fetched(world, 1, 3)
    world.timers.advance(request.timeout_ms)
    response = sliced.answer(outcome)
    assert results_of(response) == {
        (TOPIC, 0): (0, ErrorCode.REQUEST_TIMED_OUT),
        (TOPIC, 1): (3, ErrorCode.NONE),
    }
    world.close()


def test_a_client_that_has_gone_is_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=0, isr_ports=IsrPorts(Brokers({2: 1}), Proposals()))
    world.host(0, replicas=(1, 2))
    world.append(0, batch(3))
    follower_fetched(world, 0, 0)
    image = SimpleNamespace(partition=lambda name, index: object())
    sliced = Sliced(replicas=world.replicas, image=image)
    context = RequestContext(ApiKey.DELETE_RECORDS, 2)
    outcome = HANDLER.handle(sliced.services, context, request_of((TOPIC, 0, 2)))
    assert isinstance(outcome, Deferred)
    assert world.replicas.purgatory.waiting
    outcome.cancel()
    assert not world.replicas.purgatory.waiting
    world.close()


def follower_fetched(world: World, index: int, start: int) -> None:
    """Follower 2 has all records, and its log begins at start."""
    partition = world.replicas.partition(TopicPartition(TOPIC, index))
    assert partition is not None
    partition.follower_fetched(
        2, fetch_offset=3, log_start_offset=start, broker_epoch=1, now_ms=world.timers.now_ms()
    )
