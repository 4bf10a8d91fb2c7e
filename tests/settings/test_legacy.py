"""Keys of old Kafkas."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.legacy import translate


@pytest.mark.parametrize(
    ("old", "listeners", "advertised"),
    [
        ({"port": "1234"}, "PLAINTEXT://:1234", None),
        ({"host.name": "h"}, "PLAINTEXT://h:9092", None),
        ({"host.name": "::1", "port": "1"}, "PLAINTEXT://[::1]:1", None),
        ({"advertised.host.name": "a"}, None, "PLAINTEXT://a:9092"),
        (
            {"host.name": "h", "port": "1", "advertised.port": "2"},
            "PLAINTEXT://h:1",
            "PLAINTEXT://h:2",
        ),
        ({"port": "1", "listeners": "PLAINTEXT://:5"}, "PLAINTEXT://:5", None),
    ],
)
def test_addresses(old: dict[str, str], listeners: str | None, advertised: str | None) -> None:
    pairs, notes = translate(old)
    assert pairs.get("listeners") == listeners
    assert pairs.get("advertised.listeners") == advertised
    assert len(notes) == 1


def test_timestamp_difference() -> None:
    pairs, notes = translate(
        {
            "log.message.timestamp.difference.max.ms": "5",
            "log.message.timestamp.after.max.ms": "7",
        }
    )
    assert pairs == {
        "log.message.timestamp.before.max.ms": "5",
        "log.message.timestamp.after.max.ms": "7",
    }
    assert len(notes) == 1


def test_renamed() -> None:
    pairs, notes = translate({"delegation.token.master.key": "x"})
    assert pairs == {"delegation.token.secret.key": "x"}
    assert notes == ["delegation.token.master.key is now delegation.token.secret.key"]
    pairs, _ = translate({"delegation.token.master.key": "x", "delegation.token.secret.key": "y"})
    assert pairs == {"delegation.token.secret.key": "y"}


@pytest.mark.parametrize(
    "key",
    [
        "zookeeper.connect",
        "zookeeper.ssl.client.enable",
        "password.encoder.secret",
        "control.plane.listener.name",
        "inter.broker.protocol.version",
        "log.message.format.version",
        "log.message.downconversion.enable",
        "broker.id.generation.enable",
        "offsets.commit.required.acks",
        "quota.producer.default",
        "controlled.shutdown.max.retries",
        "confluent.license",
    ],
)
def test_gone_keys_are_explained(key: str) -> None:
    broker = BrokerConfig.from_properties({key: "x"})
    (line,) = broker.warnings
    assert line.startswith(f"{key}: no longer used; ")
    assert not broker.explicit
