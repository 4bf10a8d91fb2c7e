"""Describes settings for DescribeConfigs: value, source and synonyms.

Synonyms are all sources of the value, in order of precedence: the resource itself, dynamic per
broker, dynamic for the cluster, the properties file, the built-in default. As in Kafka the list
begins with the setting's own name: log.retention.hours is not listed as a synonym of
log.retention.ms while the latter is not set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.dynamic import DynamicConfigs, broker_key
from kbroker.settings.listener_keys import base_of, listener_of
from kbroker.settings.tables.group_table import CLIENT_METRICS_KEYS, GROUP_BROKER_KEYS, GROUP_KEYS
from kbroker.settings.tables.keys import (
    READ_ONLY,
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigType,
    parse,
    to_text,
)
from kbroker.settings.tables.served import OWN_KEYS
from kbroker.settings.tables.table import BROKER_KEYS
from kbroker.settings.tables.topic_table import DESCRIBED_TOPIC_KEYS, TOPIC_BROKER_KEYS, UNIT_MS

_FAMILIES: Final[tuple[tuple[str, ...], ...]] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
"""Broker keys that are synonyms of each other."""

_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: family for family in _FAMILIES for name in family},
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}


class Synonym(NamedTuple):
    """One source of a value; None if the value is sensitive."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting as DescribeConfigs shows it."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]


def describe_broker(config: BrokerConfig, dynamic: DynamicConfigs) -> list[ConfigEntry]:
    """Every setting of this broker, by name; internal ones only if they are set."""
    names = {name for name, key in BROKER_KEYS.items() if not key.internal}
    names.update(OWN_KEYS, config.explicit, dynamic.broker, dynamic.default)
    return [_broker_entry(config, dynamic, name) for name in sorted(names)]


def describe_cluster_default(config: BrokerConfig, dynamic: DynamicConfigs) -> list[ConfigEntry]:
    """The cluster-wide default settings of brokers."""
    entries = []
    only = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    for name, value in sorted(dynamic.default.items()):
        entry = _broker_entry(config, dynamic, name)
        synonyms = tuple(synonym for synonym in entry.synonyms if synonym.source == only)
        shown = None if entry.sensitive else value
        entries.append(entry._replace(value=shown, source=only, synonyms=synonyms))
    return entries


def describe_topic(
    config: BrokerConfig, dynamic: DynamicConfigs, overrides: Mapping[str, str]
) -> list[ConfigEntry]:
    """Every setting of a topic, in Kafka's order; internal ones only if they are set."""
    entries = []
    for key in DESCRIBED_TOPIC_KEYS:
        name = key.name
        if key.internal and name not in overrides:
            continue
        broker_keys = TOPIC_BROKER_KEYS.get(name, ())
        inherited = _broker_synonyms(config, dynamic, broker_keys[0]) if broker_keys else ()
        value = _inherited(config, dynamic, broker_keys)
        default = key.default if value is None else value
        entries.append(_entry(key, overrides, inherited, default, ConfigSource.TOPIC_CONFIG))
    return entries


def describe_group(
    config: BrokerConfig, dynamic: DynamicConfigs, overrides: Mapping[str, str]
) -> list[ConfigEntry]:
    """Every setting of a group, by name, whether the group exists or not."""
    entries = []
    for name, key in GROUP_KEYS.items():
        broker_key = GROUP_BROKER_KEYS.get(name)
        if broker_key is None:
            default = key.default
            inherited: Sequence[Synonym] = (Synonym(name, default, ConfigSource.DEFAULT_CONFIG),)
        else:
            inherited = _broker_synonyms(config, dynamic, broker_key)
            default = _inherited(config, dynamic, (broker_key,))
        entries.append(_entry(key, overrides, inherited, default, ConfigSource.GROUP_CONFIG))
    return entries


def describe_client_metrics(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a client-metrics subscription, whether it exists or not."""
    source = ConfigSource.CLIENT_METRICS_CONFIG
    return [_entry(key, overrides, (), key.default, source) for key in CLIENT_METRICS_KEYS.values()]


def select(entries: Sequence[ConfigEntry], names: Set[str] | None) -> list[ConfigEntry]:
    """The requested entries; None and an empty list of names mean all."""
    return [entry for entry in entries if not names or entry.name in names]


def _entry(
    key: ConfigKey,
    overrides: Mapping[str, str],
    inherited: Sequence[Synonym],
    default: str | None,
    source: ConfigSource,
) -> ConfigEntry:
    synonyms = tuple(inherited)
    value = default
    if key.name in overrides:
        value = _normal(key, overrides[key.name])
        synonyms = (Synonym(key.name, value, source), *synonyms)
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(key.name, value, source, key.type, False, False, synonyms)


def _broker_entry(config: BrokerConfig, dynamic: DynamicConfigs, name: str) -> ConfigEntry:
    key = broker_key(name)
    sensitive = key is None or key.sensitive
    value = None
    if key is not None and not sensitive:
        value = _set_value(config, dynamic, name)
        value = config.text(name) if value is None and name in BROKER_KEYS else value
        value = value if value is None else _normal(key, value)
    synonyms = _broker_synonyms(config, dynamic, name)
    return ConfigEntry(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=ConfigType.UNKNOWN if key is None else key.type,
        read_only=key is None or key.update_mode == READ_ONLY or listener_of(name) is not None,
        sensitive=sensitive,
        synonyms=synonyms,
    )


def _set_value(config: BrokerConfig, dynamic: DynamicConfigs, name: str) -> str | None:
    for layer in (dynamic.broker, dynamic.default, config.explicit):
        if name in layer:
            return layer[name]
    if name in OWN_KEYS:
        return OWN_KEYS[name].default
    return None


def _inherited(
    config: BrokerConfig, dynamic: DynamicConfigs, broker_keys: Sequence[str]
) -> str | None:
    """The broker's value for a topic or group: that of the first of its keys that is set, in ms."""
    for name in broker_keys:
        value = _set_value(config, dynamic, name)
        if value is None:
            value = config.default_text(name)
        if value is not None:
            value = _normal(BROKER_KEYS[name], value)
            unit_ms = UNIT_MS.get(name)
            return value if unit_ms is None or value is None else str(int(value) * unit_ms)
    return None


def _broker_synonyms(
    config: BrokerConfig, dynamic: DynamicConfigs, name: str
) -> tuple[Synonym, ...]:
    key = broker_key(name)
    sensitive = key is None or key.sensitive
    family = _SYNONYMS.get(name, (name,))
    base = base_of(name)
    names = family if base == name else (*family, base)
    found = list(_synonyms(config, dynamic, names, sensitive))
    while found and found[0].name != name:
        found.pop(0)
    return tuple(found)


def _synonyms(
    config: BrokerConfig, dynamic: DynamicConfigs, names: Sequence[str], sensitive: bool
) -> Iterator[Synonym]:
    static = dict(config.explicit)
    if "node.id" in static:
        static.setdefault("broker.id", static["node.id"])
    layers: tuple[tuple[Mapping[str, str], ConfigSource], ...] = (
        (dynamic.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (dynamic.default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (static, ConfigSource.STATIC_BROKER_CONFIG),
    )
    for layer, source in layers:
        for name in names:
            if name in layer:
                yield Synonym(name, None if sensitive else layer[name], source)
    for name in names:
        default = config.default_text(name) if name in BROKER_KEYS or name in OWN_KEYS else None
        if default is not None:
            value = None if sensitive else default
            yield Synonym(name, value, ConfigSource.DEFAULT_CONFIG)


def _normal(key: ConfigKey, text: str) -> str | None:
    """The text as Kafka prints it after parsing; unchanged if it cannot be parsed."""
    try:
        return to_text(parse(key, text))
    except ConfigError:
        return text
