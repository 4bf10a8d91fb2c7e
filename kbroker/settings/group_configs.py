"""Group settings (KIP-848, KIP-932, KIP-1071): validation, and the effective values.

Settings are validated when they are changed. If a broker is later started with narrower bounds, a
stored value counts as the nearest value within them, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kbroker.log_lines import shown
from kbroker.settings.tables.group_table import GROUP_BROKER_KEYS, GROUP_KEYS
from kbroker.settings.tables.keys import ConfigError, Value, parse

logger = logging.getLogger(__name__)

MAX_REMEMBERED: Final = 1000
"""The maximum number of invalid values that are remembered as logged."""

_BOUND_KEYS: Final[Mapping[str, tuple[str | None, str]]] = {
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    "consumer.assignment.interval.ms": (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "share.heartbeat.interval.ms": (
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    "share.session.timeout.ms": (
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ),
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.delivery.count.limit": (
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    "share.partition.max.record.locks": (
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "share.assignment.interval.ms": (
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    "streams.heartbeat.interval.ms": (
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    "streams.session.timeout.ms": (
        "group.streams.min.session.timeout.ms",
        "group.streams.max.session.timeout.ms",
    ),
    "streams.num.standby.replicas": (None, "group.streams.max.standby.replicas"),
    "streams.assignment.interval.ms": (
        "group.streams.min.assignment.interval.ms",
        "group.streams.max.assignment.interval.ms",
    ),
}
"""Group key to the broker keys of its minimum and maximum, in Kafka's order of checks."""

_ONLY_IF_SET: Final = frozenset(name for name in _BOUND_KEYS if ".assignment.interval." in name)
"""Settings that are not checked against the bounds while a group only inherits them."""


class BoundsConfig(Protocol):
    """The part of BrokerConfig that is needed here."""

    def get_int(self, name: str) -> int: ...


def validate_group_configs(overrides: Mapping[str, str], broker: BoundsConfig) -> None:
    """Raise ConfigError, in Kafka's words, for the first invalid setting of a group."""
    for name, text in overrides.items():
        if name not in GROUP_KEYS:
            message = f"Unknown group config name: {name}"
            raise ConfigError(name, text, message, ", ".join(GROUP_KEYS))
    values = {
        name: parse(key, overrides[name]) if name in overrides else _inherited(name, broker)
        for name, key in GROUP_KEYS.items()
    }
    for name, (low_key, high_key) in _BOUND_KEYS.items():
        value = values[name]
        if not isinstance(value, int) or (name in _ONLY_IF_SET and name not in overrides):
            continue
        if low_key is not None and value < broker.get_int(low_key):
            message = f"{name} must be greater than or equal to {low_key}"
            raise ConfigError(name, str(value), message, f"at least {broker.get_int(low_key)}")
        if value > broker.get_int(high_key):
            message = f"{name} must be less than or equal to {high_key}"
            raise ConfigError(name, str(value), message, f"at most {broker.get_int(high_key)}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        timeout_ms, interval_ms = values[session], values[heartbeat]
        if (
            isinstance(timeout_ms, int)
            and isinstance(interval_ms, int)
            and timeout_ms <= interval_ms
        ):
            message = f"{session} must be greater than {heartbeat}"
            raise ConfigError(session, str(timeout_ms), message, f"more than {interval_ms}")


def _inherited(name: str, broker: BoundsConfig) -> Value:
    broker_key, default = GROUP_BROKER_KEYS.get(name), GROUP_KEYS[name].default
    if broker_key is not None:
        return broker.get_int(broker_key)
    return None if default is None else parse(GROUP_KEYS[name], default)


class GroupConfigs:
    """The settings of groups, within this broker's bounds.

    overrides_of: returns a group's settings in the metadata, as text, by group id.
    """

    __slots__ = ("_broker", "_overrides_of", "_refused")

    def __init__(
        self, broker: BoundsConfig, overrides_of: Callable[[str], Mapping[str, str]]
    ) -> None:
        self._broker = broker
        self._overrides_of = overrides_of
        self._refused: dict[tuple[str, str], str] = {}

    def get(self, group_id: str, name: str) -> Value:
        """The group's own value; None if it has none, or an invalid one."""
        text = self._overrides_of(group_id).get(name)
        if text is None:
            return None
        try:
            value = parse(GROUP_KEYS[name], text)
        except ConfigError as error:
            self._say_once(group_id, name, text, error)
            return None
        if isinstance(value, int) and name in _BOUND_KEYS:
            low_key, high_key = _BOUND_KEYS[name]
            value = min(value, self._broker.get_int(high_key))
            if low_key is not None:
                value = max(value, self._broker.get_int(low_key))
        return value

    def _say_once(self, group_id: str, name: str, text: str, error: ConfigError) -> None:
        """Log a value that cannot be parsed, but only once: every heartbeat of the group
        reads it.
        """
        if self._refused.get((group_id, name)) == text:
            return
        if len(self._refused) >= MAX_REMEMBERED:
            self._refused.clear()
        self._refused[group_id, name] = text
        logger.warning("Group %s: %s; using the broker's value", shown(group_id), shown(error))

    def get_int(self, group_id: str, name: str) -> int | None:
        """As `get`, for an integer."""
        value = self.get(group_id, name)
        return value if isinstance(value, int) else None
