"""`QuorumConfig`: the `controller.quorum.*` settings: voters and timeouts.

The rules between these keys and `process.roles` are in `roles`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from kbroker.settings.tables.keys import ConfigError

VOTERS: Final = "controller.quorum.voters"
BOOTSTRAP_SERVERS: Final = "controller.quorum.bootstrap.servers"
AUTO_JOIN: Final = "controller.quorum.auto.join.enable"

_HOST_PORT: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]+)")
_VOTER_FORM: Final = "{id}@{host}:{port}, for example 1@localhost:9093"
_SERVER_FORM: Final = "{host}:{port}, for example localhost:9093"


class QuorumVoter(NamedTuple):
    """An entry of controller.quorum.voters: a node id and its first controller listener."""

    id: int
    host: str
    port: int


class QuorumSettings(Protocol):
    """The part of BrokerConfig that is needed here."""

    @property
    def voters(self) -> tuple[QuorumVoter, ...]: ...
    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]: ...
    def get_int(self, name: str) -> int: ...
    def get_bool(self, name: str) -> bool: ...


class QuorumConfig(msgspec.Struct, frozen=True):
    """The settings of one node. voters: the static ones, none in a dynamic quorum (KIP-853).
    bootstrap_servers: (host, port), used to find the leader while none is known. auto_join: a
    controller that is not a voter adds itself. Times in ms, sizes in bytes.
    """

    voters: tuple[QuorumVoter, ...] = ()
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    auto_join: bool = False
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    append_linger_ms: int = 25
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1_048_576
    fetch_snapshot_max_bytes: int = 1_048_576

    @classmethod
    def from_broker(cls, config: QuorumSettings) -> QuorumConfig:
        """The quorum's part of a node's settings."""
        return cls(
            voters=config.voters,
            bootstrap_servers=config.bootstrap_servers,
            auto_join=config.get_bool(AUTO_JOIN),
            election_timeout_ms=config.get_int("controller.quorum.election.timeout.ms"),
            election_backoff_max_ms=config.get_int("controller.quorum.election.backoff.max.ms"),
            fetch_timeout_ms=config.get_int("controller.quorum.fetch.timeout.ms"),
            append_linger_ms=config.get_int("controller.quorum.append.linger.ms"),
            request_timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
            retry_backoff_ms=config.get_int("controller.quorum.retry.backoff.ms"),
            fetch_max_bytes=config.get_int("controller.quorum.fetch.max.bytes"),
            fetch_snapshot_max_bytes=config.get_int("controller.quorum.fetch.snapshot.max.bytes"),
        )


def parse_voters(items: Sequence[str]) -> tuple[QuorumVoter, ...]:
    """The entries of controller.quorum.voters. Raises ConfigError, also for a duplicate id, of
    which Kafka silently uses one.
    """
    voters: dict[int, QuorumVoter] = {}
    text = ",".join(items)
    for item in items:
        number, at, address = item.partition("@")
        if not at:
            message = f"{item} is not of the form {{id}}@{{host}}:{{port}}"
            raise ConfigError(VOTERS, text, message, _VOTER_FORM)
        if not (number.isascii() and number.isdecimal() and int(number) < 2**31):
            message = f"Failed to parse voter ID as an integer from {number}"
            raise ConfigError(VOTERS, text, message, _VOTER_FORM)
        host, port = _parse_address(VOTERS, text, item, address, _VOTER_FORM)
        if host == "0.0.0.0":
            raise ConfigError(VOTERS, text, f"Host string ({host}) is not routeable", _VOTER_FORM)
        if int(number) in voters:
            raise ConfigError(VOTERS, text, f"the voter {int(number)} is named twice", _VOTER_FORM)
        voters[int(number)] = QuorumVoter(int(number), host, port)
    return tuple(voters.values())


def parse_bootstrap_servers(items: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """controller.quorum.bootstrap.servers as (host, port). Raises ConfigError."""
    servers = tuple(items)
    text = ",".join(servers)
    return tuple(
        _parse_address(BOOTSTRAP_SERVERS, text, item, item, _SERVER_FORM) for item in servers
    )


def _parse_address(key: str, text: str, item: str, address: str, allowed: str) -> tuple[str, int]:
    """item: the whole entry, for the message."""
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        raise ConfigError(key, text, f"Failed to parse host name and port from {item}", allowed)
    if not 0 < int(match[2]) < 65536:
        raise ConfigError(key, text, f"{item} has no valid port", "ports from 1 to 65535")
    return match[1], int(match[2])
