"""ListOffsets: versions, special timestamps and their first version, odd requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.reads.offsets import segment_offsets
from kbroker.replication.time_slices import FairSlices
from kbroker.server.handlers.records.list_offsets import HANDLERS
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import RequestContext
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from tests.replication.reads.test_batch_search import CLAIMED_MS, LyingWorld
from tests.replication.test_time_slices import Ticks, Turns
from tests.replication.world import NOW_MS, TOPIC, World, batch

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=1)
    yield made
    made.close()


def ask(
    world: World, version: int, *asked: tuple[int, int], max_offsets: int = 1
) -> list[ListOffsetsResponse.ListOffsetsPartitionResponse]:
    """asked: (partition, timestamp)."""
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=TOPIC,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=index,
                        timestamp=time,
                        max_num_offsets=max_offsets if version == 0 else 1,
                    )
                    for index, time in asked
                ],
            )
        ],
    )
    received, _ = decode(ListOffsetsRequest, encode(request, version), version)
    services: Any = SimpleNamespace(
        replicas=world.replicas,
        slices=world.replicas.fair_slices,
        memory=MemoryPool(),
        config=world.config,
    )
    response = HANDLER.handle(
        services, RequestContext(ApiKey.LIST_OFFSETS, version, arrived_ms=NOW_MS), received
    )
    if isinstance(response, Deferred):
        while not response.done:
            world.timers.advance(0)
        response = response.value
    assert isinstance(response, ListOffsetsResponse)
    decoded, _ = decode(ListOffsetsResponse, encode(response, version), version)
    assert decoded.topics[0].name == TOPIC
    return decoded.topics[0].partitions


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(world: World, version: int) -> None:
    world.append(batches=batch(3))
    (found,) = ask(world, version, (0, NOW_MS + 1))
    if version == 0:
        assert found.old_style_offsets == [3]  # the end, as of now
        return
    assert (found.error_code, found.offset, found.timestamp) == (0, 1, NOW_MS + 1)
    (latest,) = ask(world, version, (0, -1))
    assert (latest.offset, latest.timestamp) == (3, -1)
    assert latest.leader_epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize(
    ("timestamp", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)]
)
def test_special_timestamps_have_their_version(world: World, timestamp: int, since: int) -> None:
    for version in VERSIONS[1:]:
        (found,) = ask(world, version, (0, timestamp))
        expected = ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION
        assert found.error_code == expected


def test_a_partition_named_twice(world: World) -> None:
    codes = [found.error_code for found in ask(world, 7, (0, -1), (1, -1), (0, -2))]
    invalid = ErrorCode.INVALID_REQUEST
    assert codes == [invalid, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, invalid]


@pytest.mark.parametrize(
    ("version", "error"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_an_end_not_known_yet(world: World, version: int, error: ErrorCode) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    world.append()
    world.host(0, replicas=(1, 2), partition_epoch=2, epoch=1)
    (found,) = ask(world, version, (0, -1))
    assert found.error_code == error


def test_version_0_answers_with_starts_of_segments(world: World) -> None:
    log = world.replicas.logs.get(TopicPartition(TOPIC, 0))
    assert log is not None

    def offsets(timestamp: int, count: int = 10) -> list[int]:
        (found,) = ask(world, 0, (0, timestamp), max_offsets=count)
        assert found.error_code == 0
        return found.old_style_offsets

    assert offsets(-1) == offsets(-2) == [0]
    for index in range(3):
        world.append(batches=batch(2))
        os.utime(log.segments.active.path, (1000 * (index + 1),) * 2)
        log.roll(NOW_MS)
        os.utime(log.segments.active.path, (1000 * (index + 2),) * 2)
    assert offsets(-1) == [6, 4, 2, 0]
    assert offsets(-1, 2) == [6, 4]
    assert offsets(-1, 0) == offsets(-1, -5) == []
    assert offsets(-2) == [0]
    assert offsets(2_000_000) == [2, 0]
    assert offsets(2_000_000 - 1, 1) == [0]
    assert offsets(999_999) == []
    world.append(batches=batch(2))
    assert offsets(-1) == [8, 6, 4, 2, 0]
    assert offsets(NOW_MS * 2, 1) == [8]


def test_version_0_shows_a_consumer_nothing_above_the_high_watermark(world: World) -> None:
    world.append(batches=batch(2))
    partition = world.replicas.find(TOPIC, 0)
    assert not isinstance(partition, ErrorCode)
    partition.high_watermark = 1
    (found,) = ask(world, 0, (0, -1), max_offsets=9)
    assert found.old_style_offsets == [1, 0]
    assert segment_offsets(partition, -1, max_count=9, now_ms=NOW_MS, replica_id=-2) == [2, 0]


def test_version_0_has_its_errors(world: World) -> None:
    unknown, known = ask(world, 0, (7, -1), (0, -1))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert known.old_style_offsets == [0]
    log = world.replicas.logs.get(TopicPartition(TOPIC, 0))
    assert log is not None
    os.unlink(log.segments.active.path)
    (gone,) = ask(world, 0, (0, -1))
    assert gone.error_code == ErrorCode.KAFKA_STORAGE_ERROR


# What one request may cost


def test_version_0_answers_a_partition_named_twice_with_an_error(world: World) -> None:
    """Each time the starts of all segments were looked up and listed once more."""
    found = ask(world, 0, *[(0, -1)] * 100, max_offsets=1000)
    assert {each.error_code for each in found} == {ErrorCode.INVALID_REQUEST}
    assert not any(each.old_style_offsets for each in found)


def test_version_0_has_a_bound(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=3, kbroker_response_max_bytes="1024")
    for index in range(3):
        log = world.replicas.logs.get(TopicPartition(TOPIC, index))
        assert log is not None
        for _ in range(12):
            world.append(index)
            log.roll(NOW_MS)
    codes = [each.error_code for each in ask(world, 0, (0, -1), (1, -1), (2, -1), max_offsets=99)]
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    world.close()


def test_a_time_in_a_batch_that_claims_it_is_looked_for_in_a_thread(tmp_path: Path) -> None:
    world = LyingWorld(tmp_path)
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=TOPIC,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=CLAIMED_MS)
                ],
            )
        ],
    )
    services: Any = SimpleNamespace(
        replicas=world.replicas,
        slices=world.replicas.fair_slices,
        memory=world.pool,
        config=world.config,
    )
    outcome = HANDLER.handle(services, RequestContext(ApiKey.LIST_OFFSETS, 7), request)
    assert isinstance(outcome, Deferred)
    assert len(world.worker.held) == 1
    outcome.cancel()  # the connection is gone
    world.worker.run_one()
    world.timers.advance(0)
    assert not world.worker.held
    assert not outcome.done
    assert world.pool.used == 0
    world.close()


def test_topics_without_partitions_are_looked_at_in_slices(world: World) -> None:
    """350,000 of them in 1 MB held the loop for 420 ms."""
    turns = Turns()
    services: Any = SimpleNamespace(
        replicas=world.replicas,
        slices=FairSlices(turns, seconds=0.004, clock=Ticks()),
        memory=MemoryPool(),
        config=world.config,
    )
    count = 10 * CHEAP_ITEMS
    topics = [ListOffsetsRequest.ListOffsetsTopic(name="") for _ in range(count)]
    outcome = HANDLER.handle(
        services, RequestContext(ApiKey.LIST_OFFSETS, 11), ListOffsetsRequest(topics=topics)
    )
    assert isinstance(outcome, Deferred) and not outcome.done
    while turns.due:
        turns.turn()
    assert len(outcome.value.topics) == count
