"""How many partitions a Produce request names, against requests of every version."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.produce_shape import exceeds_partition_count
from tests.e2e.wire import frame_of


def produce(topics: list[list[bytes]], version: int) -> memoryview:
    """A request with such records for each partition of each topic, without its length."""
    request = ProduceRequest(
        transactional_id="some id" if version >= 3 else None,
        acks=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=f"topic-{number}",
                topic_id=bytes(15) + bytes([number]),
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=index, records=records)
                    for index, records in enumerate(partitions)
                ],
            )
            for number, partitions in enumerate(topics)
        ],
    )
    return memoryview(frame_of(request, version))[4:]


@pytest.mark.parametrize("version", range(14))
def test_topics_and_partitions_are_counted(version: int) -> None:
    topics = [[b"x" * 200, b""], [], [b"y" * 20_000, b"z", b""]]
    frame = produce(topics, version)
    assert exceeds_partition_count(frame, 7)
    assert not exceeds_partition_count(frame, 8)
    empty = produce([[]] * 5, version)
    assert exceeds_partition_count(empty, 4)
    assert not exceeds_partition_count(empty, 5)
    assert not exceeds_partition_count(produce([], version), 0)


@pytest.mark.parametrize("version", [0, 3, 9, 13])
def test_requests_of_any_shape(version: int) -> None:
    random = Random(version)
    for _ in range(50):
        topics = [
            [random.randbytes(random.choice((0, 1, 130, 300))) for _ in range(random.randrange(6))]
            for _ in range(random.randrange(1, 30))
        ]
        named = len(topics) + sum(map(len, topics))
        frame = produce(topics, version)
        assert exceeds_partition_count(frame, named - 1)
        assert not exceeds_partition_count(frame, named)


@pytest.mark.parametrize("version", [2, 8, 9, 13])
def test_bytes_that_are_no_request_end_the_walk(version: int) -> None:
    frame = produce([[b"x" * 20] * 10] * 3, version)
    for size in range(len(frame)):
        assert not exceeds_partition_count(frame[:size], 33)
    random = Random(7)
    for _ in range(300):
        changed = bytearray(frame)
        for _ in range(3):
            changed[random.randrange(8, len(changed))] = random.randrange(256)
        exceeds_partition_count(memoryview(changed), 1000)
