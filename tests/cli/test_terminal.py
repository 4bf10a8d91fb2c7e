"""Every command that prints rows, as a process: at 80 columns, in a pipe and as JSON."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from kbroker.testing import EmbeddedBroker
from tests.cli.console.test_output import on_a_terminal
from tests.cli.test_app import LEAVES

Cli = Callable[..., Any]

TOPIC: Final = "orders-of-the-european-shops"
GROUP: Final = "billing-service"
ROWS: Final[Mapping[str, str]] = {
    "topics list": "",
    "topics describe": "",
    "topics offsets": TOPIC,
    "topics restore": "$KBROKER_TEST_SNAPSHOT --dry-run",
    "topics delete-records": f"{TOPIC} --before-offset 1 --dry-run",
    "configs describe": f"topic {TOPIC}",
    "quotas describe": "--user terminal",
    "profile list": "",
    "profile show": "terminal",
    "groups list": "",
    "groups describe": GROUP,
    "groups members": GROUP,
    "groups lag": "",
    "groups reset-offsets": f"{GROUP} --to-earliest",
    "groups export": GROUP,
    "transactions list": "",
    "transactions find-hanging": "",
    "cluster info": "",
    "cluster brokers": "",
    "cluster health": "",
    "cluster api-versions": "",
    "cluster features": "",
    "cluster quorum": "",
    "cluster log-dirs": f"--topic {TOPIC}",
    "search": f"{TOPIC} --value .",
    "consume": f"{TOPIC} -e -x",
    "resend": f"{TOPIC} {TOPIC} --dry-run",
    "perf consume": f"{TOPIC} -n 3 --hide-header",
}
"""Commands that show what is there, and the arguments they are given."""

CHANGES: Final = {
    *("topics create", "topics alter", "topics add-partitions", "topics delete"),
    *("topics snapshot", "topics clone"),
    *("configs set", "configs unset", "quotas set", "quotas unset"),
    *("profile create", "profile set", "profile use", "profile delete"),
    *("groups delete", "groups delete-offsets", "groups translate", "transactions abort"),
    *("perf produce", "perf latency", "transactions describe"),
}
"""Commands with --json that change something, or need a transaction: tests of their own show it."""

NAMED: Final = {
    *("topics list", "topics describe", "topics offsets", "topics restore", "configs describe")
}
"""Commands whose rows have the topic's name, which is not cut."""
LINES: Final = {"groups export", "search", "consume", "perf consume"}
"""Commands that print the same lines on a terminal as in a pipe."""
EMPTY: Final = {"groups members", "transactions list", "transactions find-hanging"}
"""Commands that have nothing to show here."""
COLUMNS: Final = 80


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with a topic of three records and a snapshot of it, a group that has read one of
    them, and a profile.
    """
    from kbroker.cli.app import run

    with EmbeddedBroker() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBROKER_BOOTSTRAP", made.bootstrap_servers)
        profiles = tmp_path_factory.mktemp("profiles") / "profiles.json"
        patch.setenv("KBROKER_PROFILES_FILE", str(profiles))
        snapshot = str(tmp_path_factory.mktemp("snapshots") / "snapshot")
        patch.setenv("KBROKER_TEST_SNAPSHOT", snapshot)
        assert run(["profile", "create", "terminal", "-b", made.bootstrap_servers]) == 0
        made.create_topic(TOPIC)
        assert run(["perf", "produce", TOPIC, "-n", "3", "--json"]) == 0
        assert run(["topics", "snapshot", TOPIC, "--output", snapshot]) == 0
        assert run(["consume", TOPIC, "-g", GROUP, "-e", "-n", "1"]) == 0
        assert run(["configs", "set", "topic", TOPIC, "retention.ms=1000000"]) == 0
        assert run(["quotas", "set", "--user", "terminal", "producer_byte_rate=1048576"]) == 0
        yield made


def test_every_command_with_json_is_here() -> None:
    from tests.cli.test_app import TREE

    with_json = {
        " ".join(path)
        for path in LEAVES
        if any("--json" in parameter.opts for parameter in TREE[path].params)
    }
    assert with_json - {"produce", "config check"} == ROWS.keys() | CHANGES


def command_of(name: str) -> list[str]:
    arguments = shlex.split(os.path.expandvars(ROWS[name]))
    return [sys.executable, "-m", "kbroker", *name.split(), *arguments]


@pytest.mark.parametrize("name", ROWS)
def test_at_80_columns(broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    shown = on_a_terminal(command_of(name), COLUMNS).splitlines()
    assert [line for line in shown if len(line) > COLUMNS and name not in LINES] == []
    if name in NAMED:
        assert any(TOPIC in line.split() for line in shown)
    if name not in LINES:
        assert any("\u2500" in line for line in shown)  # below the headings


@pytest.mark.parametrize("name", ROWS)
def test_in_a_pipe(
    cli: Cli, broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    plain = subprocess.run(
        command_of(name), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert bool(plain) == (name not in EMPTY)
    if name not in LINES:
        assert len({line.count("\t") for line in plain}) <= 1
        assert "\u2500" not in "".join(plain)
    rows = list(map(json.loads, cli(*command_of(name)[3:], "--json").lines))
    assert all(isinstance(row, dict) for row in rows)
    assert len(rows) == len(plain)
