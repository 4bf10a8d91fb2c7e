"""DescribeProducers: what is answered, and what one request may cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kbroker.replication.time_slices import FairSlices
from kbroker.server.handlers.transactions.producers import HANDLERS
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import RequestContext
from tests.replication.test_time_slices import Ticks
from tests.replication.world import TOPIC, World, batch

(HANDLER,) = HANDLERS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=2, kbroker_response_max_bytes="40000")
    for producer_id in range(20):
        made.append(batches=batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
    yield made
    made.close()


def ask(
    world: World, *topics: tuple[str, list[int]]
) -> list[DescribeProducersResponse.TopicResponse]:
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in topics
        ]
    )
    received, _ = decode(DescribeProducersRequest, encode(request, 0), 0)
    services: Any = SimpleNamespace(
        replicas=world.replicas,
        config=world.config,
        memory=MemoryPool(),
        slices=FairSlices(world.timers, clock=Ticks()),
    )
    outcome = HANDLER.handle(services, RequestContext(ApiKey.DESCRIBE_PRODUCERS, 0), received)
    if isinstance(outcome, Deferred):
        while not outcome.done:
            world.timers.advance(0)
        outcome = outcome.value
    assert isinstance(outcome, DescribeProducersResponse)
    assert services.memory.used == 0
    return outcome.topics


def test_each_partition_has_its_producers(world: World) -> None:
    known, unknown = ask(world, (TOPIC, [0, 1]), ("other", [3]))
    assert [len(each.active_producers) for each in known.partitions] == [20, 0]
    (missing,) = unknown.partitions
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing.error_message == "other-3 does not exist."


def test_a_partition_named_again_is_described_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[object] = []
    whole = world.replicas.producers_of
    monkeypatch.setattr(
        world.replicas, "producers_of", lambda key: described.append(key) or whole(key)
    )
    topics = ask(world, *[(TOPIC, [0] * 100)] * 100, (TOPIC, [1, 0]))
    assert [[each.partition_index for each in topic.partitions] for topic in topics] == [[0], [1]]
    assert len(described) == 2


def test_a_long_name_is_not_repeated_for_each_partition(world: World) -> None:
    """One name and many partitions of it: the answer would be their product."""
    (topic,) = ask(world, ("x" * 30_000, list(range(100))))
    assert sum(len(each.error_message) for each in topic.partitions) < 40_000


def test_an_answer_has_a_bound(world: World) -> None:
    for index in range(2, 20):
        world.host(index)
        for producer_id in range(20):
            world.append(index, batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
    (topic,) = ask(world, (TOPIC, list(range(20))))
    codes = [each.error_code for each in topic.partitions]
    answered = codes.count(ErrorCode.NONE)
    assert 2 < answered < 10
    assert codes == [0] * answered + [ErrorCode.POLICY_VIOLATION] * (20 - answered)
