"""kafka-configs.sh (kafka.admin.ConfigCommand) of Apache Kafka 4.3.1 alters topics, groups,
brokers, log levels and subscriptions to client metrics, and what it sets is in effect at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.clients.kafka_tools import KafkaTools
from tests.e2e.wire import call

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("configs") / "data") as one:
        yield one


Configure = Callable[..., str]


@pytest.fixture(scope="module")
def configure(kafka_tools: KafkaTools, broker: BrokerProcess) -> Configure:
    """Run the tool; what it prints. code: with which it is to end."""
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap_servers)

    def run(*arguments: str, code: int = 0) -> str:
        return kafka_tools.output(*tool, *arguments, code=code, errors=code != 0)

    return run


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


def test_a_group_gets_settings_of_its_own(broker: BrokerProcess, configure: Configure) -> None:
    name = "consumer.heartbeat.interval.ms"
    groups = ("--entity-type", "groups")
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        wait_until(lambda: has_coordinator(connection), 20, "a coordinator")
        assert join(connection).heartbeat_interval_ms == 5_000
        configure(*groups, "--entity-name", "g", "--alter", "--add-config", f"{name}=7000")
        assert join(connection).heartbeat_interval_ms == 7_000
        described = configure(*groups, "--entity-name", "g", "--describe")
        assert f"{name}=7000" in described
        assert name in configure(*groups, "--describe")
        configure(*groups, "--entity-name", "g", "--alter", "--delete-config", name)
        assert join(connection).heartbeat_interval_ms == 5_000


def test_a_topic_is_altered(broker: BrokerProcess, configure: Configure) -> None:
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        topic = CreateTopicsRequest.CreatableTopic(
            name="altered", num_partitions=1, replication_factor=1
        )
        call(connection, CreateTopicsRequest(topics=[topic]), 7)
    altered = ("--entity-type", "topics", "--entity-name", "altered")
    values = "retention.ms=60000,cleanup.policy=[compact,delete]"
    configure(*altered, "--alter", "--add-config", values)
    described = configure(*altered, "--describe")
    assert "retention.ms=60000 " in described
    assert "cleanup.policy=compact,delete " in described


def test_brokers_are_altered(configure: Configure) -> None:
    brokers = ("--entity-type", "brokers")
    every, one = (*brokers, "--entity-default"), (*brokers, "--entity-name", "1")
    configure(*every, "--alter", "--add-config", "log.retention.ms=70000")
    configure(*one, "--alter", "--add-config", "log.retention.ms=60000,max.connections=90")
    described = configure(*one, "--describe")
    assert (
        "log.retention.ms=60000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:"
        "log.retention.ms=60000, DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=70000" in described
    )
    assert "log.retention.ms=70000 " in configure(*every, "--describe")
    assert "num.io.threads=8 " in configure(*one, "--describe", "--all")
    configure(*one, "--alter", "--delete-config", "log.retention.ms,max.connections")
    assert "log.retention.ms=60000" not in configure(*one, "--describe")
    refused = configure(*one, "--alter", "--add-config", "num.partitions=4", code=1)
    assert "Cannot update these configs dynamically: [num.partitions]" in refused


def test_levels_of_loggers_are_altered(configure: Configure) -> None:
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    configure(*loggers, "--alter", "--add-config", "kbroker.log.manager=DEBUG")
    assert "kbroker.log.manager=DEBUG " in configure(*loggers, "--describe")
    configure(*loggers, "--alter", "--delete-config", "kbroker.log.manager")
    assert "kbroker.log.manager=DEBUG " not in configure(*loggers, "--describe")


def test_subscriptions_to_client_metrics_are_altered(configure: Configure) -> None:
    one = ("--entity-type", "client-metrics", "--entity-name", "s")
    configure(*one, "--alter", "--add-config", "interval.ms=5000,metrics=[a.,b.]")
    described = configure(*one, "--describe")
    assert "interval.ms=5000 " in described and "metrics=a.,b. " in described
    refused = configure(*one, "--alter", "--add-config", "interval.ms=5", code=1)
    assert "interval must be between 100 and 3600000" in refused
