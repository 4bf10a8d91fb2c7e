"""Listeners: `NAME://host:port` lists, the protocol map, and Kafka's rules between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kbroker.settings.tables.keys import ConfigError

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's protocol names. A listener may use those of SERVED_PROTOCOLS."""

SERVED_PROTOCOLS: Final = frozenset({"PLAINTEXT"})

_ENDPOINT: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
_FORM: Final = "NAME://host:port, for example PLAINTEXT://localhost:9092"


class Listener(msgspec.Struct, frozen=True):
    """A listener's bind address, or its advertised address.

    host: "" for every interface (listeners) or for the host's own name (advertised listeners).
    port: 0 for any free one. is_controller: named in controller.listener.names.
    """

    name: str
    host: str
    port: int
    security_protocol: str
    is_controller: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str, controllers: Sequence[str], explicit: bool) -> dict[str, str]:
    """listener.security.protocol.map to a dict, names in upper case. Raises ConfigError.

    explicit: whether it was set; if not, controller listeners are PLAINTEXT.
    """
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in item.rpartition(":"))
        if not colon or protocol not in SECURITY_PROTOCOLS:
            allowed = f"NAME:PROTOCOL, with PROTOCOL one of {', '.join(SECURITY_PROTOCOLS)}"
            message = f"Invalid security protocol `{protocol}` defined in {key}"
            raise ConfigError(key, text, message, allowed)
        protocols[name] = protocol
    if not explicit:
        for controller in controllers:
            protocols.setdefault(controller, "PLAINTEXT")
    return protocols


def parse_listeners(
    key: str, items: Sequence[str], protocols: Mapping[str, str], controllers: Sequence[str]
) -> tuple[Listener, ...]:
    """Parse the items of `listeners` or `advertised.listeners`. Raises ConfigError."""
    listeners: list[Listener] = []
    text = ",".join(items)
    for item in items:
        match = _ENDPOINT.fullmatch(item)
        if match is None:
            raise ConfigError(key, text, f"Unable to parse {item} to a broker endpoint", _FORM)
        name, host, port = match[1].strip().upper(), match[2], int(match[3])
        if name not in protocols:
            known = ", ".join(sorted(protocols))
            message = f"No security protocol defined for listener {name}"
            allowed = f"a name of listener.security.protocol.map ({known})"
            raise ConfigError(key, text, message, allowed)
        if not 0 <= port < 65536:
            raise ConfigError(key, text, f"{item} has no valid port", "ports from 0 to 65535")
        listeners.append(Listener(name, host, port, protocols[name], name in controllers))
    _check_unique(key, text, listeners)
    return tuple(listeners)


def _check_unique(key: str, text: str, listeners: Sequence[Listener]) -> None:
    names = {listener.name for listener in listeners}
    if len(names) < len(listeners):
        raise ConfigError(key, text, "Each listener must have a different name", _FORM)
    if key != "listeners":
        return
    by_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener)
    for same in by_port.values():
        six = [":" in listener.host for listener in same]
        one_of_each = len(same) == 2 and six[0] != six[1] and all(item.host for item in same)
        if len(same) > 1 and not one_of_each:
            raise ConfigError(key, text, "Each listener must have a different port", _FORM)


def check_advertised(advertised: Sequence[Listener], listeners: Sequence[Listener]) -> None:
    """Kafka's rules for advertised.listeners. Raises ConfigError."""
    key = "advertised.listeners"
    text = ",".join(map(str, advertised))
    names = {listener.name for listener in listeners}
    for listener in advertised:
        if listener.host == "0.0.0.0":
            message = "0.0.0.0 is no address that a client could connect to"
            raise ConfigError(key, text, message, "a host name or address clients can reach")
        if listener.name not in names and not listener.is_controller:
            message = f"{listener.name} is not in listeners"
            raise ConfigError(key, text, message, f"names of listeners: {', '.join(sorted(names))}")


def check_served(
    listeners: Sequence[Listener], controllers: Sequence[tuple[str, str]] = ()
) -> None:
    """Reject a listener whose protocol is not supported, since its data would be unprotected.
    controllers: names and protocols of the controller listeners to which a broker connects.
    """
    for listener in listeners:
        if listener.security_protocol not in SERVED_PROTOCOLS:
            message = (
                f"listener {listener.name} uses {listener.security_protocol}, "
                "which this version of kbroker does not serve"
            )
            raise ConfigError("listeners", str(listener), message, "PLAINTEXT listeners")
    for name, protocol in controllers:
        if protocol not in SERVED_PROTOCOLS:
            message = f"{name} uses {protocol}, which this version of kbroker does not serve"
            raise ConfigError("controller.listener.names", name, message, "PLAINTEXT listeners")
