"""Security settings that this version does not implement: a broker with one of them does not start.

kbroker serves PLAINTEXT listeners without authentication and authorization. In Kafka the keys below
decide who may connect and what a client may do; a broker that ignored them would be open to every
client although its file says otherwise. Keys of TLS and SASL that are altered while a broker runs
are accepted, as by a Kafka with PLAINTEXT listeners (`listener_keys`). Listeners with an unserved
protocol are refused in `listeners`. Key material alone (`ssl.keystore.location`) protects nothing
in Kafka either, so `warnings` names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kbroker.settings.listener_keys import is_dynamic_security
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.tables.table import BROKER_KEYS

_KEYS: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "authorizer.class.name",
        "connections.max.reauth.ms",
        "delegation.token.secret.key",
        "principal.builder.class",
        "security.inter.broker.protocol",
        "ssl.client.auth",
        "ssl.principal.mapping.rules",
        "super.users",
    }
)
_PREFIX: Final = "sasl."
_LISTENER: Final = re.compile(r"listener\.name\.[^.]+\.(?:(?!ssl\.)[^.]+\.(?=sasl\.))?(.+)")
"""`listener.name.{listener}.{key}` and `listener.name.{listener}.{mechanism}.sasl.{rest}`."""

_HARMLESS: Final[Mapping[str, str]] = {"allow.everyone.if.no.acl.found": "true"}
"""Values of the authorizer's keys without effect; the keys are not in Kafka's own table."""


def refuse_unserved(
    explicit: Mapping[str, str], dynamic: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises ConfigError if a setting requires authentication or authorization. The message lists
    every such setting. dynamic: the settings altered while the broker runs.
    """
    altered = {name: text for name, text in dynamic.items() if not is_dynamic_security(name)}
    explicit = {**explicit, **altered}
    found = [name for name, value in explicit.items() if _promises_security(name, value)]
    if not found:
        return
    name, *others = found
    also = f" (as do {', '.join(others)})" if others else ""
    message = (
        f"it asks for protection{also}, but this version of kbroker authenticates no clients and "
        "checks no permissions: the broker would be open to every client"
    )
    raise ConfigError(name, _shown(name, explicit[name]), message, "leave it out")


def _promises_security(name: str, value: str) -> bool:
    match = _LISTENER.fullmatch(name)
    key = match[1] if match else name
    if key not in _KEYS and not key.startswith(_PREFIX):
        return False
    row = BROKER_KEYS.get(key)
    harmless = _HARMLESS.get(key, "") if row is None else row.default or ""
    return value.strip() not in ("", harmless)


def _shown(name: str, value: str) -> str:
    """The value, unless it may contain a password."""
    row = BROKER_KEYS.get(name)
    hidden = name.startswith("listener.name.") or (row is not None and row.sensitive)
    return "[hidden]" if hidden else value
