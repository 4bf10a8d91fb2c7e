"""A topic that gets more partitions: they are hosted when CreatePartitions is answered, groups get
them assigned, and keys of internal topics stay with the partitions that coordinate them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordinator.runtime.key_hash import partition_of
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreatePartitionsRequest
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetFetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing import EmbeddedBroker
from tests.clients.adapters import wait_until
from tests.e2e.wire import call

GROUP = "g"
OFFSETS_PARTITIONS = 3


class Connection:
    """To a broker with a topic t of two partitions."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def ask(self, request: Message, version: int) -> Any:
        return call(self._socket, request, version)

    def grow(self, topic: str, count: int) -> None:
        asked = CreatePartitionsRequest.CreatePartitionsTopic(
            name=topic, count=count, assignments=None
        )
        (result,) = self.ask(CreatePartitionsRequest(topics=[asked]), 3).results
        assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)


@pytest.fixture
def connection() -> Iterator[Connection]:
    overrides = {"offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}
    with EmbeddedBroker(overrides) as broker:
        broker.create_topic("t", 2)
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as opened:
            yield Connection(opened)


def test_a_producer_may_use_the_new_partitions_at_once(connection: Connection) -> None:
    connection.grow("t", 5)
    parts = [
        ProduceRequest.PartitionProduceData(index=index, records=build_batch([(0, None, b"v", [])]))
        for index in range(5)
    ]
    entry = ProduceRequest.TopicProduceData(name="t", partition_data=parts)
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[entry])
    (answered,) = connection.ask(request, 9).responses
    assert {each.error_code for each in answered.partition_responses} == {ErrorCode.NONE}
    assert {each.base_offset for each in answered.partition_responses} == {0}


def test_a_member_gets_the_new_partitions(connection: Connection) -> None:
    member = {"group_id": GROUP, "member_id": "AAAAAAAAAAAAAAAAAAAAAA"}
    epoch = 0
    owned: list[int] = []

    def beat() -> int:
        """The error of a heartbeat, whose assignment is taken over."""
        nonlocal epoch, owned
        request = ConsumerGroupHeartbeatRequest(**member, member_epoch=epoch)
        if epoch == 0:
            request.rebalance_timeout_ms = 30_000
            request.subscribed_topic_names, request.topic_partitions = ["t"], []
        answer = connection.ask(request, 1)
        if answer.error_code == ErrorCode.NONE:
            epoch = answer.member_epoch
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                owned = sorted(index for topic in topics for index in topic.partitions)
        return int(answer.error_code)

    connection.ask(FindCoordinatorRequest(key=GROUP), 0)
    wait_until(lambda: beat() == ErrorCode.NONE and owned == [0, 1], 20, "the first assignment")
    connection.grow("t", 5)
    wait_until(lambda: beat() == 0 and owned == [0, 1, 2, 3, 4], 20, "the new partitions")


def test_committed_offsets_are_found_after_the_offsets_topic_grew(connection: Connection) -> None:
    """Kafka counts the partitions of internal topics at the start of a broker."""
    more = OFFSETS_PARTITIONS + 1
    assert partition_of(GROUP, OFFSETS_PARTITIONS) != partition_of(GROUP, more)
    kind = OffsetCommitRequest
    commit = kind(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        topics=[
            kind.OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    kind.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=7, committed_metadata=""
                    )
                ],
            )
        ],
    )

    def committed() -> bool:
        connection.ask(FindCoordinatorRequest(key=GROUP), 0)
        (topic,) = connection.ask(commit, 8).topics
        return bool(topic.partitions[0].error_code == ErrorCode.NONE)

    wait_until(committed, 20, "a coordinator")
    connection.grow("__consumer_offsets", more)
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    answer = connection.ask(OffsetFetchRequest(group_id=GROUP, topics=[topic]), 7)
    assert answer.error_code == ErrorCode.NONE
    assert answer.topics[0].partitions[0].committed_offset == 7
