"""The internal topics, with the settings that Apache Kafka 4.3.1 gave them in the fixture."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from tests.controller.cluster import Cluster


@pytest.mark.parametrize(
    ("name", "configs"),
    [
        (
            "__consumer_offsets",
            {
                "compression.type": "producer",
                "cleanup.policy": "compact",
                "segment.bytes": "104857600",
            },
        ),
        (
            "__transaction_state",
            {
                "compression.type": "uncompressed",
                "cleanup.policy": "compact",
                "min.insync.replicas": "1",
                "segment.bytes": "104857600",
                "unclean.leader.election.enable": "false",
            },
        ),
        (
            "__share_group_state",
            {
                "compression.type": "producer",
                "cleanup.policy": "delete",
                "min.insync.replicas": "1",
                "segment.bytes": "104857600",
                "retention.ms": "-1",
            },
        ),
    ],
)
def test_settings(name: str, configs: dict[str, str]) -> None:
    cluster = Cluster()
    assert cluster.run(cluster.controller.ensure_internal_topic(name)) is ErrorCode.NONE
    assert cluster.image.topic_configs(name) == configs
    assert len(cluster.image.topics[name].partitions) == 50
    before = cluster.image
    assert cluster.run(cluster.controller.ensure_internal_topic(name)) is ErrorCode.NONE
    assert cluster.image is before


def test_the_number_of_partitions_is_configured() -> None:
    cluster = Cluster(offsets_topic_num_partitions="7")
    cluster.run(cluster.controller.ensure_internal_topic("__consumer_offsets"))
    assert len(cluster.image.topics["__consumer_offsets"].partitions) == 7


def test_a_configured_replication_factor_is_not_reduced() -> None:
    cluster = Cluster(offsets_topic_replication_factor="3")
    code = cluster.run(cluster.controller.ensure_internal_topic("__consumer_offsets"))
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    cluster = Cluster(brokers=())
    code = cluster.run(cluster.controller.ensure_internal_topic("__consumer_offsets"))
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_other_names_are_not_internal() -> None:
    code = Cluster().controller.ensure_internal_topic("mine").response
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_ordinary_topics_by_default_settings() -> None:
    cluster = Cluster(num_partitions="3")
    assert cluster.run(cluster.controller.ensure_topic("t")) is ErrorCode.NONE
    assert len(cluster.image.topics["t"].partitions) == 3
    code = cluster.run(cluster.controller.ensure_topic("not/a/name"))
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION
