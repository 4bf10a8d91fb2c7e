"""A broker that advertises an address which cannot be reached: every command names it, and soon."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from kbroker.client import advertised
from kbroker.testing import EmbeddedBroker
from tests.cli.test_app import LEAVES, TREE

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


COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "cluster api-versions": [""],
    "cluster health": [""],
    "cluster log-dirs": [""],
    "cluster quorum": [""],
    "configs set": ["topic t retention.ms=5"],
    "configs unset": ["topic t retention.ms"],
    "consume": ["t -e -x", "t --group g"],
    "groups delete": ["g"],
    "groups delete-offsets": ["g t"],
    "groups describe": ["g"],
    "groups export": ["g"],
    "groups lag": [""],
    "groups list": [""],
    "groups members": ["g"],
    "groups reset-offsets": ["g --to-earliest"],
    "perf consume": ["t -n 1"],
    "perf latency": ["t -n 1"],
    "perf produce": ["t -n 1"],
    "produce": ["t", "t --idempotent"],
    "quotas set": ["--user u producer_byte_rate=5"],
    "quotas unset": ["--user u producer_byte_rate"],
    "resend": ["t u --yes"],
    "search": ["t --value x"],
    "topics add-partitions": ["t --add 1"],
    "topics alter": ["t --set retention.ms=5"],
    "topics clone": ["t u"],
    "topics create": ["t"],
    "topics delete": ["t"],
    "topics delete-records": ["t --all --yes"],
    "topics describe": ["t"],
    "topics offsets": ["t"],
    "topics snapshot": ["t --output $FOLDER/snapshot"],
    "transactions abort": ["t 0 --start-offset 0"],
    "transactions describe": ["x"],
    "transactions find-hanging": [""],
    "transactions list": [""],
}
"""Arguments of each command that needs a broker by the address that it advertises."""

WITH_THE_FIRST_ADDRESS: Final = {
    *("cluster brokers", "cluster features", "cluster info", "configs describe"),
    *("quotas describe", "topics list"),
}
"""The broker that is asked first can answer these."""
ELSEWHERE: Final = {"groups translate", "profile create", "profile set", "topics restore"}
"""One of the Spark pack, which looks for 6 s; two that ask no broker; one that needs a snapshot."""


def test_every_client_is_here() -> None:
    clients = {
        " ".join(path)
        for path in LEAVES
        if any("--bootstrap-server" in parameter.opts for parameter in TREE[path].params)
    }
    assert clients == COMMANDS.keys() | WITH_THE_FIRST_ADDRESS | ELSEWHERE


@pytest.mark.parametrize(
    "command",
    [f"{name} {arguments}".strip() for name, every in COMMANDS.items() for arguments in every],
)
def test_the_address_and_the_setting_are_named(
    cli: Cli,
    broker: EmbeddedBroker,
    closed_port: int,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(advertised, "ADVERTISED_GRACE_S", 0.0)
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    (tmp_path / "stdin").write_text("line\n")
    with (tmp_path / "stdin").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        result = cli(*command.replace("$FOLDER", str(tmp_path)).split())
    assert result.code == 1
    assert result.err.count("\n") == 1
    said = result.out if command == "cluster health" else result.err
    assert f"broker 1 advertises 127.0.0.1:{closed_port}, " in said
    assert "check advertised.listeners of the broker" in said


def test_it_is_said_within_seconds(broker: EmbeddedBroker, closed_port: int) -> None:
    """By the real command, with the time that a broker may take to open its port."""
    command = [sys.executable, "-m", "kbroker", "topics", "describe", "t"]
    done = subprocess.run(
        [*command, "-b", broker.bootstrap_servers],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert f"broker 1 advertises 127.0.0.1:{closed_port}, " in done.stderr
