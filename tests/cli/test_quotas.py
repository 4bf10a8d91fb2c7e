"""`kbroker quotas` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Kbroker = Callable[..., Any]


def quotas(kbroker: Kbroker, *arguments: str) -> list[dict[str, Any]]:
    result = kbroker("quotas", "describe", *arguments, "--json")
    assert result.code == 0, result.err
    return list(map(json.loads, result.lines))


def row(**fields: Any) -> dict[str, Any]:
    return {"user": None, "client_id": None, "ip": None, **fields}


def test_quotas_are_set_and_removed(kbroker: Kbroker) -> None:
    user = ("--user", "cli-ada")
    pairs = ("producer_byte_rate=1048576", "request_percentage=12.5")
    changed = kbroker("quotas", "set", *user, *pairs)
    assert (changed.code, changed.lines) == (0, [])
    assert changed.err.splitlines() == [
        "set producer_byte_rate=1048576 of user cli-ada",
        "set request_percentage=12.5 of user cli-ada",
    ]
    assert quotas(kbroker, *user) == [
        row(user="cli-ada", key="producer_byte_rate", value=1_048_576),
        row(user="cli-ada", key="request_percentage", value=12.5),
    ]
    lines = kbroker("quotas", "describe", *user).lines
    assert lines[0] == "cli-ada\t-\t-\tproducer_byte_rate\t1048576"
    pair = (*user, "--client-id", "reports")
    done = kbroker("quotas", "set", *pair, "consumer_byte_rate=10", "--json")
    assert list(map(json.loads, done.lines)) == [
        row(user="cli-ada", client_id="reports", key="consumer_byte_rate", value=10)
    ]
    assert len(quotas(kbroker, *user)) == 3
    assert len(quotas(kbroker, *user, "--strict")) == 2
    assert quotas(kbroker, "--user", "any", "--client-id", "reports") == [
        row(user="cli-ada", client_id="reports", key="consumer_byte_rate", value=10)
    ]
    removed = kbroker("quotas", "unset", *user, "producer_byte_rate", "request_percentage")
    assert removed.err.splitlines()[0] == "removed producer_byte_rate of user cli-ada"
    assert kbroker("quotas", "unset", *pair, "consumer_byte_rate").code == 0
    assert quotas(kbroker, *user) == []
    assert kbroker("quotas", "describe", *user).err == "no quota is set\n"


def test_defaults_and_addresses(kbroker: Kbroker) -> None:
    default = ("--user", "<default>")
    assert kbroker("quotas", "set", *default, "controller_mutation_rate=5000").code == 0
    assert quotas(kbroker, *default) == [
        row(user="<default>", key="controller_mutation_rate", value=5000)
    ]
    assert kbroker("quotas", "unset", *default, "controller_mutation_rate").code == 0
    address = ("--ip", "192.0.2.1")
    assert kbroker("quotas", "set", *address, "connection_creation_rate=100").code == 0
    assert quotas(kbroker, "--ip", "any") == [
        row(ip="192.0.2.1", key="connection_creation_rate", value=100)
    ]
    assert kbroker("quotas", "unset", *address, "connection_creation_rate").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("set", "producer_byte_rate=1"), 2, "give --user, --client-id or --ip"),
        (("set", "--user", "a", "producer_byte_rate=fast"), 2, "=fast: give a number"),
        (("set", "--user", "a", "producer_byte_rate"), 2, "write it as name=value"),
        (("set", "--user", "", "producer_byte_rate=1"), 2, "a name is empty"),
        (("set", "--user", "a", "speed=1"), 1, "user a: Invalid configuration key speed"),
        (("set", "--user", "a", "producer_byte_rate=-1"), 1, "must be greater than 0"),
        (("set", "--user", "a", "--ip", "192.0.2.1", "producer_byte_rate=1"), 1, "IP entity"),
    ],
)
def test_mistakes_are_one_line(
    kbroker: Kbroker, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = kbroker("quotas", *arguments)
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert message in result.err
