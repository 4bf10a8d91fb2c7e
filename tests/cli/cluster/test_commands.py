"""`kbroker cluster` against a broker, and its checks on descriptions of unhealthy clusters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kbroker.cli.cluster.health import (
    HAS_LEADER,
    MAX_NAMES,
    VOTERS_FETCH,
    partition_checks,
    quorum_checks,
)
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.quorum import DescribeQuorumResponse
from kbroker.testing import EmbeddedBroker

Kbroker = Callable[..., Any]


def rows(kbroker: Kbroker, *arguments: str) -> list[dict[str, Any]]:
    result = kbroker("cluster", *arguments, "--json")
    assert result.code == 0, result.err
    return list(map(json.loads, result.lines))


def test_info_and_brokers(kbroker: Kbroker, kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    (info,) = rows(kbroker, "info")
    assert (info["controller"], info["brokers"]) == (1, 1)
    assert len(info["cluster_id"]) == 22
    assert info["topics"] >= 1
    (broker,) = rows(kbroker, "brokers")
    host, _, port = kafka_broker.bootstrap_servers.rpartition(":")
    assert (broker["broker"], broker["host"], broker["port"]) == (1, host, int(port))
    assert broker["fenced"] is False
    assert broker["leaders"] == broker["replicas"] >= 1


def test_health(kbroker: Kbroker, kafka_topic: str) -> None:
    found = rows(kbroker, "health")
    assert [row["check"] for row in found] == [
        "every broker answers",
        "every partition has a leader",
        "every replica is in sync",
        "no replica is offline",
        "every log directory is online",
        "the quorum has a leader",
        "every voter of the quorum fetches",
    ]
    assert all(row["ok"] is True and row["problems"] == [] for row in found)


def partition(index: int, leader: int, **fields: Any) -> Any:
    return MetadataResponse.MetadataResponsePartition(
        partition_index=index, leader_id=leader, **fields
    )


def test_partitions_that_are_not_well() -> None:
    topic = MetadataResponse.MetadataResponseTopic(
        name="orders",
        partitions=[
            partition(1, -1, replica_nodes=[1, 2], isr_nodes=[1]),
            partition(0, 1, replica_nodes=[1, 2], isr_nodes=[1], offline_replicas=[2]),
            partition(2, 1, replica_nodes=[1, 2], isr_nodes=[2, 1]),
        ],
    )
    assert [(check.ok, check.problems) for check in partition_checks([topic])] == [
        (False, ["orders-1"]),
        (False, ["orders-0"]),
        (False, ["orders-0"]),
    ]
    assert all(check.ok for check in partition_checks([]))


def voter(replica_id: int, fetched_ms: int, end_offset: int = 9) -> Any:
    return DescribeQuorumResponse.ReplicaState(
        replica_id=replica_id, log_end_offset=end_offset, last_fetch_timestamp=fetched_ms
    )


def test_voters_that_do_not_fetch() -> None:
    """A dead controller that is no broker is seen by nothing else, and one more may end the
    quorum. The clock of this machine does not count.
    """
    now_ms = 5_000_000
    voters = [
        voter(1, now_ms),
        voter(2, now_ms - 2_000),
        voter(3, now_ms - 61_000),
        voter(4, -1, -1),
    ]
    found = DescribeQuorumResponse.PartitionData(leader_id=1, current_voters=voters)
    assert quorum_checks(found) == [
        (HAS_LEADER, True, []),
        (VOTERS_FETCH, False, ["3 last fetched 61 s ago", "4 has not fetched from leader 1"]),
    ]
    found = DescribeQuorumResponse.PartitionData(leader_id=1, current_voters=voters[:2])
    assert all(check.ok for check in quorum_checks(found))
    leaderless = DescribeQuorumResponse.PartitionData(leader_id=-1, current_voters=voters)
    assert quorum_checks(leaderless) == [(HAS_LEADER, False, ["no leader"])]
    old = DescribeQuorumResponse.PartitionData(
        leader_id=1, current_voters=[voter(1, -1), voter(2, -1)]
    )
    assert all(check.ok for check in quorum_checks(old))  # version 0 has no timestamps


def test_an_unhealthy_cluster_is_exit_code_1(
    kbroker: Kbroker, kafka_broker: EmbeddedBroker, kafka_topic: str
) -> None:
    """More partitions without a leader than a line names."""
    topic = MetadataResponse.MetadataResponseTopic(
        name="orders",
        partitions=[partition(index, -1, replica_nodes=[1]) for index in range(MAX_NAMES + 5)],
    )
    host, _, port = kafka_broker.bootstrap_servers.rpartition(":")
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=host, port=int(port))
    response = MetadataResponse(brokers=[broker], topics=[topic], cluster_id="c", controller_id=1)
    end = kafka_broker.intercept(ApiKey.METADATA, lambda request, *_: response)
    try:
        result = kbroker("cluster", "health", "--json")
    finally:
        end()
    assert result.code == 1
    found = {row["check"]: row for row in map(json.loads, result.lines)}
    problems = found["every partition has a leader"]["problems"]
    assert problems[0] == "orders-0"
    assert problems[-1] == "and 5 more"
    assert result.err == "kbroker: 1 check of 7 failed\n"


def test_versions_and_features(kbroker: Kbroker) -> None:
    versions = rows(kbroker, "api-versions")
    produce = next(row for row in versions if row["api"] == "Produce")
    assert (produce["broker"], produce["key"], produce["used"]) == (1, 0, 13)
    assert len(rows(kbroker, "api-versions", "--broker", "1")) == len(versions)
    assert kbroker("cluster", "api-versions", "--broker", "9").code == 1
    features = {row["feature"]: row for row in rows(kbroker, "features")}
    assert features["metadata.version"]["level"] > 0
    assert features["group.version"]["min"] == 0


def test_quorum(kbroker: Kbroker) -> None:
    result = kbroker("cluster", "quorum", "--json")
    (voter,) = map(json.loads, result.lines)
    assert (voter["node"], voter["role"], voter["lag"]) == (1, "leader", 0)
    assert voter["end_offset"] > 0
    assert result.err.startswith("leader 1, epoch ")


def test_log_dirs(kbroker: Kbroker, kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    kbroker("produce", kafka_topic, text="x" * 1000)
    (directory,) = rows(kbroker, "log-dirs")
    assert directory["state"] == "online"
    assert directory["directory"] == str(kafka_broker.data)
    assert directory["usable"] <= directory["total"]
    (replica,) = rows(kbroker, "log-dirs", "--topic", kafka_topic)
    assert (replica["topic"], replica["partition"], replica["offset_lag"]) == (kafka_topic, 0, 0)
    assert 1000 < replica["size"] <= directory["size"]
    assert replica["future"] is False
    assert len(rows(kbroker, "log-dirs", "--replicas")) == directory["replicas"]
    assert kbroker("cluster", "log-dirs", "--topic", "no-such").code == 1
