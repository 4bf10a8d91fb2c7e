"""`kbroker produce` of files, formats, keys and times; more of it is in `cli/test_commands`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Kbroker = Callable[..., Any]


def records(kbroker: Kbroker, topic: str) -> list[dict[str, Any]]:
    result = kbroker("consume", topic, "-e", "-x", "--json")
    assert result.code == 0, result.err
    return list(map(json.loads, result.lines))


def test_a_format(kbroker: Kbroker, kafka_topic: str) -> None:
    kbroker("topics", "add-partitions", kafka_topic, "--partitions", "2")
    template = r"%p %T [%h] %k\t%v"
    sent = kbroker(
        "produce", kafka_topic, "--format", template, text="1 17 [a=b] ada\t18 15\n0 18 [] x\t"
    )
    assert sent.code == 0, sent.err
    printed = kbroker("consume", f"{kafka_topic}:1", "-e", "-x", "--format", template)
    assert printed.lines == ["1 17 [a=b] ada\t18 15"]
    other = kbroker("consume", f"{kafka_topic}:0", "-e", "-x", "--format", template)
    assert other.lines == ["0 18 [] x\t"]


def test_files(kbroker: Kbroker, kafka_topic: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("1\n2\n")
    second.write_bytes(b"3\n\xff")
    files = ("--file", str(first), "--file", str(second))
    assert "4 records to" in kbroker("produce", kafka_topic, *files).err
    whole = kbroker("produce", kafka_topic, *files, "--whole", "--key", "k")
    assert "2 records to" in whole.err
    found = records(kbroker, kafka_topic)
    assert [each.get("value") for each in found[:3]] == ["1", "2", "3"]
    assert (found[4]["key"], found[4]["value"]) == ("k", "1\n2\n")
    assert found[5]["value_base64"] == "Mwr/"


def test_a_key_and_a_time_for_all(kbroker: Kbroker, kafka_topic: str) -> None:
    options = ("--key", "k", "--timestamp", "1970-01-01T00:00:01")
    assert kbroker("produce", kafka_topic, *options, text="x\ny").code == 0
    found = [(each["key"], each["timestamp"]) for each in records(kbroker, kafka_topic)]
    assert found == [("k", 1000), ("k", 1000)]


def test_properties_of_the_producer(kbroker: Kbroker, kafka_topic: str) -> None:
    sent = kbroker("produce", kafka_topic, "-X", "acks=0", "-X", "linger.ms=0", text="x")
    assert sent.code == 0, sent.err
    wrong = kbroker("produce", kafka_topic, "-X", "acks=7", text="x")
    assert (wrong.code, wrong.err) == (1, "kbroker: acks=7: write all, -1, 1, 0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json", "--whole"), "give one of --key-separator, --format, --json and --whole"),
        (("--whole",), "Invalid value for --whole: it needs --file"),
        (("--format", "%z"), "Invalid value for --format: %z is unknown"),
        (("--timestamp", "soon"), "'soon' is no time"),
    ],
)
def test_mistakes(kbroker: Kbroker, arguments: tuple[str, ...], message: str) -> None:
    result = kbroker("produce", "t", *arguments)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err
