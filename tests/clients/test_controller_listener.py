"""The console tools of Apache Kafka 4.3.1 with --bootstrap-controller (KIP-919), against a node
with both roles and one that is a controller only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CLUSTER, FEATURES = "org.apache.kafka.tools.ClusterTool", "org.apache.kafka.tools.FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGNMENTS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


@pytest.fixture(params=["broker,controller", "controller"])
def controller(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of the controller listener."""
    port = free_port()
    listeners = [f"CONTROLLER://127.0.0.1:{port}"]
    if "broker" in request.param:
        listeners.insert(0, "PLAINTEXT://127.0.0.1:0")
    settings = {
        "process.roles": request.param,
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
    }
    with BrokerProcess(tmp_path / "data", overrides=settings):
        yield f"127.0.0.1:{port}"


def test_kafkas_tools_administrate_through_the_controller(
    kafka_tools: KafkaTools, controller: str
) -> None:
    run = kafka_tools.output
    to = ("--bootstrap-controller", controller)
    assert "Cluster ID: " in run(CLUSTER, "cluster-id", *to)
    endpoints = run(CLUSTER, "list-endpoints", *to).splitlines()
    host, _, port = controller.rpartition(":")
    assert endpoints[1].split() == ["1", host, port, "null", "controller"]
    features = run(FEATURES, *to, "describe")
    assert "metadata.version" in features and "FinalizedVersionLevel: 4.3-IV0" in features
    run(FEATURES, *to, "downgrade", "--feature", "streams.version=0")
    features = run(FEATURES, *to, "describe")
    (streams,) = (line for line in features.splitlines() if "streams.version" in line)
    assert "FinalizedVersionLevel: 0" in streams
    group = (CONFIGS, *to, "--entity-type", "groups", "--entity-name", "g")
    name = "consumer.heartbeat.interval.ms"
    assert "Completed updating" in run(*group, "--alter", "--add-config", f"{name}=7000")
    broker = run(
        CONFIGS, *to, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all"
    )
    assert "controller.listener.names=CONTROLLER" in broker
    assert "No partition reassignments found." in run(REASSIGNMENTS, *to, "--list")
