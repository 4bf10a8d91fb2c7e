"""Topics of a real broker that are created, grown and given settings."""

from __future__ import annotations

from contextlib import closing
from os import urandom

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.copying.targets import (
    add_partitions,
    check_target,
    create_target,
    find_target,
    own_configs,
    set_configs,
)
from spark_jobs.errors import JobError
from spark_jobs.exactly_once.topics import describe_topic
from spark_jobs.wire.client import BlockingClient, ClusterAddress


@pytest.fixture
def name() -> str:
    return f"target-{urandom(4).hex()}"


def test_a_topic_is_created_and_grown(client: BlockingClient, name: str) -> None:
    assert find_target(client, name) is None
    made = create_target(client, name, 2, {"retention.ms": "-1", "max.message.bytes": "5000"})
    assert (made.partition_count, made.max_message_bytes) == (2, 5000)
    assert check_target(client, made, 2) == []
    with pytest.raises(JobError, match="has 2 partitions, the source 3: add partitions"):
        check_target(client, made, 3)
    add_partitions(client, name, 3)
    add_partitions(client, name, 3)
    found = find_target(client, name)
    assert found is not None and found.partition_count == 3


def test_a_created_topic_keeps_times_where_the_cluster_replaces_them() -> None:
    with (
        EmbeddedBroker({"log.message.timestamp.type": "LogAppendTime"}) as broker,
        closing(BlockingClient(ClusterAddress(broker.bootstrap_servers))) as client,
    ):
        made = create_target(client, "copy", 1, {"retention.ms": "-1"})
        found = describe_topic(client, "copy", ["message.timestamp.type", "retention.ms"])
        assert found == {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        assert check_target(client, made, 1) == []


def test_settings_are_copied(client: BlockingClient, name: str) -> None:
    create_target(client, name, 1, {"retention.ms": "7000", "min.insync.replicas": "1"})
    assert own_configs(client, name) == {"retention.ms": "7000"}
    set_configs(client, name, {"cleanup.policy": "compact", "retention.ms": "8000"})
    assert own_configs(client, name) == {"cleanup.policy": "compact", "retention.ms": "8000"}


def test_what_a_target_does_to_records(client: BlockingClient, name: str) -> None:
    made = create_target(client, name, 1, {"retention.ms": "7000"})
    (note,) = check_target(client, made, 1)
    assert "retention.ms=7000: the brokers delete" in note
    set_configs(client, name, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(JobError, match="replaces the times of records"):
        check_target(client, made, 1)
