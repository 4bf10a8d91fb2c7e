"""Text of clients in log lines: escaped, cut, and not repeated without end."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest

import kbroker
from kbroker.log_lines import (
    LINE_CHARS,
    SHOWN_CHARS,
    JsonFormatter,
    LineFormatter,
    LogThrottle,
    shown,
)
from kbroker.node.run import configure_logging


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("orders-1", "orders-1", id="plain"),
        pytest.param("Bestätigung 😀", "Bestätigung 😀", id="printable beyond ASCII"),
        pytest.param(None, "None", id="none"),
        pytest.param("a\nERROR b", "a\\nERROR b", id="line feed"),
        pytest.param("a\r\x0b\x0c\x1c\x85\u2028b", "a\\r\\x0b\\x0c\\x1c\\x85\\u2028b", id="breaks"),
        pytest.param("\x1b[2J", "\\x1b[2J", id="terminal escape"),
        pytest.param("a\u202eb", "a\\u202eb", id="right-to-left override"),
        pytest.param("\ud800", "\\ud800", id="lone surrogate"),
        pytest.param(ValueError("x\ny"), "x\\ny", id="an error's text"),
        pytest.param("x" * SHOWN_CHARS, "x" * SHOWN_CHARS, id="just fits"),
    ],
)
def test_shown(value: object, expected: str) -> None:
    assert shown(value) == expected


def test_what_is_cut_is_counted() -> None:
    assert shown("x" * 1_000_000) == "x" * SHOWN_CHARS + "... (999744 more characters)"
    assert shown("\n" * 10, 3) == "\\n\\n\\n... (7 more characters)"


def formatted(
    message: str,
    *arguments: object,
    error: Exception | None = None,
    formatter: logging.Formatter | None = None,
) -> str:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter or LineFormatter("%(levelname)s %(message)s"))
    made = logging.Logger("test")
    made.addHandler(handler)
    made.warning(message, *arguments, exc_info=error)
    return stream.getvalue()


def test_a_record_is_one_line() -> None:
    assert formatted("group %s", "a\nCRITICAL b") == "WARNING group a\\nCRITICAL b\n"
    assert len(formatted("%s", "x" * 1_000_000)) < LINE_CHARS + 100


def test_a_traceback_begins_no_line_of_its_own() -> None:
    try:
        raise ValueError("a\nCRITICAL b\u2028CRITICAL c" + "\nd" * 100_000)
    except ValueError as error:
        lines = formatted("failed", error=error).splitlines()
    assert lines[0] == "WARNING failed"
    assert all(line.startswith("    ") for line in lines[1:])
    assert any("more lines)" in line for line in lines)
    assert len(lines) < 250


def test_a_record_as_json() -> None:
    text = formatted("group %s", 'a\n"b" \u2028', formatter=JsonFormatter(7))
    assert text.count("\n") == 1 and text.isascii()
    fields = json.loads(text)
    assert datetime.fromisoformat(fields.pop("time")).tzinfo is not None
    assert fields == {
        "level": "WARNING",
        "node": 7,
        "logger": "test",
        "message": 'group a\\n"b" \\u2028',
    }
    assert len(formatted("%s", "x" * 1_000_000, formatter=JsonFormatter(7))) < LINE_CHARS + 300


def test_a_traceback_as_json() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        text = formatted("failed", error=error, formatter=JsonFormatter(7))
    assert text.count("\n") == 1
    fields = json.loads(text)
    assert fields["message"] == "failed"
    assert "ValueError: a" in fields["exception"] and "test_log_lines.py" in fields["exception"]


@pytest.mark.parametrize(("is_json", "kind"), [(False, LineFormatter), (True, JsonFormatter)])
def test_the_broker_logs_in_this_way(
    is_json: bool, kind: type[LineFormatter], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "root", root)
    configure_logging(7, logging.INFO, is_json=is_json)
    (handler,) = root.handlers
    assert type(handler.formatter) is kind


def test_a_throttle_counts_what_it_holds_back(caplog: pytest.LogCaptureFixture) -> None:
    throttle = LogThrottle(logging.getLogger("test"))
    for now_ms in (0, 1, 999, 1000):
        throttle.log(now_ms, "closed %s", now_ms)
    assert [record.getMessage() for record in caplog.records] == [
        "closed 0",
        "closed 1000 (and 2 more like this)",
    ]


def test_a_throttle_may_let_several_lines_pass(caplog: pytest.LogCaptureFixture) -> None:
    throttle = LogThrottle(logging.getLogger("test"), lines=2)
    for now_ms in (0, 1, 2, 3, 1000, 1001, 1002):
        throttle.log(now_ms, "closed %s", now_ms)
    assert [record.getMessage() for record in caplog.records] == [
        "closed 0",
        "closed 1",
        "closed 1000 (and 2 more like this)",
        "closed 1001",
    ]


CHOSEN_BY_CLIENTS = {
    "client_id", "client_software_name", "group_id", "instance_id", "member_id",
    "news", "pattern", "reason", "regex", "resource_name", "topic_name", "transactional_id", "who",
}  # fmt: skip
PACKAGE = Path(kbroker.__file__).parent


def logger_calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of = node.func.value
        name = of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")
        if name == "logger" or (node.func.attr == "log" and len(node.args) > 2):
            yield node


def test_no_logger_call_has_text_of_a_client_as_it_came() -> None:
    """By the names that such text has here. A slice with %r, as of reasons, is escaped and cut."""
    bare = []
    seen = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "cli" or path.name == "log_lines.py":
            continue
        for call in logger_calls(path):
            seen += 1
            for argument in call.args[1:]:
                name = getattr(argument, "id", None) or getattr(argument, "attr", None)
                if name in CHOSEN_BY_CLIENTS:
                    bare.append(f"{path.relative_to(PACKAGE)}:{call.lineno}: {name}")
    assert seen > 50
    assert bare == []
