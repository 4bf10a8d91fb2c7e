"""The valid settings of a topic, and Kafka's texts for invalid ones."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.topic_configs import validate_topic_configs


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"foo": "1"}, "Unknown topic config name: foo"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        (
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "3"},
            "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (3)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
    ],
)
def test_settings_a_topic_may_not_have(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_configs(overrides)
    assert str(caught.value) == message


def test_settings_a_topic_may_have() -> None:
    validate_topic_configs({})
    validate_topic_configs({"cleanup.policy": "compact,delete", "internal.segment.bytes": "14"})
    validate_topic_configs({"max.compaction.lag.ms": "10"})


def test_the_brokers_default_counts_in_rules() -> None:
    broker = BrokerConfig.from_properties({"log.cleaner.min.compaction.lag.ms": "20"})
    with pytest.raises(ConfigError, match="conflict"):
        validate_topic_configs({"max.compaction.lag.ms": "10"}, broker)


@pytest.mark.parametrize(
    ("low", "high", "is_allowed"), [("5", "5", True), ("6", "5", False), ("0", "1", True)]
)
def test_a_lag_may_be_as_long_as_its_limit(low: str, high: str, is_allowed: bool) -> None:
    overrides = {"min.compaction.lag.ms": low, "max.compaction.lag.ms": high}
    if is_allowed:
        validate_topic_configs(overrides)
    else:
        with pytest.raises(ConfigError, match="conflict"):
            validate_topic_configs(overrides)


def test_the_first_mistake_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_configs({"retention.ms": "x", "foo": "1"})
    assert caught.value.name == "retention.ms"
