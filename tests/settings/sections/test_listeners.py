"""Listeners, their protocols, and the addresses for clients."""

from __future__ import annotations

import pytest

from kbroker.model import StartupError
from kbroker.settings.broker import BrokerConfig


def load(properties: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.from_properties(properties)


def test_controller_listeners_are_apart() -> None:
    broker = load(
        {
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
        }
    )
    assert list(map(str, broker.listeners)) == ["PLAINTEXT://:9092"]
    assert list(map(str, broker.controller_listeners)) == ["CONTROLLER://:9093"]
    assert broker.controller_listeners[0].is_controller
    assert list(map(str, broker.advertised_listeners)) == ["PLAINTEXT://:9092"]


def test_several_listeners_with_names() -> None:
    broker = load(
        {
            "listeners": "inside://[::1]:9092,OUTSIDE://0.0.0.0:0",
            "advertised.listeners": "INSIDE://broker:9092, outside://example.com:19092",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:plaintext",
            "inter.broker.listener.name": "inside",
        }
    )
    inside, outside = broker.listeners
    assert (inside.name, inside.host, inside.port) == ("INSIDE", "::1", 9092)
    assert str(inside) == "INSIDE://[::1]:9092"
    assert (outside.host, outside.port) == ("0.0.0.0", 0)
    assert [str(listener) for listener in broker.advertised_listeners] == [
        "INSIDE://broker:9092",
        "OUTSIDE://example.com:19092",
    ]
    assert broker.inter_broker_listener_name == "INSIDE"


def test_a_wildcard_is_not_advertised() -> None:
    broker = load({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    assert [listener.host for listener in broker.advertised_listeners] == [""]


def test_one_port_for_both_families() -> None:
    names = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
    broker = load({"listeners": "A://127.0.0.1:9092,B://[::1]:9092", **names})
    assert len(broker.listeners) == 2
    load({"listeners": "A://:0,B://:0", **names})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"listeners": "PLAINTEXT"}, "Unable to parse PLAINTEXT to a broker endpoint"),
        ({"listeners": "PLAINTEXT://a b:9092"}, "Unable to parse"),
        ({"listeners": "PLAINTEXT://:99999"}, "no valid port"),
        ({"listeners": "FOO://:1"}, "No security protocol defined for listener FOO"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "a different name"),
        (
            {
                "listeners": "PLAINTEXT://:1,B://:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
            },
            "a different port",
        ),
        ({"listeners": "SSL://:9093"}, "does not serve"),
        (
            {"listeners": "CONTROLLER://:1", "controller.listener.names": "CONTROLLER"},
            "at least one listener for clients",
        ),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "0.0.0.0 is no address"),
        ({"advertised.listeners": "SSL://x:1"}, "SSL is not in listeners"),
        ({"listener.security.protocol.map": "A:FOO"}, "Invalid security protocol `FOO`"),
        ({"inter.broker.listener.name": "X"}, "must be a listener name defined in"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "Only one of",
        ),
    ],
)
def test_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        load(properties)
