"""Broker settings that are changed while the broker runs (KIP-226): the allowed keys per scope, and
the effective values together with the file.

A resource is one broker, or the cluster default, which applies to every broker. Its settings are
stored as ConfigRecords. `check_altered` validates a change, on the broker that receives the
request; `in_force` computes the effective settings from the stored ones, and ignores values that
this version does not accept: another broker, or another version, may have written them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.log_lines import shown
from kbroker.settings import rules
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.listener_keys import (
    LIMIT_KEYS,
    PREFIX_ONLY_KEYS,
    base_of,
    fixed_settings,
    is_dynamic_security,
    listener_of,
    parse_dynamic,
)
from kbroker.settings.tables.keys import CLUSTER, READ_ONLY, ConfigError, ConfigKey, parse
from kbroker.settings.tables.served import OWN_KEYS, QUIET_KEYS, SERVED_KEYS
from kbroker.settings.tables.table import BROKER_KEYS, DYNAMIC_ONLY_KEYS
from kbroker.settings.tables.topic_table import TOPIC_BROKER_KEYS

logger = logging.getLogger(__name__)

POOL_KEYS: Final = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "num.network.threads",
    "log.cleaner.threads",
)
"""Thread counts: one change may at most halve or double one of them."""

CLAMPED_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    f"group.{kind}.assignment.interval.ms": (
        f"group.{kind}.min.assignment.interval.ms",
        f"group.{kind}.max.assignment.interval.ms",
    )
    for kind in ("consumer", "share", "streams")
}
"""A stored value outside of these bounds, which only the file can set, counts as the nearest
bound.
"""


_LOG_KEYS: Final = (
    *(key for keys in TOPIC_BROKER_KEYS.values() for key in keys),
    "cordoned.log.dirs",
)
"""The keys of Kafka's DynamicLogConfig: the broker's defaults of topics among them."""

_AS_RETENTION: Final = -2
"""The default of log.local.retention.*: as long, or as much, as log.retention.* says."""

MAX_SETTINGS: Final = 250
"""The maximum number of settings of one resource: listeners may have any name, and each lookup of a
setting takes time.
"""


class DynamicConfigs(NamedTuple):
    """The dynamic settings, as text: of this broker, and of all brokers (cluster-wide default)."""

    broker: Mapping[str, str] = {}
    default: Mapping[str, str] = {}

    @property
    def merged(self) -> dict[str, str]:
        """The settings of both, those of the broker taking precedence."""
        return {**self.default, **self.broker}

    def replaced(self, values: Mapping[str, str], *, of_broker: bool) -> DynamicConfigs:
        """A copy with other settings of the broker, or of all brokers."""
        return self._replace(broker=values) if of_broker else self._replace(default=values)


def broker_key(name: str) -> ConfigKey | None:
    """The table row of a broker key; for `listener.name.<listener>.<key>` that of <key>."""
    key = BROKER_KEYS.get(name) or OWN_KEYS.get(name) or DYNAMIC_ONLY_KEYS.get(name)
    return BROKER_KEYS.get(base_of(name)) if key is None else key


def acts(name: str) -> bool:
    """Whether kbroker implements the setting, or the setting needs no implementation."""
    if listener_of(name) is not None:
        return base_of(name) in LIMIT_KEYS
    return name in SERVED_KEYS or name in QUIET_KEYS or name in DYNAMIC_ONLY_KEYS


def check_key(name: str, value: str, *, of_broker: bool) -> None:
    """`check_keys` of one key."""
    check_keys({name: value}, of_broker=of_broker)


def check_keys(values: Mapping[str, str], *, of_broker: bool) -> None:
    """Raises ConfigError for keys that cannot be set at that scope while the broker runs, or for
    an invalid value; the order of the checks is Kafka's. of_broker: for one broker, not for all.
    Keys that are not in Kafka's table are accepted.
    """
    rows = {name: row for name in values if (row := broker_key(name)) is not None}
    read_only = [name for name, row in rows.items() if row.update_mode == READ_ONLY]
    _refuse(read_only, "Cannot update these configs dynamically")
    _refuse(
        [name for name in rows if name in PREFIX_ONLY_KEYS],
        "These security configs can be dynamically updated only per-listener using the listener"
        " prefix",
    )
    for name, row in rows.items():
        parse_dynamic(row, values[name])
    if not of_broker:
        _refuse(
            [name for name, row in rows.items() if not _is_of_cluster(name, row)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )


def _refuse(names: Sequence[str], message: str) -> None:
    if names:
        listed = ", ".join(sorted(names))
        raise ConfigError(names[0], None, f"{message}: [{shown(listed)}]")


def _is_of_cluster(name: str, row: ConfigKey) -> bool:
    if listener_of(name) is not None:
        return base_of(name) in LIMIT_KEYS
    return row.update_mode == CLUSTER


def is_accepted(name: str, value: str) -> bool:
    """Whether a value in the file, or stored for a broker, is valid for the key."""
    row = broker_key(name)
    try:
        if row is not None:
            parse(row, value)
    except ConfigError:
        return False
    return True


def accepted(values: Mapping[str, str], *, of_broker: bool) -> dict[str, str]:
    """The settings that `check_key` accepts."""
    return dict(_accepted(values, of_broker))


def _accepted(values: Mapping[str, str], of_broker: bool) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        try:
            check_key(name, value, of_broker=of_broker)
        except ConfigError:
            continue
        yield name, value


class StoredConfigs(Protocol):
    """The part of the metadata image that is needed here."""

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]: ...


def stored_configs(image: StoredConfigs, node_id: int) -> DynamicConfigs:
    """The accepted settings that are stored for a node."""
    return DynamicConfigs(
        accepted(image.broker_configs(node_id), of_broker=True),
        accepted(image.broker_configs(None), of_broker=False),
    )


def check_altered(
    current: BrokerConfig, stored: DynamicConfigs, values: Mapping[str, str], *, of_broker: bool
) -> None:
    """Raises ConfigError, with a one-line message, unless `values` are valid settings of a
    resource. current: the effective settings. stored: those of both resources. Unlike Kafka, which
    keeps unknown keys for its plug-ins, they are rejected.
    """
    if len(values) > MAX_SETTINGS:
        name = next(iter(values))
        raise ConfigError(name, None, f"No resource has more than {MAX_SETTINGS} settings.")
    before = stored.broker if of_broker else stored.default
    for name, value in values.items():
        if broker_key(name) is None and before.get(name) != value:
            raise ConfigError(name, value, f"Unknown config name: {shown(name)}{_suggestion(name)}")
    check_keys(values, of_broker=of_broker)
    altered = current.with_dynamic(stored.replaced(values, of_broker=of_broker).merged)
    for name in POOL_KEYS:
        _check_pool(name, current.get_int(name), altered.get_int(name))
    _check_local_retention(current, altered)
    _check_listeners(current, altered)
    _check_fixed_settings(current, altered)


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    known = [row.name for row in BROKER_KEYS.values() if row.update_mode != READ_ONLY]
    close = get_close_matches(name[:100], known, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def _check_pool(name: str, old: int, new: int) -> None:
    if new == old:
        return
    message = f"Dynamic thread count update validation failed for {name}={new}, value should "
    if new < 1:
        raise ConfigError(name, str(new), f"{message}be at least 1")
    if new < old // 2:
        message += f"be at least half the current value {old}"
        raise ConfigError(name, str(new), message)
    if new > old * 2:
        message += f"not be greater than double the current value {old}"
        raise ConfigError(name, str(new), message)


def _check_local_retention(current: BrokerConfig, altered: BrokerConfig) -> None:
    """With a change of any setting of logs Kafka's DynamicLogConfig checks these, with or without
    tiered storage. It does not check them at start.
    """
    if all(current.get(name) == altered.get(name) for name in _LOG_KEYS):
        return
    for unit, retention in (
        ("ms", rules.retention_ms(altered)),
        ("bytes", altered.get_int("log.retention.bytes")),
    ):
        whole, name = f"log.retention.{unit}", f"log.local.retention.{unit}"
        local = altered.get_int(name)
        if retention < 0 or local == _AS_RETENTION:
            continue
        if local < 0:
            message = f"Value must not be {local} as {whole} value is set as {retention}."
            raise ConfigError(name, str(local), message)
        if local > retention:
            message = f"Value must not be more than {whole} property value: {retention}"
            raise ConfigError(name, str(local), message)


def _check_listeners(current: BrokerConfig, altered: BrokerConfig) -> None:
    """Listeners can be opened and closed while a broker runs (Kafka's DynamicListenerConfig).
    Advertised listeners of the file must be kept, since the broker is registered with them, and a
    kept listener must keep its address: Kafka accepts another address and ignores it.
    """
    file = current.with_dynamic({})
    of_file = {listener.name: listener for listener in file.listeners}
    before = {listener.name: listener for listener in current.listeners}
    after = {listener.name: listener for listener in altered.listeners}
    advertised = {listener.name for listener in file.advertised_listeners}
    message = ""
    if not advertised <= after.keys():
        names = ", ".join(sorted(advertised)), ", ".join(sorted(after))
        message = "Advertised listeners '{}' must be a subset of listeners '{}'".format(*names)
    for name in before.keys() & after.keys():
        if after[name].security_protocol != before[name].security_protocol:
            message = f"Security protocol cannot be updated for existing listener {name}"
        elif after[name] not in (before[name], of_file.get(name)):
            message = f"The address of existing listener {name} cannot be updated; restart for that"
    if altered.controller_listeners != current.controller_listeners:
        message = "Listeners of controllers cannot be updated while they run; restart for that"
    if message:
        raise ConfigError("listeners", altered.text("listeners"), message)


_RELOADING_KEYS: Final = frozenset({"listeners", "listener.security.protocol.map"})


def _check_fixed_settings(current: BrokerConfig, altered: BrokerConfig) -> None:
    """A change of the settings of all listeners may not come with one of the fixed settings of an
    existing listener. As in Kafka each of the two is accepted alone.
    """
    before, after = current.dynamic, altered.dynamic
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if not any(
        name in _RELOADING_KEYS or (listener_of(name) is None and is_dynamic_security(name))
        for name in changed
    ):
        return
    kept = {item.name for item in current.listeners} & {item.name for item in altered.listeners}
    for listener in sorted(kept):
        old, new = fixed_settings(before, listener), fixed_settings(after, listener)
        names = sorted(changed & (old.keys() | new.keys()))
        if names:
            message = (
                f"Configs cannot be updated dynamically for existing listener {listener} together"
                " with those of all listeners; alter them in a request of their own:"
                f" [{shown(', '.join(names))}]"
            )
            raise ConfigError(names[0], None, message)


def in_force(static: BrokerConfig, image: StoredConfigs) -> BrokerConfig:
    """The effective settings: those of the file, overridden by the stored ones. Stored settings
    that are not accepted are ignored, with a log line.
    """
    node_id = static.node_id
    values = DynamicConfigs(
        _said(image.broker_configs(node_id), f"broker {node_id}", of_broker=True),
        _said(image.broker_configs(None), "all brokers", of_broker=False),
    ).merged
    for name, (low, high) in CLAMPED_KEYS.items():
        if name in values:
            value = max(int(values[name]), static.get_int(low))
            values[name] = str(min(value, static.get_int(high)))
    while True:
        try:
            return static.with_dynamic(values) if values else static
        except ConfigError as error:  # an invalid combination of keys
            logger.error("ignoring the stored settings: %s", shown(error))
            if values.pop(error.name, None) is None:
                return static


def _said(values: Mapping[str, str], whose: str, *, of_broker: bool) -> dict[str, str]:
    kept = accepted(values, of_broker=of_broker)
    ignored = sorted(values.keys() - kept.keys())
    if ignored:
        logger.error("ignoring stored settings of %s: %s", whose, shown(", ".join(ignored)))
    return kept
