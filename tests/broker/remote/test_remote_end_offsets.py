"""The ends of partitions at other brokers: the request, batches, errors, and memory."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.remote.batch_queues import MAX_HELD_BYTES, PARTITION_BYTES
from kbroker.broker.remote.remote_end_offsets import MAX_ENTRIES, PURPOSE, RemoteEndOffsets
from kbroker.coordinator.group.share.offset_descriptions import EndOffset
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.server.network.memory_pool import MemoryPool
from tests.broker.peers import Peers, Sent

E = ErrorCode
P0, P1, Q0 = TopicPartition("p", 0), TopicPartition("p", 1), TopicPartition("q", 0)


class World:
    """Broker 2 leads p and q."""

    def __init__(self) -> None:
        self.peers = Peers()
        peers: Any = self.peers
        self.memory = MemoryPool()
        self.remote = RemoteEndOffsets(peers, self.memory)


def answer(sent: Sent, ends: dict[TopicPartition, tuple[int, int]]) -> None:
    """ends: (error, offset)."""
    kind = ListOffsetsResponse
    sent.response.resolve(
        kind(
            topics=[
                kind.ListOffsetsTopicResponse(
                    name=partition.topic,
                    partitions=[
                        kind.ListOffsetsPartitionResponse(
                            partition_index=partition.partition, error_code=error, offset=offset
                        )
                    ],
                )
                for partition, (error, offset) in ends.items()
            ]
        )
    )


def named(sent: Sent) -> dict[str, list[int]]:
    return {
        topic.name: [each.partition_index for each in topic.partitions]
        for topic in sent.request.topics
    }


def test_a_question_on_the_wire() -> None:
    """The end that consumers may read, as Kafka asks for it."""
    world = World()
    ends = world.remote.ask(2, [Q0, P1])
    (sent,) = world.peers.take()
    assert (sent.broker_id, sent.purpose) == (2, PURPOSE)
    kind = ListOffsetsRequest
    assert sent.request == kind(
        replica_id=-1,
        isolation_level=0,
        topics=[
            kind.ListOffsetsTopic(
                name=name,
                partitions=[
                    kind.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=-1, timestamp=-1
                    )
                ],
            )
            for name, index in (("p", 1), ("q", 0))
        ],
    )
    answer(sent, {P1: (0, 17), Q0: (int(E.OFFSET_NOT_AVAILABLE), -1)})
    assert ends.value == {P1: EndOffset(E.NONE, 17), Q0: EndOffset(E.OFFSET_NOT_AVAILABLE, -1)}
    assert world.memory.used == 0


def test_questions_wait_for_the_request_before_them_and_name_no_partition_twice() -> None:
    world = World()
    first, *others = (world.remote.ask(2, asked) for asked in ([P0], [P0, P1], [P1, Q0]))
    (sent,) = world.peers.take()
    answer(sent, {P0: (0, 1)})
    (sent,) = world.peers.take()
    assert named(sent) == {"p": [0, 1], "q": [0]}
    answer(sent, {P0: (0, 2), P1: (999, -1)})
    assert first.value == {P0: EndOffset(E.NONE, 1)}
    unknown, missing = E.UNKNOWN_SERVER_ERROR, EndOffset(E.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert [each.value for each in others] == [
        {P0: EndOffset(E.NONE, 2), P1: EndOffset(unknown, -1)},
        {P1: EndOffset(unknown, -1), Q0: missing},
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (E.NETWORK_EXCEPTION, E.NETWORK_EXCEPTION),
        (E.REQUEST_TIMED_OUT, E.REQUEST_TIMED_OUT),
        (E.BROKER_NOT_AVAILABLE, E.LEADER_NOT_AVAILABLE),
    ],
)
def test_a_request_without_a_response(error: ErrorCode, told: ErrorCode) -> None:
    world = World()
    ends = world.remote.ask(2, [P0, P1])
    world.peers.sent[0].fail(error)
    assert ends.value == dict.fromkeys((P0, P1), EndOffset(told, -1))


def test_a_request_is_not_made_of_all_that_waits() -> None:
    """It is encoded in one turn of the loop."""
    world = World()
    world.remote.ask(2, [P0])
    for index in range(MAX_ENTRIES + 1):
        world.remote.ask(2, [TopicPartition("p", index)])
    world.peers.take()[0].fail()
    (sent,) = world.peers.take()
    assert named(sent) == {"p": list(range(MAX_ENTRIES))}


def test_a_question_without_room_is_answered() -> None:
    world = World()
    many = [TopicPartition("p", index) for index in range(64)]
    count = MAX_HELD_BYTES // (64 * PARTITION_BYTES) + 1
    asked = [world.remote.ask(2, many) for _ in range(count)]
    assert not asked[0].done
    assert asked[-1].value == dict.fromkeys(many, EndOffset(E.REQUEST_TIMED_OUT, -1))
    assert world.memory.used <= MAX_HELD_BYTES
