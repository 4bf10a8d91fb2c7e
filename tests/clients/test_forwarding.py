"""Apache Kafka 4.3.1's tools against brokers of kbroker, each node in a process of its own: what
the controllers decide goes through whichever broker a tool asks (KIP-590), also after the active
controller was killed.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools
from tests.clients.process_cluster import ProcessCluster

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"


def leader_in(described: str) -> int:
    (line,) = (each for each in described.splitlines() if each.startswith("LeaderId:"))
    return int(line.split()[-1])


def test_kafkas_tools_administrate_through_any_broker(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    def run(bootstrap: str, tool: str, *arguments: str) -> str:
        """What a tool prints. bootstrap: one broker."""
        to = ("--bootstrap-server", bootstrap)
        words = (*arguments, *to) if tool == CLUSTER else (*to, *arguments)
        return kafka_tools.output(tool, *words)

    with ExitStack() as stack:
        cluster = ProcessCluster(tmp_path, stack, controllers=(7, 8, 9), brokers=(1, 2))
        brokers = [broker.bootstrap_servers for broker in cluster.brokers.values()]
        leaders = {leader_in(run(each, QUORUM, "describe", "--status")) for each in brokers}
        assert len(leaders) == 1 and leaders <= {7, 8, 9}
        run(brokers[0], TOPICS, "--create", "--topic", "t", "--partitions", "2")
        topic = ("--entity-type", "topics", "--entity-name", "t")
        altered = run(brokers[1], CONFIGS, *topic, "--alter", "--add-config", "retention.ms=7000")
        assert "Completed updating" in altered
        killed = cluster.kill_active_controller()
        assert {killed} == leaders
        assert leader_in(run(brokers[1], QUORUM, "describe", "--status")) != killed
        assert "retention.ms=7000" in run(brokers[0], CONFIGS, *topic, "--describe")
        run(brokers[1], TOPICS, "--delete", "--topic", "t")
        run(brokers[0], FEATURES, "downgrade", "--feature", "streams.version=0")
        (streams,) = (
            line
            for line in run(brokers[1], FEATURES, "describe").splitlines()
            if "streams.version" in line
        )
        assert "FinalizedVersionLevel: 0" in streams
        cluster.brokers[2].kill()
        assert "is no longer registered" in run(brokers[0], CLUSTER, "unregister", "--id", "2")
