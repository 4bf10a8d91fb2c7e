"""Values, their sources and synonyms, as DescribeConfigs shows them."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.describe import (
    ConfigEntry,
    DynamicConfigs,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
    select,
)
from kbroker.settings.tables.keys import ConfigSource

S = ConfigSource
NO_DYNAMIC = DynamicConfigs()


def config(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {name.replace("_", "."): value for name, value in properties.items()}
    )


def one(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (found,) = select(entries, {name})
    return found


def synonyms(entry: ConfigEntry) -> list[tuple[str, str | None, ConfigSource]]:
    return [tuple(synonym) for synonym in entry.synonyms]  # type: ignore[misc]  # three of them


def test_the_strongest_layer_gives_the_value() -> None:
    broker = config(message_max_bytes="1")
    dynamic = DynamicConfigs({"message.max.bytes": "3"}, {"message.max.bytes": "2"})
    entry = one(describe_broker(broker, dynamic), "message.max.bytes")
    assert (entry.value, entry.source) == ("3", S.DYNAMIC_BROKER_CONFIG)
    assert synonyms(entry) == [
        ("message.max.bytes", "3", S.DYNAMIC_BROKER_CONFIG),
        ("message.max.bytes", "2", S.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("message.max.bytes", "1", S.STATIC_BROKER_CONFIG),
        ("message.max.bytes", "1048588", S.DEFAULT_CONFIG),
    ]


def test_a_setting_of_a_topic_comes_first() -> None:
    broker = config(log_retention_hours="2")
    entry = one(describe_topic(broker, NO_DYNAMIC, {}), "retention.ms")
    assert entry.value == "7200000"
    entry = one(describe_topic(broker, NO_DYNAMIC, {"retention.ms": " 5"}), "retention.ms")
    assert (entry.value, entry.source) == ("5", S.TOPIC_CONFIG)
    assert synonyms(entry)[0] == ("retention.ms", "5", S.TOPIC_CONFIG)


def test_the_finer_unit_of_a_retention_counts_whatever_is_asked_for() -> None:
    broker = config(log_retention_hours="2", log_retention_minutes="3")
    entry = one(describe_topic(broker, NO_DYNAMIC, {}), "retention.ms")
    assert entry.value == "180000"
    hours = one(describe_broker(broker, NO_DYNAMIC), "log.retention.hours")
    assert synonyms(hours)[0] == ("log.retention.hours", "2", S.STATIC_BROKER_CONFIG)


@pytest.mark.parametrize("where", ["static", "dynamic", "unknown"])
def test_a_secret_is_never_shown(where: str) -> None:
    name = "my.secret" if where == "unknown" else "ssl.key.password"
    dynamic = DynamicConfigs({name: "hunter2"} if where == "dynamic" else {})
    static = {} if where == "dynamic" else {name: "hunter2"}
    entry = one(describe_broker(BrokerConfig.from_properties(static), dynamic), name)
    assert entry.sensitive and entry.value is None
    assert entry.synonyms and all(synonym.value is None for synonym in entry.synonyms)
    assert "hunter2" not in repr(entry)


def test_the_key_of_a_listener_has_the_type_of_its_key() -> None:
    """An invalid setting must not prevent the description of the others."""
    secret, plain = "listener.name.a.ssl.key.password", "listener.name.a.ssl.protocol"
    properties = {secret: "x", plain: "TLSv1.2", "ssl.protocol": "TLSv1.3"}
    entries = describe_broker(BrokerConfig.from_properties(properties), NO_DYNAMIC)
    entry = one(entries, secret)
    assert entry.sensitive and entry.value is None
    assert synonyms(one(entries, plain)) == [
        (plain, "TLSv1.2", S.STATIC_BROKER_CONFIG),
        ("ssl.protocol", "TLSv1.3", S.STATIC_BROKER_CONFIG),
        ("ssl.protocol", "TLSv1.3", S.DEFAULT_CONFIG),
    ]


def test_a_value_that_no_longer_parses_is_shown_as_it_is() -> None:
    entry = one(describe_topic(config(), NO_DYNAMIC, {"retention.ms": "soon"}), "retention.ms")
    assert entry.value == "soon"


def test_a_group_has_the_brokers_default() -> None:
    name = "consumer.session.timeout.ms"
    broker = config(group_consumer_session_timeout_ms="50000")
    assert one(describe_group(broker, NO_DYNAMIC, {}), name).value == "50000"
    own = one(describe_group(broker, NO_DYNAMIC, {name: "55000"}), name)
    assert (own.value, own.source) == ("55000", S.GROUP_CONFIG)
    assert synonyms(own)[1] == (
        "group.consumer.session.timeout.ms",
        "50000",
        S.STATIC_BROKER_CONFIG,
    )
    reset = one(describe_group(broker, NO_DYNAMIC, {}), "share.auto.offset.reset")
    assert (reset.value, reset.source) == ("latest", S.DEFAULT_CONFIG)


def test_a_subscription_of_client_metrics() -> None:
    entries = {entry.name: entry for entry in describe_client_metrics({"interval.ms": "5000"})}
    assert entries["interval.ms"].source is S.CLIENT_METRICS_CONFIG
    assert entries["metrics"].source is S.DEFAULT_CONFIG


def test_no_names_are_all_names() -> None:
    entries = describe_client_metrics({})
    assert select(entries, None) == select(entries, set()) == entries
    assert [entry.name for entry in select(entries, {"match", "unknown"})] == ["match"]
