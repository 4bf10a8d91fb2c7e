"""Addresses of brokers, as they are written in a property."""

from __future__ import annotations

import pytest

from kbroker.client.bootstrap_servers import parse_bootstrap
from kbroker.model import StartupError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("broker", [("broker", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize("text", ["", ",", "host:", ":9092", "host:0", "host:65536", "host:http"])
def test_bootstrap_addresses_that_are_none(text: str) -> None:
    with pytest.raises(StartupError):
        parse_bootstrap(text)
