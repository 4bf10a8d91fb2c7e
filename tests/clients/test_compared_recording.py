"""How outputs of Kafka's tools are compared: what is left out, and what a difference means."""

from __future__ import annotations

import pytest

from tests.clients.compared.normal import normalised
from tests.clients.compared.recording import expected, read, without_own
from tests.clients.compared.row import SCRIPTS, Difference, Row
from tests.clients.compared.run import command_of
from tests.clients.compared.sessions import SESSIONS


@pytest.mark.parametrize("name", SESSIONS)
def test_every_command_is_recorded_as_it_is_run(name: str) -> None:
    recorded = read(name)
    rows = SESSIONS[name].rows
    assert len({row.name for row in rows}) == len(rows)
    assert {row.name: command_of(row) for row in rows} == {
        row: output["command"] for row, output in recorded.items()
    }
    for row in rows:
        assert expected(recorded[row.name], row.differs)["out"] is not None


def test_every_tool_is_run() -> None:
    rows = [row for session in SESSIONS.values() for row in session.rows]
    assert {row.tool for row in rows} == set(SCRIPTS)


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        ("at 127.0.0.1:4711 (1)\n", ["at <bootstrap> (1)"]),
        ("uPy0nV1eTGyJcfrlqQzKYA x uPy0nV1eTGyJcfrlqQzKYA", ["<id 1> x <id 1>"]),
        ("uPy0nV1eTGyJcfrlqQzKYA MkU3OEVBNTcwNTJENDM2Qg", ["<id 1> <id 2>"]),
        ("fH/3n9btScOyOyiYjhhePw -", ["<id 1> -"]),
        ("min.cleanable.dirty.ratio=0.5", ["min.cleanable.dirty.ratio=0.5"]),
        ("a.DateTimeParseException: b", ["a.DateTimeParseException: b"]),
        ("m-550e8400-e29b-41d4-a716-446655440000", ["m-<uuid 1>"]),
        ("12:00:01.234 [main] ERROR", ["<clock> [<thread>] ERROR"]),
        ("2026-11-23 18:00:00:123, 1795456999971", ["<date>, <ms>"]),
        ("port 44561 at 1795445616999, 1795600044561", ["port <port> at <ms>, <ms>"]),
        ("clientId=adminclient-12, producer-3", ["clientId=adminclient-<n>, producer-<n>"]),
        ("X: y\n\tat a.B.c(B.java:1)\n\t... 3 more\nZ", ["X: y", "Z"]),
        ("took 17 ms", ["took <n> ms"]),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(printed: str, lines: list[str]) -> None:
    known = {"bootstrap": "127.0.0.1:4711", "port": "44561"}
    assert normalised(printed, known, ((r"took \d+ ms", "took <n> ms"),)) == lines


def test_lines_of_a_hash_map_are_compared_in_any_order() -> None:
    one, other = "uPy0nV1eTGyJcfrlqQzKYA", "MkU3OEVBNTcwNTJENDM2Qg"
    assert normalised(f"b {one}\na {other}", {}, sort=True) == ["a <id>", "b <id>"]


RECORDED = {"command": "c", "code": 0, "out": ["kept", "ours differs", "gone"], "err": []}


def test_a_stated_difference_changes_lines() -> None:
    lines = {"ours differs": "one\ntwo", "gone": None}
    assert expected(RECORDED, Difference("why", lines))["out"] == ["kept", "one", "two"]
    refused = expected(RECORDED, Difference("why", errors=("no",)))
    assert (refused["code"], refused["err"]) == (1, ["no"])
    assert expected(RECORDED, None) is RECORDED


def test_a_difference_that_is_none_is_found() -> None:
    with pytest.raises(AssertionError, match="does not print"):
        expected(RECORDED, Difference("why", {"never": "printed"}))
    with pytest.raises(AssertionError, match="no line ours"):
        without_own(RECORDED, Difference("why", own="ours that"))


def test_own_lines_are_left_out() -> None:
    assert without_own(RECORDED, Difference("why", own="gone"))["out"] == RECORDED["out"][:2]


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ("--create --topic t", True),
        ("--describe --topic t", False),
        ("--reset-offsets --execute", True),
        ("upgrade --feature f=1", True),
        ("--delete-offsets --group g", True),
        ("forceTerminateTransaction --transactionalId t", True),
        ("describe --status", False),
    ],
)
def test_commands_that_change_something(arguments: str, changes: bool) -> None:
    assert Row("r", "TopicCommand", arguments).changes is changes
