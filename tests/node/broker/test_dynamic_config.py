"""Settings of brokers that are altered while they run: set, in effect, listed and back after a
restart, through the wire.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.node.broker.dynamic_config import DynamicConfig
from kbroker.node.node import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigSource, ResourceType
from kbroker.testing.embedded import EmbeddedBroker
from tests.clients.adapters import wait_until
from tests.e2e.wire import call

BROKER, LOGGER = int(ResourceType.BROKER), int(ResourceType.BROKER_LOGGER)
Incremental = IncrementalAlterConfigsRequest
Outcome = tuple[int, str | None]

ELR = "min.insync.replicas"
"""Set for all brokers from the beginning where eligible leader replicas are kept."""


def static(**settings: str) -> BrokerConfig:
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig.from_properties({"node.id": "1", **properties})


def image(**configs: dict[str, str]) -> MetadataImage:
    """By broker: `all`, or `b` and its id."""
    names = {"all": ""} | {f"b{index}": str(index) for index in range(3)}
    return MetadataImage(
        configs=LayeredMap({(BROKER, names[key]): value for key, value in configs.items()})
    )


def test_an_image_brings_settings_into_force_and_out_again() -> None:
    dynamic = DynamicConfig(static(log_retention_ms="100"))
    changes: list[tuple[int, int]] = []

    def follow(before: BrokerConfig, now: BrokerConfig) -> None:
        changes.append((before.get_int("log.retention.ms"), now.get_int("log.retention.ms")))

    dynamic.follow(follow)
    empty = MetadataImage()
    images = [
        image(all={"log.retention.ms": "5"}),
        image(all={"log.retention.ms": "5"}, b1={"log.retention.ms": "7"}),
        image(all={"log.retention.ms": "5"}, b2={"log.retention.ms": "9"}),
        empty,
    ]
    for new in images:
        dynamic.on_image(empty, new)
    assert changes == [(100, 5), (5, 7), (7, 5), (5, 100)]


def test_what_another_version_stored_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    dynamic = DynamicConfig(static())
    stored = {"log.retention.ms": "soon", "num.partitions": "9", "log.retention.bytes": "9"}
    with caplog.at_level(logging.ERROR):
        dynamic.on_image(MetadataImage(), image(b1=stored))
    assert dynamic.current.get_int("log.retention.bytes") == 9
    assert dynamic.current.get_int("num.partitions") == 1
    assert "log.retention.ms, num.partitions" in caplog.text


def test_passwords_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        DynamicConfig(static()).on_image(
            MetadataImage(), image(b1={"my.key": "hunter2", "log.retention.ms": "5"})
        )
    assert "hunter2" not in caplog.text
    assert "log.retention.ms=5" in caplog.text


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    settings = {"log.retention.hours": "24", "broker.heartbeat.interval.ms": "100"}
    with EmbeddedBroker(settings) as one:
        yield one


def connect(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def alter(
    broker: EmbeddedBroker,
    name: str,
    *settings: tuple[str, int, str | None],
    kind: int = BROKER,
    validate_only: bool = False,
) -> Outcome:
    """settings: (name, operation, value)."""
    resource = Incremental.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            Incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in settings
        ],
    )
    with connect(broker) as connection:
        request = Incremental(resources=[resource], validate_only=validate_only)
        answer = call(connection, request, 1)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    (one,) = answer.responses
    assert (one.resource_type, one.resource_name) == (kind, name)
    return one.error_code, one.error_message


Described = dict[str, tuple[str | None, int, list[tuple[str, str | None, int]]]]


def describe(broker: EmbeddedBroker, name: str, kind: int = BROKER) -> Described:
    """Value, source and synonyms by name."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    with connect(broker) as connection:
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        answer = call(connection, request, 4)
    assert isinstance(answer, DescribeConfigsResponse)
    (result,) = answer.results
    assert result.error_code == 0
    return {
        each.name: (
            each.value,
            each.config_source,
            [(one.name, one.value, one.source) for one in each.synonyms],
        )
        for each in result.configs
    }


def test_retention_of_all_topics_is_altered_and_survives_a_restart(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    assert alter(broker, "", ("log.retention.ms", 0, "60000")) == (0, None)
    assert alter(broker, "1", ("log.retention.ms", 0, "70000")) == (0, None)

    def held() -> None:
        log = next(iter(broker.call(lambda one: dict(one.services.replicas.logs.logs)).values()))
        assert log.config.retention_ms == 70_000
        value, source, synonyms = describe(broker, "t", ResourceType.TOPIC)["retention.ms"]
        assert (value, source) == ("70000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert synonyms == [
            ("log.retention.ms", "70000", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ("log.retention.ms", "60000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            ("log.retention.hours", "24", ConfigSource.STATIC_BROKER_CONFIG),
            ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
        ]
        assert describe(broker, "")["log.retention.ms"][0] == "60000"

    held()
    broker.restart()
    held()
    assert alter(broker, "1", ("log.retention.ms", 1, None)) == (0, None)
    assert alter(broker, "", ("log.retention.ms", 1, None)) == (0, None)
    value, source, _ = describe(broker, "t", ResourceType.TOPIC)["retention.ms"]
    assert value == "86400000"
    assert source == ConfigSource.DEFAULT_CONFIG, "as in Kafka: it was set by another name"


def test_parts_of_the_broker_act_on_what_is_altered(broker: EmbeddedBroker) -> None:
    altered = (
        ("log.cleaner.threads", 0, "2"),
        ("log.cleaner.backoff.ms", 0, "77"),
        ("log.cleaner.io.max.bytes.per.second", 0, "5e6"),
        ("group.share.assignment.interval.ms", 0, "2500"),
        ("transaction.partition.verification.enable", 0, "false"),
        ("producer.id.expiration.ms", 0, "123456"),
        ("compression.type", 0, "zstd"),
        ("message.max.bytes", 0, "2000"),
    )
    assert alter(broker, "", *altered) == (0, None)
    cleaner = broker.call(lambda one: one.services.replicas._maintenance.cleaner)
    assert (cleaner.config.threads, cleaner.config.backoff_ms) == (2, 77)
    assert cleaner._throttle.bytes_per_second == 5e6
    services = broker.call(lambda one: one.services)
    assert services.groups._config.group_share_assignment_interval_ms == 2500
    assert services.partition_gate._verifies() is False
    assert services.replicas.logs.expiration_ms == 123456
    assert services.config.get_string("compression.type") == "zstd"
    broker.create_topic("t")
    log = next(iter(services.replicas.logs.logs.values()))
    assert log.config.max_message_bytes == 2000


def test_the_controller_learns_which_directories_are_cordoned(broker: EmbeddedBroker) -> None:
    def cordoned() -> int:
        found = broker.call(lambda one: one.metadata.image.brokers[1].cordoned_log_dirs)
        return len(found or ())

    assert alter(broker, "1", ("cordoned.log.dirs", 0, "*")) == (0, None)
    wait_until(lambda: cordoned() == 1, 20, "the heartbeat")
    assert alter(broker, "1", ("cordoned.log.dirs", 1, None)) == (0, None)
    wait_until(lambda: cordoned() == 0, 20, "the heartbeat")


def test_connections_are_limited_while_running(broker: EmbeddedBroker) -> None:
    with connect(broker):
        assert alter(broker, "", ("max.connections", 0, "1")) == (0, None)
        with connect(broker) as refused:
            assert refused.recv(1) == b""
    servers = broker.call(lambda one: one._servers)
    assert servers is not None
    broker.call(lambda one: servers.reconfigure(static(max_connection_creation_rate="5")))
    assert all(quotas.rates.is_limited for quotas in servers.quotas)


def test_a_listener_is_opened_while_running_and_registered_at_the_next_start(
    broker: EmbeddedBroker,
) -> None:
    values = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT",
        "listeners": f"PLAINTEXT://{broker.host}:0,EXTRA://{broker.host}:0",
    }
    assert alter(broker, "1", *((key, 0, value) for key, value in values.items())) == (0, None)

    def ports() -> dict[str, int]:
        return {each.name: each.port for each in broker.call(lambda one: one.bound_listeners)}

    def registered() -> dict[str, int]:
        endpoints = broker.call(lambda one: one.metadata.image.brokers[1].endpoints)
        return {name: endpoint.port for name, endpoint in endpoints.items()}

    wait_until(lambda: "EXTRA" in ports(), 20, "the listener")
    with socket.create_connection((broker.host, ports()["EXTRA"]), timeout=20) as connection:
        assert isinstance(call(connection, ApiVersionsRequest(), 0), ApiVersionsResponse)
        assert registered() == {"PLAINTEXT": broker.port}, "as in Kafka: until the next start"
        broker.restart()
    assert ports() == registered() == {"PLAINTEXT": broker.port, "EXTRA": ports()["EXTRA"]}
    with socket.create_connection((broker.host, ports()["EXTRA"]), timeout=20) as connection:
        answer = call(connection, MetadataRequest(topics=[]), 12)
        assert isinstance(answer, MetadataResponse)
        assert [each.port for each in answer.brokers] == [ports()["EXTRA"]]
        assert alter(broker, "1", ("listeners", 1, None)) == (0, None)
        assert connection.recv(1) == b""
    wait_until(lambda: "EXTRA" not in ports(), 20, "the end of the listener")


@pytest.mark.parametrize(
    ("name", "key", "operation", "value", "error", "words"),
    [
        pytest.param("1", "num.partitions", 0, "4", 42, "[num.partitions]", id="read-only"),
        pytest.param("", "cordoned.log.dirs", 0, "*", 42, "broker id must", id="per broker"),
        pytest.param("1", "log.retention.ms", 0, "soon", 42, "Not a number", id="no number"),
        pytest.param("1", "log.retention.ms", 0, "0", 42, "log.retention.ms", id="rule"),
        pytest.param("1", "log.retenton.ms", 0, "5", 40, "did you mean", id="unknown"),
        pytest.param("1", "num.io.threads", 0, "99", 42, "double", id="pool"),
        pytest.param("1", "listeners", 0, "PLAINTEXT://:1", 42, "The address of", id="listeners"),
        pytest.param("1", "ssl.key.password", 0, "x", 42, "per-listener", id="security"),
        pytest.param("1", "principal.builder.class", 0, "a.B", 42, "a.B could not", id="class"),
        pytest.param("2", "log.retention.ms", 0, "5", 42, "expected 1", id="another broker"),
        pytest.param("x", "log.retention.ms", 0, "5", 42, "an integer", id="no broker"),
        pytest.param("1", "log.retention.ms", 2, "5", 40, "append is not allowed", id="append"),
        pytest.param("1", "log.retention.ms", 9, "5", 42, "operation", id="operation"),
    ],
)
def test_what_cannot_be_altered_is_refused_in_one_line(
    broker: EmbeddedBroker,
    name: str,
    key: str,
    operation: int,
    value: str,
    error: int,
    words: str,
) -> None:
    code, message = alter(broker, name, (key, operation, value))
    assert code == error, message
    assert message is not None and words in message and "\n" not in message
    assert describe(broker, "").keys() == {ELR}


def test_settings_of_tls_are_said_to_have_no_effect(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["listener.name.plaintext.ssl.keystore.password", "sasl.jaas.config"]
    with caplog.at_level(logging.INFO):
        for name in names:
            assert alter(broker, "1", (name, 0, "hunter2")) == (0, None)
        broker.restart()
        lines = [record.getMessage() for record in caplog.records]
        expected = [f"have no effect: {listed};" for listed in (*names, ", ".join(names))]
        said = [line for line in lines if "PLAINTEXT, where" in line]
        assert [words in line for words, line in zip(expected, said, strict=True)] == [True] * 3
        assert not any("hunter2" in line or "without effect" in line for line in lines)
        caplog.clear()
        assert alter(broker, "1", *((name, 1, None) for name in names)) == (0, None)
        assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_nothing_is_stored_on_trial(broker: EmbeddedBroker) -> None:
    assert alter(broker, "", ("log.retention.ms", 0, "5"), validate_only=True) == (0, None)
    assert describe(broker, "").keys() == {ELR}


def test_a_whole_resource_is_replaced(broker: EmbeddedBroker) -> None:
    assert alter(broker, "", ("log.retention.ms", 0, "5")) == (0, None)
    configs = [
        AlterConfigsRequest.AlterableConfig(name="log.retention.bytes", value="9"),
        AlterConfigsRequest.AlterableConfig(name=ELR, value="1"),
    ]
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=configs
    )
    with connect(broker) as connection:
        answer = call(connection, AlterConfigsRequest(resources=[resource]), 2)
    assert isinstance(answer, AlterConfigsResponse)
    assert answer.responses[0].error_code == ErrorCode.NONE
    assert {name: each[0] for name, each in describe(broker, "").items()} == {
        "log.retention.bytes": "9",
        ELR: "1",
    }


def as_in_its_own_process(broker: Broker) -> None:
    """As `node/run` sets it."""
    broker.services.set_log_level = logging.Logger.setLevel


def test_an_embedded_broker_leaves_the_levels_of_loggers_alone(broker: EmbeddedBroker) -> None:
    names = ("root", "kbroker.replication", "kbroker.node.broker.dynamic_config")
    before = [logging.getLogger(name).level for name in names]
    try:
        for name in names:
            code, message = alter(broker, "1", (name, 0, "FATAL"), kind=LOGGER)
            assert code == ErrorCode.INVALID_REQUEST
            assert message is not None
            assert "embedded in another program" in message
        assert [logging.getLogger(name).level for name in names] == before
        assert "root" in describe(broker, "1", LOGGER)
    finally:
        for name, level in zip(names, before, strict=True):
            logging.getLogger(name).setLevel(level)


def test_levels_of_loggers_are_set_and_not_stored(broker: EmbeddedBroker) -> None:
    name = "kbroker.node.broker.dynamic_config"
    logger = logging.getLogger(name)
    broker.call(as_in_its_own_process)
    try:
        assert alter(broker, "1", (name, 0, "TRACE"), kind=LOGGER) == (0, None)
        assert logger.level == 5
        assert describe(broker, "1", LOGGER)[name][0] == "TRACE"
        assert alter(broker, "1", (name, 1, None), kind=LOGGER) == (0, None)
        assert logger.level == logging.NOTSET
        assert LOGGER not in {kind for kind, _ in broker.call(lambda o: o.metadata.image.configs)}
        code, message = alter(broker, "1", ("kbroker.nosuch", 0, "INFO"), kind=LOGGER)
        assert (code, message) == (40, "Logger kbroker.nosuch does not exist!")
    finally:
        logger.setLevel(logging.NOTSET)
