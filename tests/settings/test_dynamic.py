"""Which broker settings may be changed while the broker runs, and the effective values. Kafka's
rules are in the facts; tests over the wire are in tests/node/broker/test_dynamic_config.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.dynamic import (
    DynamicConfigs,
    acts,
    check_altered,
    check_key,
    in_force,
    is_accepted,
)
from kbroker.settings.listener_keys import PREFIX_ONLY_KEYS
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.tables.table import BROKER_KEYS
from scripts import configuration_table

DATA = Path(__file__).parents[1] / "data" / "kafka"
FACTS: list[dict[str, Any]] = json.loads((DATA / "broker-configs.json").read_text())["configs"]

CONFIG = BrokerConfig.from_properties({"node.id": "1", "log.retention.hours": "24"})
NOTHING = DynamicConfigs()

VALUES = {"boolean": "true", "string": "x", "list": "", "class": "x", "password": "x"}
OF_KEY = {
    "compression.type": "zstd",
    "max.connections.per.ip.overrides": "127.0.0.1:5",
    "log.cleanup.policy": "compact",
    "log.message.timestamp.type": "LogAppendTime",
    "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
}


def value_of(fact: dict[str, Any]) -> str:
    """A value that the key may have."""
    default = fact["default"]
    return OF_KEY.get(fact["name"]) or default or VALUES.get(fact["type"], "5")


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["name"])
def test_keys_are_altered_at_the_scope_that_kafka_allows(fact: dict[str, Any]) -> None:
    name, mode = fact["name"], fact["updateMode"]
    value = value_of(fact)
    for of_broker in (True, False):
        allowed = mode == "cluster-wide" or (mode == "per-broker" and of_broker)
        if allowed and name not in PREFIX_ONLY_KEYS:
            check_altered(CONFIG, NOTHING, {name: value}, of_broker=of_broker)
        else:
            with pytest.raises(ConfigError):
                check_altered(CONFIG, NOTHING, {name: value}, of_broker=of_broker)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("log.retention.ms", "soon", id="type"),
        pytest.param("log.retention.ms", "0", id="rule"),
        pytest.param("leader.replication.throttled.rate", "-1", id="dynamic only"),
        pytest.param("listener.name.plaintext.max.connections", "x", id="listener"),
        pytest.param("ssl.keystore.password", "x", id="a keystore without a listener"),
        pytest.param("listener.name.internal.ssl.client.auth", "maybe", id="security"),
        pytest.param("listener.name.internal.ssl.engine.factory.class", "a.B", id="class"),
        pytest.param("principal.builder.class", "a.B", id="principals"),
        pytest.param("super.users", "User:admin", id="super users"),
        pytest.param("authorizer.class.name", "a.B", id="authorizer"),
        pytest.param("security.inter.broker.protocol", "SSL", id="protocol of brokers"),
        pytest.param("listener.name.internal.connections.max.reauth.ms", "5", id="read-only"),
        pytest.param("log.retenton.ms", "5", id="unknown"),
        pytest.param("cordoned.log.dirs", "/nosuch", id="directory"),
        pytest.param("max.connections.per.ip.overrides", "here", id="overrides"),
        pytest.param("num.io.threads", "17", id="too many threads"),
        pytest.param("log.cleaner.threads", "0", id="too few threads"),
        pytest.param("log.cleaner.dedupe.buffer.size", "1048576", id="cleaner memory"),
        pytest.param("max.connections.per.ip.overrides", "a b:5", id="address"),
        pytest.param("log.local.retention.ms", "86400001", id="local time"),
        pytest.param("log.local.retention.ms", "-1", id="local time without bound"),
    ],
)
def test_values_are_checked_as_in_the_file(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_altered(CONFIG, NOTHING, {name: value}, of_broker=True)
    assert "\n" not in str(refusal.value)


LOCAL, RETENTION = "log.local.retention.bytes", "log.retention.bytes"


@pytest.mark.parametrize(
    ("of_file", "values", "message"),
    [
        ({}, {LOCAL: "51", RETENTION: "50"}, "more than log.retention.bytes property value: 50"),
        ({}, {LOCAL: "-1", RETENTION: "50"}, "must not be -1 as log.retention.bytes value is set"),
        ({LOCAL: "51"}, {RETENTION: "50"}, "must not be more than"),
        ({LOCAL: "51", RETENTION: "50"}, {"log.cleanup.policy": "compact"}, "not be more than"),
        ({LOCAL: "51", RETENTION: "50"}, {"max.connections": "5"}, None),
        ({LOCAL: "51", RETENTION: "50"}, {RETENTION: "-1"}, None),
        ({}, {LOCAL: "50", RETENTION: "50"}, None),
        ({}, {LOCAL: "-1"}, None),
        ({}, {RETENTION: "50"}, None),
    ],
)
def test_local_retention_is_checked_with_changes_of_logs(
    of_file: dict[str, str], values: dict[str, str], message: str | None
) -> None:
    """As Kafka does, whose start accepts them."""
    config = BrokerConfig.from_properties({"node.id": "1", **of_file})
    if message is None:
        check_altered(config, NOTHING, values, of_broker=False)
        return
    with pytest.raises(ConfigError, match=message):
        check_altered(config, NOTHING, values, of_broker=False)


KEYSTORE = "listener.name.plaintext.ssl.keystore.location"
CLIENT_AUTH = "listener.name.plaintext.ssl.client.auth"


def test_all_keys_that_fail_a_check_are_named() -> None:
    values = {"ssl.truststore.type": "JKS", "log.retention.ms": "soon", "ssl.keystore.type": "JKS"}
    words = r"using the listener prefix: \[ssl\.keystore\.type, ssl\.truststore\.type\]"
    with pytest.raises(ConfigError, match=words):
        check_altered(CONFIG, NOTHING, values, of_broker=True)


def test_settings_of_one_listener_do_not_come_with_those_of_all() -> None:
    for values in ({CLIENT_AUTH: "required"}, {"ssl.protocol": "x"}):
        check_altered(CONFIG, NOTHING, values, of_broker=True)
    both = {CLIENT_AUTH: "required", "ssl.protocol": "x"}
    with pytest.raises(ConfigError, match="for existing listener PLAINTEXT together"):
        check_altered(CONFIG, NOTHING, both, of_broker=True)
    one_by_one = in_force(CONFIG, Stored({CLIENT_AUTH: "required"}, {}))
    check_altered(one_by_one, DynamicConfigs({CLIENT_AUTH: "required"}), both, of_broker=True)
    for name in (KEYSTORE, "listener.name.other.ssl.client.auth"):
        check_altered(CONFIG, NOTHING, {name: "none", "ssl.protocol": "x"}, of_broker=True)


def test_stored_settings_of_tls_are_in_force_and_those_that_promise_more_are_not() -> None:
    stored = {CLIENT_AUTH: "required", "sasl.jaas.config": "x", "super.users": "User:admin"}
    config = in_force(CONFIG, Stored(stored, {}))
    assert config.dynamic == {CLIENT_AUTH: "required", "sasl.jaas.config": "x"}


def test_settings_of_all_brokers_are_checked_under_those_of_this_one() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    stored = DynamicConfigs(broker={low: "50"})
    check_altered(CONFIG, stored, {high: "60"}, of_broker=False)
    with pytest.raises(ConfigError):
        check_altered(CONFIG, stored, {high: "40"}, of_broker=False)


def test_what_was_stored_before_hinders_no_other_change() -> None:
    stored = DynamicConfigs(default={"my.own.key": "5"})
    values = {"my.own.key": "5", "log.retention.ms": "7"}
    check_altered(CONFIG, stored, values, of_broker=False)
    with pytest.raises(ConfigError, match=r"Unknown config name: my\.own\.key"):
        check_altered(CONFIG, stored, {"my.own.key": "6"}, of_broker=False)


def test_a_listener_has_limits_of_its_own_for_all_brokers() -> None:
    check_key("listener.name.plaintext.max.connections", "5", of_broker=False)
    with pytest.raises(ConfigError, match="Cannot update these configs dynamically"):
        check_key("listener.name.plaintext.connections.max.idle.ms", "x", of_broker=False)


MAP = "listener.security.protocol.map"
TWO = {
    "listeners": "PLAINTEXT://:9092,OTHER://:9094",
    "advertised.listeners": "PLAINTEXT://host:9092",
    MAP: "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,EXTRA:PLAINTEXT",
}


@pytest.mark.parametrize(
    "listeners",
    [
        pytest.param(f"{TWO['listeners']},EXTRA://:9095", id="one more"),
        pytest.param("PLAINTEXT://:9092", id="one less"),
        pytest.param("PLAINTEXT://:9092,EXTRA://:9094", id="another one in its place"),
    ],
)
def test_listeners_come_and_go(listeners: str) -> None:
    config = BrokerConfig.from_properties({"node.id": "1", **TWO})
    check_altered(config, NOTHING, {"listeners": listeners}, of_broker=True)
    altered = in_force(config, Stored({"listeners": listeners}, {}))
    assert [str(listener) for listener in altered.listeners] == listeners.split(",")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param(
            {"listeners": "OTHER://:9094"},
            "PLAINTEXT is not in listeners",
            id="advertised",
        ),
        pytest.param(
            {"listeners": "PLAINTEXT://:9092,OTHER://:9096"},
            "The address of existing listener OTHER cannot be updated",
            id="address",
        ),
        pytest.param(
            {"listeners": "PLAINTEXT://:9092,UNKNOWN://:9094"},
            "No security protocol defined for listener UNKNOWN",
            id="no protocol",
        ),
        pytest.param(
            {MAP: "PLAINTEXT:PLAINTEXT,OTHER:SSL"}, "listener OTHER uses SSL", id="not served"
        ),
        pytest.param({"listeners": "PLAINTEXT://:9092,OTHER"}, "Unable to parse OTHER", id="form"),
    ],
)
def test_listeners_that_a_broker_cannot_have(values: dict[str, str], words: str) -> None:
    config = BrokerConfig.from_properties({"node.id": "1", **TWO})
    with pytest.raises(ConfigError, match=words):
        check_altered(config, NOTHING, values, of_broker=True)


def test_listeners_that_the_file_has_are_advertised_if_it_does_not_say_which() -> None:
    properties = {name: value for name, value in TWO.items() if not name.startswith("advertised")}
    config = BrokerConfig.from_properties({"node.id": "1", **properties})
    words = "Advertised listeners 'OTHER, PLAINTEXT' must be a subset of listeners 'PLAINTEXT'"
    with pytest.raises(ConfigError, match=words):
        check_altered(config, NOTHING, {"listeners": "PLAINTEXT://:9092"}, of_broker=True)


def test_the_files_listeners_come_back() -> None:
    """Although the file has another port by now than the listeners that are stored."""
    stored = {"listeners": "PLAINTEXT://:9092,OTHER://:9094,EXTRA://:9095"}
    file = TWO | {"listeners": "PLAINTEXT://:9192,OTHER://:9094"}
    current = in_force(BrokerConfig.from_properties({"node.id": "1", **file}), Stored(stored, {}))
    check_altered(current, DynamicConfigs(broker=stored), {}, of_broker=True)


def test_listeners_of_controllers_stay() -> None:
    properties = {
        "node.id": "1",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
    }
    config = BrokerConfig.from_properties(properties)
    values = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9099"}
    with pytest.raises(ConfigError, match="Listeners of controllers cannot be updated"):
        check_altered(config, NOTHING, values, of_broker=True)


class Stored:
    """What an image has."""

    def __init__(self, broker: dict[str, str], default: dict[str, str]) -> None:
        self._broker, self._default = broker, default

    def broker_configs(self, broker_id: int | None) -> dict[str, str]:
        return self._default if broker_id is None else self._broker


def test_the_broker_comes_before_all_brokers_and_these_before_the_file() -> None:
    stored = Stored(
        {"log.retention.ms": "7"}, {"log.retention.ms": "5", "log.segment.bytes": "2000000"}
    )
    config = in_force(CONFIG, stored)
    assert config.get_int("log.retention.ms") == 7
    assert config.get_int("log.segment.bytes") == 2_000_000
    assert config.get_int("log.retention.hours") == 24
    assert config.explicit == CONFIG.explicit
    assert config.is_explicit("log.segment.bytes") and not CONFIG.is_explicit("log.segment.bytes")
    assert in_force(CONFIG, Stored({}, {})) is CONFIG


def test_stored_settings_that_do_not_go_together_are_left_out_one_by_one() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    config = in_force(CONFIG, Stored({low: "50", "log.retention.ms": "7"}, {high: "40"}))
    assert config.get_int(low) <= config.get_int(high)
    assert config.get_int("log.retention.ms") == 7


def test_intervals_stay_within_the_bounds_of_the_file() -> None:
    name = "group.consumer.assignment.interval.ms"
    config = in_force(CONFIG, Stored({name: "99999999"}, {}))
    assert config.get_int(name) == config.get_int("group.consumer.max.assignment.interval.ms")


def test_the_page_of_all_keys_is_the_tables() -> None:
    """`python -m scripts.configuration_table` writes it."""
    assert configuration_table.PAGE.read_text() == configuration_table.page()


def test_what_is_said_to_act_at_once_does_not_need_a_warning() -> None:
    for key in BROKER_KEYS.values():
        if configuration_table.status(key) in ("acts at once", "nothing to do"):
            assert acts(key.name), key.name
    assert acts("listener.name.plaintext.max.connections")
    assert not acts("remote.log.reader.threads")


def test_a_resource_has_so_many_settings() -> None:
    values = {f"listener.name.l{number}.max.connections": "5" for number in range(251)}
    with pytest.raises(ConfigError, match="No resource has more than 250"):
        check_altered(CONFIG, NOTHING, values, of_broker=True)


def test_a_value_that_a_key_cannot_have_does_not_count() -> None:
    assert is_accepted("min.insync.replicas", "2")
    assert not is_accepted("min.insync.replicas", "two")
    assert not is_accepted("log.retention.ms", "soon")
