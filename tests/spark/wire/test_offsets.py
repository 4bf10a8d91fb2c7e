"""The ends of partitions, and topics that exist or do not."""

from __future__ import annotations

import pytest

from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from spark_jobs.cluster import TopicFacts
from spark_jobs.wire.offsets import list_offset, list_offsets, topic_facts
from tests.spark.lag.group_cluster import GroupCluster


@pytest.fixture
def cluster() -> GroupCluster:
    made = GroupCluster(t=2, u=1)
    made.set_starts("t", 3, 0)
    made.set_ends("t", 9, 5)
    return made


def test_one_request_for_the_partitions_of_a_leader(cluster: GroupCluster) -> None:
    places = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
    wanted = {**dict.fromkeys(places, LATEST_TIMESTAMP), places[0]: EARLIEST_TIMESTAMP}
    assert list_offsets(cluster.client(), wanted) == dict(zip(places, (3, 5, 0), strict=True))
    assert cluster.requests.count(ApiKey.LIST_OFFSETS) == 1
    assert list_offset(cluster.client(), places[1], LATEST_TIMESTAMP) == 5
    assert list_offsets(cluster.client(), {}) == {}


def test_an_error_of_a_partition(cluster: GroupCluster) -> None:
    cluster.fail(ApiKey.LIST_OFFSETS, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match="offsets of t-0"):
        list_offset(cluster.client(), TopicPartition("t", 0), LATEST_TIMESTAMP)


def test_facts_of_topics(cluster: GroupCluster) -> None:
    cluster.fail(ApiKey.LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert topic_facts(cluster.client(), ["t", "gone", "u"]) == {
        "t": TopicFacts("", {0: 3, 1: 0}, {0: 9, 1: 5}),
        "u": TopicFacts("", {0: 0}, {0: 0}),
    }
