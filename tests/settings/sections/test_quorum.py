"""controller.quorum.*: voters, bootstrap servers, timeouts."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.quorum import (
    QuorumConfig,
    QuorumVoter,
    parse_bootstrap_servers,
    parse_voters,
)
from kbroker.settings.tables.keys import ConfigError


def test_the_defaults_are_kafkas() -> None:
    assert QuorumConfig.from_broker(BrokerConfig.load(None)) == QuorumConfig()


def test_every_key_is_read() -> None:
    times = {
        "election.timeout.ms": 1,
        "election.backoff.max.ms": 2,
        "fetch.timeout.ms": 3,
        "append.linger.ms": 4,
        "request.timeout.ms": 5,
        "retry.backoff.ms": 6,
        "fetch.max.bytes": 7,
        "fetch.snapshot.max.bytes": 8,
    }
    config = BrokerConfig.from_properties(
        {
            "process.roles": "controller",
            "node.id": "2",
            "listeners": "CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@a:9093,2@[::1]:9094",
            "controller.quorum.bootstrap.servers": "a:9093,b.example.com:1",
            "controller.quorum.auto.join.enable": "true",
            **{f"controller.quorum.{key}": str(value) for key, value in times.items()},
        }
    )
    assert QuorumConfig.from_broker(config) == QuorumConfig(
        voters=(QuorumVoter(1, "a", 9093), QuorumVoter(2, "::1", 9094)),
        bootstrap_servers=(("a", 9093), ("b.example.com", 1)),
        auto_join=True,
        election_timeout_ms=1,
        election_backoff_max_ms=2,
        fetch_timeout_ms=3,
        append_linger_ms=4,
        request_timeout_ms=5,
        retry_backoff_ms=6,
        fetch_max_bytes=7,
        fetch_snapshot_max_bytes=8,
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("a:9093", "is not of the form"),
        ("x@a:9093", "Failed to parse voter ID as an integer from x"),
        ("-1@a:9093", "Failed to parse voter ID"),
        ("99999999999@a:9093", "Failed to parse voter ID"),
        ("1@a", "Failed to parse host name and port from 1@a"),
        ("1@:9093", "Failed to parse host name and port"),
        ("1@a b:9093", "Failed to parse host name and port"),
        ("1@a:65536", "has no valid port"),
        ("1@a:0", "has no valid port"),
        ("1@0.0.0.0:9093", "is not routeable"),
    ],
)
def test_bad_voters(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_voters([entry])


def test_a_voter_is_named_once() -> None:
    with pytest.raises(ConfigError, match="the voter 1 is named twice"):
        parse_voters(["1@a:9093", "2@b:9093", "01@c:9093"])


@pytest.mark.parametrize("entry", ["a", "a:", ":9093", "a:x", "a:70000"])
def test_bad_bootstrap_servers(entry: str) -> None:
    with pytest.raises(ConfigError):
        parse_bootstrap_servers(["a:9093", entry])
