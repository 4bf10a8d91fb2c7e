"""A broker that advertises an address which cannot be reached: every command names it, and soon."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import cluster
from kbroker.testing import EmbeddedBroker

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A port on which every connection is refused."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.fixture(scope="module")
def broker(closed_port: int) -> Iterator[EmbeddedBroker]:
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{closed_port}"}
    with EmbeddedBroker(settings) as running:
        running.create_topic("t")
        yield running


@pytest.mark.parametrize(
    "command",
    [
        "topics create t",
        "topics delete t",
        "topics describe t",
        "produce t",
        "produce t --idempotent",
        "consume t -e -x",
        "consume t --group g",
        "groups list",
        "groups describe g",
        "groups delete g",
        "groups delete-offsets g t",
        "groups export g",
        "groups reset-offsets g --to-earliest",
        "transactions list",
        "transactions describe x",
        "transactions find-hanging",
    ],
)
def test_the_address_and_the_setting_are_named(
    cli: Cli,
    broker: EmbeddedBroker,
    closed_port: int,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(cluster, "ADVERTISED_GRACE_S", 0.0)
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    (tmp_path / "stdin").write_text("line\n")
    with (tmp_path / "stdin").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        result = cli(*command.split())
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert f"broker 1 advertises 127.0.0.1:{closed_port}, " in result.err
    assert "check advertised.listeners of the broker" in result.err
