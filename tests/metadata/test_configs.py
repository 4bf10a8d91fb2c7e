"""Topic settings: the source of each value."""

from __future__ import annotations

import pytest

from kbroker.metadata.configs import TopicSettings, effective_configs, effective_value
from kbroker.metadata.image import BROKER_RESOURCE, MetadataImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigSource
from kbroker.settings.tables.topic_table import TOPIC_KEYS

NODE = 7


def settings(**properties: str) -> TopicSettings:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return TopicSettings(BrokerConfig.from_properties(named), NODE)


def image(configs: dict[tuple[int, str], dict[str, str]] | None = None) -> MetadataImage:
    return MetadataImage(configs=LayeredMap(configs or {}))


def test_the_nearest_setting_holds() -> None:
    """Topic, broker, cluster, file, default: each is removed in turn."""
    own = settings(min_insync_replicas="2")
    key = "min.insync.replicas"
    layers = {(BROKER_RESOURCE, ""): {key: "3"}, (BROKER_RESOURCE, str(NODE)): {key: "4"}}
    found = [
        effective_value(own, image(layers), {key: "5"}, key),
        effective_value(own, image(layers), {}, key),
        effective_value(own, image({(BROKER_RESOURCE, ""): {key: "3"}}), {}, key),
        effective_value(own, image({(BROKER_RESOURCE, "8"): {key: "9"}}), {}, key),
        effective_value(settings(), image(), {}, key),
    ]
    assert found == [
        ("5", ConfigSource.TOPIC_CONFIG),
        ("4", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("2", ConfigSource.STATIC_BROKER_CONFIG),
        ("1", ConfigSource.DEFAULT_CONFIG),
    ]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"log_retention_hours": "2"}, "7200000"),
        ({"log_retention_hours": "2", "log_retention_minutes": "3"}, "180000"),
        ({"log_retention_hours": "2", "log_retention_ms": "5"}, "5"),
    ],
)
def test_the_brokers_keys_have_units_and_an_order(
    properties: dict[str, str], expected: str
) -> None:
    found = effective_value(settings(**properties), image(), {}, "retention.ms")
    assert found == (expected, ConfigSource.STATIC_BROKER_CONFIG)


def test_all_settings_by_name_without_internal_ones() -> None:
    entries = effective_configs(settings(), image(), {"retention.ms": "9"})
    names = [entry.name for entry in entries]
    assert names == sorted(name for name, key in TOPIC_KEYS.items() if not key.internal)
    (own,) = [entry for entry in entries if entry.config_source == ConfigSource.TOPIC_CONFIG]
    assert (own.name, own.value, own.read_only) == ("retention.ms", "9", False)


def test_an_internal_setting_is_shown_where_it_is_set() -> None:
    internal = next((name for name, key in sorted(TOPIC_KEYS.items()) if key.internal), None)
    assert internal is not None
    entries = effective_configs(settings(), image(), {internal: "1"})
    assert internal in [entry.name for entry in entries]


def test_a_stored_value_that_no_broker_accepts_does_not_count() -> None:
    """Kafka's controllers store directly requested values without validation."""
    stored = image({(BROKER_RESOURCE, ""): {"min.insync.replicas": "two"}})
    value = effective_value(settings(min_insync_replicas="3"), stored, {}, "min.insync.replicas")
    assert value == ("3", ConfigSource.STATIC_BROKER_CONFIG)
