"""Limits shared by connections."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from kbroker.model import StartupError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.server.network.limits import ConnectionLimits, PipelineBudget, resolve_overrides
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import frame_of


def test_connections_in_all() -> None:
    limits = ConnectionLimits(2, 100)
    assert limits.admit("a") is None
    assert limits.admit("b") is None
    assert limits.admit("c") == "max.connections=2 reached"
    limits.release("a")
    assert limits.admit("c") is None
    assert limits.count == 2


def test_connections_of_one_host_with_override() -> None:
    limits = ConnectionLimits(100, 1, {"10.0.0.1": 2, "10.0.0.2": 0})
    assert limits.admit("a") is None
    assert limits.admit("a") == "max.connections.per.ip=1 reached"
    assert limits.admit("10.0.0.1") is None
    assert limits.admit("10.0.0.1") is None
    assert limits.admit("10.0.0.1") is not None
    assert limits.admit("10.0.0.2") is not None
    limits.release("a")
    assert limits.admit("a") is None


def test_budget() -> None:
    budget = PipelineBudget(2)
    budget.used += 1
    assert not budget.exhausted
    budget.used += 1
    assert budget.exhausted


def resolve(host: str) -> list[str]:
    if host == "nowhere":
        raise OSError("Name or service not known")
    return {"many": ["10.0.0.1", "::1"], "fe80::0:1": ["fe80::1"]}.get(host, [host])


def test_overrides_by_host_name_are_resolved() -> None:
    given = {"many": 3, "10.0.0.2": 4, "fe80::0:1": 5}
    resolved = resolve_overrides(given, resolve)
    assert resolved == {"10.0.0.1": 3, "::1": 3, "10.0.0.2": 4, "fe80::1": 5}
    limits = ConnectionLimits(100, 1, resolved)
    assert [limits.admit("10.0.0.1") for _ in range(4)] == [
        None,
        None,
        None,
        "max.connections.per.ip=3 reached",
    ]


def test_the_system_resolves_names_and_writes_addresses_as_sockets_do() -> None:
    assert "127.0.0.1" in resolve_overrides({"localhost": 1})
    assert resolve_overrides({"0:0:0:0:0:0:0:1": 1}) == {"::1": 1}


def test_an_override_that_does_not_resolve_stops_the_start() -> None:
    with pytest.raises(StartupError) as caught:
        resolve_overrides({"nowhere": 3}, resolve)
    assert str(caught.value) == (
        "max.connections.per.ip.overrides=nowhere:3: Name or service not known; "
        "write an address, or a host name that this machine can resolve"
    )


def test_an_override_by_host_name_holds_in_a_running_broker() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "max.connections.per.ip": "100",
        "max.connections.per.ip.overrides": "localhost:2",
    }
    with EmbeddedBroker(settings) as broker, ExitStack() as stack:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        address = (host, int(port))
        two = [stack.enter_context(socket.create_connection(address, 5)) for _ in range(2)]
        for connection in two:
            connection.sendall(frame_of(ApiVersionsRequest(), 0))
            assert connection.recv(1)
        third = stack.enter_context(socket.create_connection(address, 5))
        assert third.recv(1) == b""


def test_a_listener_has_a_limit_of_its_own() -> None:
    limits = ConnectionLimits(100, 100, by_listener={"INTERNAL": 1})
    assert limits.admit("a", "INTERNAL") is None
    refused = "listener.name.internal.max.connections=1 reached"
    assert limits.admit("b", "INTERNAL") == refused
    assert limits.admit("b", "PLAINTEXT") is None
    limits.release("a", "INTERNAL")
    assert limits.admit("b", "INTERNAL") is None


def test_limits_change_for_new_connections() -> None:
    limits = ConnectionLimits(100, 100)
    for _ in range(3):
        assert limits.admit("a") is None
    limits.change(3, 100, {})
    assert limits.admit("b") == "max.connections=3 reached"
    limits.change(100, 2, {})
    assert limits.admit("a") == "max.connections.per.ip=2 reached"
    limits.change_overrides({"a": 5})
    assert limits.admit("a") is None


def test_the_listener_of_brokers_accepts_beyond_max_connections() -> None:
    limits = ConnectionLimits(1, 2, by_listener={"INTERNAL": 2}, protected_listener="INTERNAL")
    assert limits.admit("a", "EXTERNAL") is None
    assert not limits.is_exceeded
    assert limits.admit("b", "INTERNAL") is None
    assert limits.is_exceeded
    assert limits.admit("c", "EXTERNAL") == "max.connections=1 reached"
    assert limits.admit("b", "INTERNAL") is None
    assert limits.admit("c", "INTERNAL") == "listener.name.internal.max.connections=2 reached"
    limits.change(1, 2, {}, protected_listener="INTERNAL")
    assert limits.admit("b", "INTERNAL") == "max.connections.per.ip=2 reached"
    limits.change(1, 5, {})
    assert limits.admit("c", "INTERNAL") == "max.connections=1 reached"
