"""process.roles: valid combinations, and Kafka's results for invalid ones."""

from __future__ import annotations

import pytest

from kbroker.model import StartupError
from kbroker.settings.broker import BrokerConfig

CONTROLLER = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@a:9093,2@b:9093",
}
BROKER = {
    "process.roles": "broker",
    "node.id": "3",
    "listeners": "PLAINTEXT://:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@a:9093,2@b:9093",
}
BOTH = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "a:9093",
}
MAP = "listener.security.protocol.map"
ADVERTISED = "advertised.listeners"


def load(*properties: dict[str, str | None]) -> BrokerConfig:
    """Later values override earlier ones; None removes a key."""
    merged: dict[str, str | None] = {}
    for each in properties:
        merged.update(each)
    return BrokerConfig.from_properties({k: v for k, v in merged.items() if v is not None})


@pytest.mark.parametrize("roles", [CONTROLLER, BROKER, BOTH], ids=["controller", "broker", "both"])
def test_each_role_is_taken(roles: dict[str, str]) -> None:
    config = load({**roles})
    assert config.is_controller == ("controller" in roles["process.roles"])
    assert config.is_broker == ("broker" in roles["process.roles"])
    assert bool(config.listeners) == config.is_broker
    assert bool(config.controller_listeners) == config.is_controller
    assert config.controller_listener_names == ("CONTROLLER",)
    assert not config.is_single_node
    assert not config.warnings


@pytest.mark.parametrize(
    ("properties", "alone", "single"),
    [
        ({}, True, True),
        ({"controller.quorum.voters": "1@a:9093"}, True, True),
        (
            {"controller.quorum.voters": "1@a:9093", "controller.quorum.bootstrap.servers": "a:1"}
            | {"listeners": BOTH["listeners"], "controller.listener.names": "CONTROLLER"},
            False,
            False,
        ),
        ({**BOTH}, False, False),
        ({**CONTROLLER}, False, False),
        ({**CONTROLLER, "controller.quorum.voters": "1@a:9093"}, True, False),
        ({**BROKER}, False, False),
        ({**BROKER, "controller.quorum.voters": "1@a:9093"}, False, False),
    ],
)
def test_who_is_alone(properties: dict[str, str], alone: bool, single: bool) -> None:
    config = load({**properties})
    assert (config.forms_quorum_alone, config.is_single_node) == (alone, single)
    assert config.is_whole_cluster == single, "none of them binds a controller listener"


def test_other_brokers_may_join_a_single_node_that_binds_a_controller_listener() -> None:
    alone = {"controller.quorum.voters": "1@a:9093", "controller.quorum.bootstrap.servers": None}
    config = load({**BOTH}, {**alone})
    assert config.is_single_node and not config.is_whole_cluster


@pytest.mark.parametrize(
    ("properties", "changed", "key", "message"),
    [
        (BROKER, {"controller.quorum.voters": None}, "process.roles", "must name the controllers"),
        (CONTROLLER, {"controller.quorum.voters": None}, "process.roles", "must name the contr"),
        (BROKER, {"node.id": "2"}, "controller.quorum.voters", "must not be included"),
        (CONTROLLER, {"node.id": "3"}, "controller.quorum.voters", "must be included in the set"),
        (BOTH, {"controller.quorum.voters": "7@a:1"}, "controller.quorum.voters", "must be incl"),
        (BROKER, {"controller.listener.names": None}, "controller.listener.names", "at least one"),
        (
            BROKER,
            {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"},
            "listeners",
            "must not contain a listener of controller.listener.names",
        ),
        (
            BROKER,
            {MAP: "PLAINTEXT:PLAINTEXT"},
            "controller.listener.names",
            "is not in listener.se",
        ),
        (
            BROKER,
            {MAP: "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL"},
            "controller.listener.names",
            "CONTROLLER uses SSL, which this version",
        ),
        (
            BROKER,
            {"controller.quorum.auto.join.enable": "true"},
            "controller.quorum.auto.join.enable",
            "only supported when process.roles contains the 'controller' role",
        ),
        (
            CONTROLLER,
            {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"},
            "listeners",
            "PLAINTEXT://:9092 is none",
        ),
        (CONTROLLER, {"listeners": "PLAINTEXT://:9092"}, "controller.listener.names", "at least"),
        (
            CONTROLLER,
            {"controller.listener.names": "CONTROLLER,OTHER", MAP: "CONTROLLER:PLAINTEXT"},
            "controller.listener.names",
            "OTHER does not",
        ),
        (
            CONTROLLER,
            {"inter.broker.listener.name": "controller"},
            "inter.broker.listener.name",
            "must not contain it",
        ),
        (BOTH, {"controller.listener.names": None}, "listeners", "No security protocol defined"),
        (BOTH, {"listeners": "PLAINTEXT://:9092"}, "controller.listener.names", "at least one"),
        (BOTH, {"listeners": "CONTROLLER://:9093"}, "listeners", "one listener for clients"),
        (
            BROKER,
            {"listeners": "INSIDE://:9092", MAP: "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"},
            "inter.broker.listener.name",
            "must be a listener name defined in advertised.listeners",
        ),
        (BOTH, {ADVERTISED: "CONTROLLER://0.0.0.0:1"}, ADVERTISED, "0.0.0.0 is no address"),
        ({}, {"process.roles": "broker,zookeeper"}, "process.roles", "zookeeper"),
    ],
)
def test_refused_in_one_line(
    properties: dict[str, str], changed: dict[str, str | None], key: str, message: str
) -> None:
    with pytest.raises(StartupError) as caught:
        load({**properties}, changed)
    text = str(caught.value)
    assert text.startswith(f"properties: {key}=")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("listener", "changed", "told"),
    [
        ("CONTROLLER://a:9093", {}, "CONTROLLER://a:9093"),
        ("CONTROLLER://:9093", {}, "CONTROLLER://:9093"),
        ("CONTROLLER://0.0.0.0:9093", {}, "CONTROLLER://:9093"),
        ("CONTROLLER://:9093", {ADVERTISED: "CONTROLLER://c:1"}, "CONTROLLER://c:1"),
        ("CONTROLLER://a:9093", {"controller.quorum.voters": "1@b:2"}, "CONTROLLER://a:9093"),
        ("CONTROLLER://:9093", {"controller.quorum.voters": "1@b:2"}, "CONTROLLER://b:2"),
        ("CONTROLLER://0.0.0.0:9093", {"controller.quorum.voters": "1@b:2"}, "CONTROLLER://b:2"),
    ],
)
def test_what_other_nodes_are_told(
    listener: str, changed: dict[str, str | None], told: str
) -> None:
    config = load(
        {**CONTROLLER, "controller.quorum.voters": None, "listeners": listener},
        {"controller.quorum.bootstrap.servers": "a:9093"},
        changed,
    )
    assert [str(each) for each in config.advertised_controller_listeners] == [told]
    assert all(each.is_controller for each in config.advertised_controller_listeners)


def test_only_the_first_controller_listener_takes_the_voters_address() -> None:
    config = load(
        {
            **CONTROLLER,
            "listeners": "A://:1,B://:2",
            "controller.listener.names": "B,A",
        }
    )
    told = [str(each) for each in config.advertised_controller_listeners]
    assert told == ["B://a:9093", "A://:1"]


def test_a_broker_may_advertise_without_its_controllers() -> None:
    config = load({**BROKER, ADVERTISED: "PLAINTEXT://x:1,CONTROLLER://y:2"})
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://x:1"]
    assert config.advertised_controller_listeners == ()


def test_what_is_taken_with_a_warning() -> None:
    slow = load({**BROKER, "broker.heartbeat.interval.ms": "5000"})
    assert any("at most half of broker.session.timeout.ms" in line for line in slow.warnings)
    several = load({**BROKER, "controller.listener.names": "C1,C2"})
    assert any("of which a broker uses the first, C1" in line for line in several.warnings)
