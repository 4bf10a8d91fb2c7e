"""A group over the wire, on a broker: what it has committed, and who its members are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import (
    GroupView,
    commit_offsets,
    committed_offsets,
    describe_group,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def client(bootstrap: str) -> Iterator[BlockingClient]:
    made = BlockingClient(ClusterAddress(bootstrap))
    yield made
    made.close()


@pytest.fixture
def topic(new_topic: Callable[[int], str]) -> str:
    return new_topic(1)


def test_offsets_of_a_group_without_members(
    client: BlockingClient, bootstrap: str, topic: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    group = f"simple-{topic}"
    assert describe_group(client, group) == GroupView()
    assert committed_offsets(client, group) == {}
    commit_offsets(client, group, {topic: {0: 7}})
    assert committed_offsets(client, group) == {topic: {0: 7}}
    assert committed_offsets(client, group, {topic: [0], "absent": [3]}) == {topic: {0: 7}}
    assert describe_group(client, group) == GroupView("classic")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    consumer.close()
    assert found.offset == 7


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_live_members_keep_their_offsets(
    client: BlockingClient, bootstrap: str, topic: str, protocol: str
) -> None:
    from confluent_kafka import Consumer

    group = f"live-{topic}"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "app",
        }
    )
    try:
        consumer.subscribe([topic])
        for _ in range(300):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        view = describe_group(client, group)
        assert (view.kind, [member.client_id for member in view.members]) == (protocol, ["app"])
        with pytest.raises(KafkaError) as caught:
            commit_offsets(client, group, {topic: {0: 7}})
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    finally:
        consumer.close()
    assert describe_group(client, group).members == ()
    commit_offsets(client, group, {topic: {0: 7}})
    assert committed_offsets(client, group) == {topic: {0: 7}}
