"""What a terminal and a pipe see of the same rows."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cli.console.output import counted, report, show
from kbroker.testing import EmbeddedBroker

LONG = "orders-" + "x" * 200


def without_style(text: str) -> str:
    """What is seen of it: no escape sequences for bold letters."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def on_a_terminal(command: list[str], columns: int) -> str:
    """What a command prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # Linux ends a terminal that nothing has open any more with EIO
        pass
    finally:
        os.close(ours)
        assert process.wait(60) == 0
    return without_style(seen.decode())


@pytest.mark.parametrize("columns", [80, 20])
def test_a_table_cuts_no_name(
    kbroker: Callable[..., Any], kafka_broker: EmbeddedBroker, columns: int
) -> None:
    kafka_broker.create_topic(f"{LONG}-{columns}")
    kbroker("produce", f"{LONG}-{columns}", text="x")
    command = [sys.executable, "-m", "kbroker", "topics", "describe", f"{LONG}-{columns}"]
    (row,) = [line for line in on_a_terminal(command, columns).splitlines() if LONG in line]
    assert row.split() == [f"{LONG}-{columns}", "0", "1", "1", "1", "0", "1"]


def test_a_group_with_a_long_name_on_a_terminal(
    kbroker: Callable[..., Any], kafka_topic: str
) -> None:
    group = f"{LONG}-group"
    kbroker("produce", kafka_topic, text="x")
    kbroker("consume", kafka_topic, "--group", group, "-e", "-n", "1")
    for command in (["list"], ["describe", group]):
        shown = on_a_terminal([sys.executable, "-m", "kbroker", "groups", *command], 80)
        assert group in shown


NAMES = ["[red]", ":smile:", "a\tb\nc", "caf\u00e9", "esc\x1b[1m"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """No markup, and nothing in it moves the cursor or begins a line."""
    plain = name.replace("\t", r"\t").replace("\n", r"\n").replace("\x1b", r"\x1b")
    rows = [{"group": name, "state": None}]
    show(rows, ("group", "state"), as_json=False)
    assert capsys.readouterr().out == f"{plain}\t-\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show(rows, ("group", "state"), as_json=False)
    assert plain in capsys.readouterr().out
    show(rows, ("group", "state"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"group": name, "state": None}


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"replicas": [1, 2], "members": []}]
    show(rows, ("replicas", "members"), as_json=False)
    show(rows, ("replicas", "members"), as_json=True)
    assert capsys.readouterr().out == '1,2\t-\n{"replicas": [1, 2], "members": []}\n'


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 records"), (1, "1 record"), (2, "2 records"), (2000, "2,000 records")],
)
def test_counted(count: int, text: str) -> None:
    assert counted(count, "record") == text


def test_wide_cells_get_more_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And headings of several words, before a name would have to go beyond the terminal."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    row = {"topic": "orders-2026", "start_offset": 5, "in_sync_replicas": [1], "value": "x" * 60}
    show([row], list(row), as_json=False, wide=("value",))
    lines = without_style(capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 50
    assert "orders-2026" in "".join(lines)
    assert "".join(lines).count("x") == 60
    assert not any("start offset" in line for line in lines)
    short = {"topic": "a", "start_offset": 5, "value": "y"}
    show([short], list(short), as_json=False, wide=("value",))
    assert "start offset" in capsys.readouterr().out


def test_a_list_is_broken_between_its_items(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    row = {"group": "billing", "topics": ["orders-of-shops", "prices-of-shops", "a"], "lag": 5}
    show([row], list(row), as_json=False)
    lines = [line.split() for line in without_style(capsys.readouterr().out).splitlines()]
    assert lines[2:] == [["billing", "orders-of-shops,", "5"], ["prices-of-shops,"], ["a"]]


def test_sections(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal; a pipe gets whole rows."""
    rows = [{"group": group, "state": "Empty", "lag": lag} for group, lag in ("a1", "a2", "b3")]
    columns, sections = ("group", "state", "lag"), ("group", "state")
    show(rows, columns, as_json=False, sections=sections)
    assert capsys.readouterr().out.splitlines()[0] == "a\tEmpty\t1"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show(rows, columns, as_json=False, sections=sections)
    lines = without_style(capsys.readouterr().out).splitlines()
    assert [line.strip() for line in lines] == [
        *("a  Empty", "lag", "\u2500\u2500\u2500", "1", "2"),
        *("", "b  Empty", "lag", "\u2500\u2500\u2500", "3"),
    ]
    show([], columns, as_json=False, sections=sections)
    assert "lag" in capsys.readouterr().out


def test_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic": "a", "partitions": 2}]
    report(rows, lambda row: f"created {row['topic']}", as_json=False)
    assert capsys.readouterr() == ("", "created a\n")
    report(rows, lambda row: "", as_json=True)
    assert capsys.readouterr() == ('{"topic": "a", "partitions": 2}\n', "")
