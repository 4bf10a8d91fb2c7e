"""Validates a topic's settings when the topic is created or altered."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigError, Value, parse
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.views.log_config import topic_default


def validate_topic_configs(
    overrides: Mapping[str, str | None], broker: BrokerConfig | None = None
) -> None:
    """Raise ConfigError, in Kafka's words, for the first invalid setting.

    broker: has the defaults for rules between several keys; None for Kafka's own.
    """
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            allowed = ", ".join(TOPIC_KEYS)
            raise ConfigError(name, text, f"Unknown topic config name: {name}", allowed)
        if text is None:
            message = f"Null value not supported for topic configs: {name}"
            raise ConfigError(name, None, message, "a value")
        values[name] = parse(key, text)
    _check_compaction_lag(values, broker)
    if values.get("remote.storage.enable") is True:
        message = (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
        raise ConfigError("remote.storage.enable", "true", message, "false")


def _check_compaction_lag(values: Mapping[str, Value], broker: BrokerConfig | None) -> None:
    low, high = "min.compaction.lag.ms", "max.compaction.lag.ms"
    if low not in values and high not in values:
        return
    least, most = (
        values[name] if name in values else _default(name, broker) for name in (low, high)
    )
    if isinstance(least, int) and isinstance(most, int) and least > most:
        message = f"conflict topic config setting {low} ({least}) > {high} ({most})"
        raise ConfigError(low, str(least), message, f"at most {most}")


def _default(name: str, broker: BrokerConfig | None) -> Value:
    if broker is not None:
        return topic_default(broker, name)
    key = TOPIC_KEYS[name]
    return None if key.default is None else parse(key, key.default)
