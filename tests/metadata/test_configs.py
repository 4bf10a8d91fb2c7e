"""Topic settings: which are rejected, the records they are written as, and the source of each
value.
"""

from __future__ import annotations

import pytest

from kbroker.metadata.configs import (
    TopicSettings,
    cluster_min_insync_record,
    config_records,
    effective_configs,
    effective_value,
    validate,
)
from kbroker.metadata.image import (
    BROKER_RESOURCE,
    ELIGIBLE_LEADER_REPLICAS,
    TOPIC_RESOURCE,
    MetadataImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigSource
from kbroker.settings.tables.topic_table import TOPIC_KEYS

NODE = 7


def settings(**properties: str) -> TopicSettings:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return TopicSettings(BrokerConfig.from_properties(named), NODE)


def image(
    configs: dict[tuple[int, str], dict[str, str]] | None = None, *, elr: bool = False
) -> MetadataImage:
    features = {ELIGIBLE_LEADER_REPLICAS: 1} if elr else {}
    return MetadataImage(configs=LayeredMap(configs or {}), features=features)


def test_valid_overrides_keep_their_order() -> None:
    asked = {"retention.ms": "1", "cleanup.policy": "compact"}
    assert list(validate(asked).items()) == list(asked.items())
    assert validate({}) == {}


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"no.such.key": "1"}, "no.such.key"),
        ({"segment.bytes": "1"}, "segment.bytes"),
        ({"zzz": "1", "retention.ms": None}, "Null value"),
        ({"leader.replication.throttled.replicas": "1:1," * 9000}, "maximum value size of 32767"),
        ({"leader.replication.throttled.replicas": "é" * 16384}, "maximum value size of 32767"),
    ],
)
def test_what_is_refused(configs: dict[str, str | None], words: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate(configs)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert words in str(caught.value)


class Counted(dict[str, str | None]):
    """Counts the values that are read."""

    read = 0

    def __getitem__(self, name: str) -> str | None:
        self.read += 1
        return super().__getitem__(name)


def test_few_of_very_many_names_are_looked_at() -> None:
    configs = Counted((f"key.{number:05d}", "1") for number in range(70_000))
    with pytest.raises(KafkaError, match=r"Unknown topic config name: key\.00000"):
        validate(configs)
    assert configs.read <= len(TOPIC_KEYS) + 1


def test_records_of_overrides() -> None:
    values = {"retention.ms": "1", "cleanup.policy": "compact"}
    records = config_records(image(elr=True), "t", values)
    assert records == [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name=name, value=value)
        for name, value in values.items()
    ]


@pytest.mark.parametrize("elr", [True, False])
def test_a_new_minimum_makes_void_what_elr_knew(elr: bool) -> None:
    records = config_records(image(elr=elr), "t", {"min.insync.replicas": "2"})
    assert records[1:] == ([ClearElrRecord(topic_name="t")] if elr else [])


@pytest.mark.parametrize(("properties", "value"), [({}, "1"), ({"min_insync_replicas": "3"}, "3")])
def test_the_clusters_minimum_is_that_of_the_file(properties: dict[str, str], value: str) -> None:
    record = cluster_min_insync_record(settings(**properties))
    assert (record.resource_type, record.resource_name) == (BROKER_RESOURCE, "")
    assert (record.name, record.value) == ("min.insync.replicas", value)


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
