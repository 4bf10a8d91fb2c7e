"""`kbroker search` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Kbroker = Callable[..., Any]

RECORDS = [
    {"key": "ada", "value": "born 1815", "timestamp": 1000},
    {"key": "grace", "value": "born 1906", "timestamp": 2000, "headers": {"source": "import"}},
    {"key": "Ada", "value": None, "timestamp": 3000, "headers": {"source": "typed", "x": None}},
    {"key": None, "value": "total: 1815", "timestamp": 4000},
]


@pytest.fixture
def topic(kbroker: Kbroker, kafka_topic: str) -> str:
    text = "\n".join(map(json.dumps, RECORDS))
    assert kbroker("produce", kafka_topic, "--json", text=text).code == 0
    return kafka_topic


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        ((), [0, 1, 2, 3]),
        (("--key", "ada"), [0]),
        (("--key", "^ada$", "--ignore-case"), [0, 2]),
        (("--value", "1815"), [0, 3]),
        (("--value", "1815", "--key", "."), [0]),
        (("--header", "source"), [1, 2]),
        (("--header", "source=^imp"), [1]),
        (("--header", "source", "--header", "x"), [2]),
        (("--header", "x=."), []),
        (("--since", "2000"), [1, 2, 3]),
        (("--since", "1001", "--until", "3000"), [1]),
        (("--until", "1970-01-01T00:00:02"), [0]),
        (("--max-messages", "2"), [0, 1]),
        (("--partition", "0", "--value", "^born"), [0, 1]),
    ],
)
def test_what_is_found(
    kbroker: Kbroker, topic: str, arguments: tuple[str, ...], offsets: list[int]
) -> None:
    result = kbroker("search", topic, *arguments, "--json")
    assert result.code == 0, result.err
    assert [json.loads(line)["offset"] for line in result.lines] == offsets


def test_how_many_were_read_is_said(kbroker: Kbroker, topic: str) -> None:
    result = kbroker("search", topic, "--key", "ada", "--format", "%o %k")
    assert (result.lines, result.err) == (["0 ada"], "found 1 of 4 records\n")


def test_the_bound_is_said_with_exit_code_1(kbroker: Kbroker, topic: str) -> None:
    result = kbroker("search", topic, "--max-scan", "3", "--format", "%o")
    assert (result.code, result.lines) == (1, ["0", "1", "2"])
    assert result.err == "kbroker: stopped at --max-scan, not at the end: found 3 of 3 records\n"
    assert kbroker("search", topic, "--max-scan", "4").code == 0
    assert kbroker("search", topic, "--max-scan", "0").code == 0


def test_a_pattern_of_topics(kbroker: Kbroker, topic: str) -> None:
    kbroker("topics", "create", f"{topic}-b")
    kbroker("produce", f"{topic}-b", text="born 1912")
    result = kbroker("search", f"{topic}(-b)?", "--regex", "--value", "born", "--format", "%t %v")
    assert sorted(result.lines) == [
        f"{topic} born 1815",
        f"{topic} born 1906",
        f"{topic}-b born 1912",
    ]
    assert kbroker("search", "no-such-.*", "--regex").err == "kbroker: no topic matches\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--key", "("), "Invalid value for --key: (: "),
        (("--header", "=x"), "=x: write it as name=regex"),
        (("--since", "soon"), "'soon' is no time"),
        (("--since", "-1h", "--until", "-2h"), "--until is before --since"),
        (("--format", "%z"), "%z is unknown"),
        (("--regex", "--max-scan", "-1"), "'--max-scan'"),
    ],
)
def test_mistakes(kbroker: Kbroker, arguments: tuple[str, ...], message: str) -> None:
    result = kbroker("search", "t", *arguments)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err
