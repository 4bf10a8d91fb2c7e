"""--format of records."""

from __future__ import annotations

import json

import pytest

from kbroker.cli.records.formats import compile_format, json_line, unescape
from kbroker.client.consumer import ConsumedRecord
from kbroker.model import StartupError

RECORD = ConsumedRecord(
    "orders", 2, 7, 1_769_860_800_500, b"k\xff", b"value", ((b"a", b"1"), (b"b", None))
)
NULLS = ConsumedRecord("orders", 0, 0, -1, None, None, ())


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%t %p %o %T %k=%v [%h]", b"orders 2 7 1769860800500 k\xff=value [a=1,b=null]\n"),
        ("%d", b"2026-01-31T12:00:00.500Z\n"),
        ("%K %S %s", b"2 5 value\n"),
        ("%k{hex} %v{base64}", b"6bff dmFsdWU=\n"),
        ("%t{hex}", b"orders{hex}\n"),
        ("100%%", b"100%\n"),
        (r"a\tb\\n\x41", b"a\tb\\nA\n"),
        ("", b"\n"),
    ],
)
def test_formats(template: str, line: bytes) -> None:
    assert compile_format(template)(RECORD) == line


def test_nulls() -> None:
    assert compile_format("%k %v %K %S %v{hex} %h")(NULLS) == b"null null -1 -1 null \n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("%z", "%z is unknown; there are %t %p"),
        ("%", "lone %"),
        ("%v{rot13}", r"%v\{rot13\} is unknown; there are hex, base64"),
    ],
)
def test_formats_that_cannot_be_read(template: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        compile_format(template)


def test_json() -> None:
    assert json.loads(json_line(RECORD)) == {
        "topic": "orders",
        "partition": 2,
        "offset": 7,
        "timestamp": 1_769_860_800_500,
        "key_base64": "a/8=",
        "value": "value",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
    }


def test_unescape() -> None:
    assert unescape(r"\n\r\t\0\\\x7c\q") == "\n\r\t\0\\|\\q"
