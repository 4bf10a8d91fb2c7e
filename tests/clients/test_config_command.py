"""kafka-configs.sh (kafka.admin.ConfigCommand) of Apache Kafka 4.3.1 alters topics and groups, and
what it sets is in effect at once.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest
from kbroker.testing.process import BrokerProcess
from scripts.kafka_jars import broker_class_path
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.e2e.wire import call

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("configs") / "data") as one:
        yield one


def configure(broker: BrokerProcess, *arguments: str) -> str:
    java = shutil.which("java")
    assert java is not None
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", broker_class_path()]
    command += ["kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap_servers]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def join(connection: socket.socket) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer = call(connection, request, 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def has_coordinator(connection: socket.socket) -> bool:
    call(connection, FindCoordinatorRequest(key="g"), 0)
    return join(connection).error_code == ErrorCode.NONE


def test_a_group_gets_settings_of_its_own(broker: BrokerProcess) -> None:
    name = "consumer.heartbeat.interval.ms"
    groups = ("--entity-type", "groups")
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        wait_until(lambda: has_coordinator(connection), 20, "a coordinator")
        assert join(connection).heartbeat_interval_ms == 5_000
        configure(broker, *groups, "--entity-name", "g", "--alter", "--add-config", f"{name}=7000")
        assert join(connection).heartbeat_interval_ms == 7_000
        described = configure(broker, *groups, "--entity-name", "g", "--describe")
        assert f"{name}=7000" in described
        assert name in configure(broker, *groups, "--describe")
        configure(broker, *groups, "--entity-name", "g", "--alter", "--delete-config", name)
        assert join(connection).heartbeat_interval_ms == 5_000


def test_a_topic_is_altered(broker: BrokerProcess) -> None:
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        topic = CreateTopicsRequest.CreatableTopic(
            name="altered", num_partitions=1, replication_factor=1
        )
        call(connection, CreateTopicsRequest(topics=[topic]), 7)
    altered = ("--entity-type", "topics", "--entity-name", "altered")
    values = "retention.ms=60000,cleanup.policy=[compact,delete]"
    configure(broker, *altered, "--alter", "--add-config", values)
    described = configure(broker, *altered, "--describe")
    assert "retention.ms=60000 " in described
    assert "cleanup.policy=compact,delete " in described
