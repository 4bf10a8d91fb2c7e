"""kafka-configs.sh (kafka.admin.ConfigCommand) of Apache Kafka 4.3.1 alters topics, groups,
brokers, log levels and subscriptions to client metrics, and what it sets is in effect at once.
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


def configure(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    java = shutil.which("java")
    assert java is not None
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", broker_class_path()]
    command += ["kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap_servers]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


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


def test_brokers_are_altered(broker: BrokerProcess) -> None:
    brokers = ("--entity-type", "brokers")
    every, one = (*brokers, "--entity-default"), (*brokers, "--entity-name", "1")
    configure(broker, *every, "--alter", "--add-config", "log.retention.ms=70000")
    configure(broker, *one, "--alter", "--add-config", "log.retention.ms=60000,max.connections=90")
    described = configure(broker, *one, "--describe")
    assert (
        "log.retention.ms=60000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:"
        "log.retention.ms=60000, DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=70000" in described
    )
    assert "log.retention.ms=70000 " in configure(broker, *every, "--describe")
    assert "num.io.threads=8 " in configure(broker, *one, "--describe", "--all")
    configure(broker, *one, "--alter", "--delete-config", "log.retention.ms,max.connections")
    assert "log.retention.ms=60000" not in configure(broker, *one, "--describe")
    refused = configure(broker, *one, "--alter", "--add-config", "num.partitions=4", code=1)
    assert "Cannot update these configs dynamically: [num.partitions]" in refused


def test_levels_of_loggers_are_altered(broker: BrokerProcess) -> None:
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    configure(broker, *loggers, "--alter", "--add-config", "kbroker.log.manager=DEBUG")
    assert "kbroker.log.manager=DEBUG " in configure(broker, *loggers, "--describe")
    configure(broker, *loggers, "--alter", "--delete-config", "kbroker.log.manager")
    assert "kbroker.log.manager=DEBUG " not in configure(broker, *loggers, "--describe")


def test_subscriptions_to_client_metrics_are_altered(broker: BrokerProcess) -> None:
    one = ("--entity-type", "client-metrics", "--entity-name", "s")
    configure(broker, *one, "--alter", "--add-config", "interval.ms=5000,metrics=[a.,b.]")
    described = configure(broker, *one, "--describe")
    assert "interval.ms=5000 " in described and "metrics=a.,b. " in described
    refused = configure(broker, *one, "--alter", "--add-config", "interval.ms=5", code=1)
    assert "interval must be between 100 and 3600000" in refused
