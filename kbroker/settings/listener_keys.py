"""Settings of one listener, `listener.name.<listener>.<key>`, and the keys of TLS and SASL, which
Kafka lets be altered while a broker runs, most of them with or without that prefix.

On a PLAINTEXT listener, and kbroker has no others, keys of TLS and SASL have no effect in Kafka
either: its channels without TLS and SASL do not read them. They are checked, stored and described.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kbroker.settings.tables.keys import (
    PER_BROKER,
    ConfigKey,
    ConfigType,
    Value,
    invalid,
    parse,
)
from kbroker.settings.tables.table import BROKER_KEYS

_LISTENER_KEY: Final = re.compile(r"listener\.name\.([^.]*)\.(.*)")

_MECHANISM_KEY: Final = "sasl.jaas.config"
"""Also `listener.name.<listener>.<mechanism>.sasl.jaas.config`."""

LIMIT_KEYS: Final = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)
"""Keys of a listener that can be set for all brokers; the others only for one broker."""

_SECURITY_PREFIXES: Final = ("ssl.", "sasl.")
_PRINCIPAL_BUILDER: Final = "principal.builder.class"

_STORES: Final = ("ssl.keystore.", "ssl.truststore.")

PREFIX_ONLY_KEYS: Final = frozenset(
    {name for name in BROKER_KEYS if name.startswith(_STORES)} | {"ssl.key.password"}
)
"""Keystores and truststores, which are altered with the prefix of a listener (Kafka's
DynamicSecurityConfigs).
"""

LOADABLE_CLASSES: Final[Mapping[str, str]] = {
    _PRINCIPAL_BUILDER: BROKER_KEYS[_PRINCIPAL_BUILDER].default or "",
    "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
}
"""The class that a key may name: Kafka's own. Any other cannot be loaded here."""


def listener_of(name: str) -> str | None:
    """The listener whose setting it is, as spelled in the key; None without a listener's prefix."""
    match = _LISTENER_KEY.fullmatch(name)
    return match[1] if match else None


def base_of(name: str) -> str:
    """The key without the prefix of a listener, and of a mechanism."""
    match = _LISTENER_KEY.fullmatch(name)
    if match is None:
        return name
    return _MECHANISM_KEY if match[2].endswith(f".{_MECHANISM_KEY}") else match[2]


def is_dynamic_security(name: str) -> bool:
    """Whether it is a key of TLS, SASL or principals, with or without a prefix, that is altered
    while a broker runs.
    """
    base = base_of(name)
    is_security = base.startswith(_SECURITY_PREFIXES) or base == _PRINCIPAL_BUILDER
    row = BROKER_KEYS.get(base)
    return is_security and row is not None and row.update_mode == PER_BROKER


def has_no_effect(name: str) -> bool:
    """Whether it is a key of TLS or SASL, which does nothing on a PLAINTEXT listener."""
    return is_dynamic_security(name) and base_of(name) != _PRINCIPAL_BUILDER


def parse_dynamic(key: ConfigKey, text: str) -> Value:
    """Parse and validate a value that is altered. Raises ConfigError, as Kafka also for a class
    that cannot be loaded.
    """
    value = parse(key, text)
    if key.type is ConfigType.CLASS and value != LOADABLE_CLASSES.get(key.name, value):
        raise invalid(key.name, value, f"Class {value} could not be found.")
    return value


def fixed_settings(values: Mapping[str, str], listener: str) -> dict[str, str]:
    """The settings of a listener that only a new listener can have: all but limits, keystores and
    truststores.
    """
    prefix = f"listener.name.{listener.lower()}."
    free = LIMIT_KEYS | PREFIX_ONLY_KEYS
    return {
        name: value
        for name, value in values.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in free
    }
