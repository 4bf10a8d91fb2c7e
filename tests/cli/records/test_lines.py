"""Lines to records."""

from __future__ import annotations

import pytest

from kbroker.cli.records.lines import Input, Line, compile_input, parse_line
from kbroker.model import StartupError


@pytest.mark.parametrize(
    ("template", "text", "line"),
    [
        ("%k:%v", b"ada:18:15", Line(b"ada", b"18:15", (), None, None)),
        ("%v %k", b"1815 ada", Line(b"ada", b"1815", (), None, None)),
        ("%T\\t%v", b"17\tx", Line(None, b"x", (), 17, None)),
        ("%p/%v%%", b"3/x%", Line(None, b"x", (), None, 3)),
        ("[%h] %v", b"[a=1,b=] x", Line(None, b"x", ((b"a", b"1"), (b"b", b"")), None, None)),
        ("[%h] %v", b"[] x", Line(None, b"x", (), None, None)),
        ("%k", b"ada", Line(b"ada", b"", (), None, None)),
        ("(%v).", b"(a.b).", Line(None, b"a.b", (), None, None)),
    ],
)
def test_formats(template: str, text: bytes, line: Line) -> None:
    assert parse_line(text, Input(lines=compile_input(template)), 1) == line


def test_what_stands_in_a_line_wins() -> None:
    reading = Input(key=b"k", timestamp_ms=5, partition=1, headers=((b"s", b"cli"),))
    assert parse_line(b"x", reading, 1) == Line(b"k", b"x", ((b"s", b"cli"),), 5, 1)
    reading = reading._replace(lines=compile_input("%T %p %k %v"))
    assert parse_line(b"9 2 a x", reading, 1) == Line(b"a", b"x", ((b"s", b"cli"),), 9, 2)
    reading = Input(key=b"k", timestamp_ms=5, as_json=True)
    assert parse_line(b'{"value": "x"}', reading, 1) == Line(b"k", b"x", (), 5, None)
    found = parse_line(b'{"key": "a", "value": "x", "timestamp": 9}', reading, 1)
    assert found == Line(b"a", b"x", (), 9, None)


def test_null_values() -> None:
    reading = Input(lines=compile_input("%k:%v"), null_value=b"NULL")
    assert parse_line(b"a:NULL", reading, 1).value is None
    assert parse_line(b"NULL", Input(null_value=b"NULL"), 1).value is None
    assert parse_line(b"", Input(), 1).value == b""


@pytest.mark.parametrize(
    ("template", "text", "message"),
    [
        ("%k:%v", b"ada", "line 4 is not as --format says"),
        ("%T %v", b"soon x", "line 4 is not as --format says"),
        ("%T %v", b"9999999999999999999 x", "line 4: timestamp 9999999999999999999 is out of"),
        ("%p %v", b"9999999999 x", "line 4: partition 9999999999 is out of range"),
        ("%h %v", b"a x", "line 4: headers are written as name=value"),
    ],
)
def test_lines_that_cannot_be_read(template: str, text: bytes, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        parse_line(text, Input(lines=compile_input(template)), 4)


@pytest.mark.parametrize(
    ("template", "message"),
    [("%z", "%z is unknown; there are"), ("%v%", "lone %"), ("%v %v", "%v stands there twice")],
)
def test_formats_that_cannot_be_read(template: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        compile_input(template)
