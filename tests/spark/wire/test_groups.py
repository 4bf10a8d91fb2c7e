"""A group over the wire, on a broker: what it has committed, and who its members are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.testing import EmbeddedBroker
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import (
    GroupView,
    commit_offsets,
    committed_offsets,
    describe_group,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def client(kafka_broker: EmbeddedBroker) -> Iterator[BlockingClient]:
    made = BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))
    yield made
    made.close()


def test_offsets_of_a_group_without_members(
    client: BlockingClient, kafka_topic: str, kafka_broker: EmbeddedBroker
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    assert describe_group(client, "simple") == GroupView()
    assert committed_offsets(client, "simple") == {}
    commit_offsets(client, "simple", {kafka_topic: {0: 7}})
    assert committed_offsets(client, "simple") == {kafka_topic: {0: 7}}
    assert committed_offsets(client, "simple", {kafka_topic: [0], "absent": [3]}) == {
        kafka_topic: {0: 7}
    }
    assert describe_group(client, "simple") == GroupView("classic")
    servers = kafka_broker.bootstrap_servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "simple"})
    (found,) = consumer.committed([TopicPartition(kafka_topic, 0)], timeout=20)
    consumer.close()
    assert found.offset == 7


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_live_members_keep_their_offsets(
    client: BlockingClient, kafka_topic: str, kafka_broker: EmbeddedBroker, protocol: str
) -> None:
    from confluent_kafka import Consumer

    group = f"live-{protocol}"
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "app",
        }
    )
    try:
        consumer.subscribe([kafka_topic])
        for _ in range(300):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        view = describe_group(client, group)
        assert (view.kind, [member.client_id for member in view.members]) == (protocol, ["app"])
        with pytest.raises(KafkaError) as caught:
            commit_offsets(client, group, {kafka_topic: {0: 7}})
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    finally:
        consumer.close()
    assert describe_group(client, group).members == ()
    commit_offsets(client, group, {kafka_topic: {0: 7}})
    assert committed_offsets(client, group) == {kafka_topic: {0: 7}}
