"""`kbroker topics offsets` and `delete-records` against a broker."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker

Kbroker = Callable[..., Any]


@pytest.fixture
def topic(kbroker: Kbroker, kafka_topic: str) -> str:
    """Two partitions of ten and two records, with timestamps of 0 to 9 s."""
    kbroker("topics", "add-partitions", kafka_topic, "--partitions", "2")
    lines = "\n".join(f"{second * 1000} {second}" for second in range(10))
    for partition, text in (("0", lines), ("1", "0 a\n7000 b")):
        sent = kbroker("produce", kafka_topic, "-p", partition, "--format", "%T %v", text=text)
        assert sent.code == 0, sent.err
    return kafka_topic


def test_offsets(kbroker: Kbroker, topic: str) -> None:
    assert kbroker("topics", "offsets", topic).lines == [
        f"{topic}\t0\t0\t10\t10",
        f"{topic}\t1\t0\t2\t2",
    ]
    (row,) = map(json.loads, kbroker("topics", "offsets", f"{topic}:1", "--json").lines)
    assert row == {"topic": topic, "partition": 1, "start": 0, "end": 2, "records": 2}
    at = kbroker("topics", "offsets", topic, "--at", "1970-01-01T00:00:04", "--json").lines
    assert [(each["offset"], each["timestamp"]) for each in map(json.loads, at)] == [
        (4, 4000),
        (1, 7000),
    ]
    later = kbroker("topics", "offsets", f"{topic}:0", "--at", "-1h").lines
    assert later == [f"{topic}\t0\t-\t-"]
    latest = kbroker("topics", "offsets", f"{topic}:1", "--latest-record").lines
    assert latest == [f"{topic}\t1\t1\t7000"]


def bounds(kbroker: Kbroker, topic: str) -> list[tuple[int, int]]:
    rows = map(json.loads, kbroker("topics", "offsets", topic, "--json").lines)
    return [(row["start"], row["end"]) for row in rows]


def test_records_are_deleted(kbroker: Kbroker, topic: str, tmp_path: Path) -> None:
    dry = kbroker("topics", "delete-records", topic, "--before-offset", "3", "--dry-run", "--json")
    assert list(map(json.loads, dry.lines)) == [
        {"topic": topic, "partition": 0, "start": 0, "new_start": 3, "records": 3},
        {"topic": topic, "partition": 1, "start": 0, "new_start": 2, "records": 2},
    ]
    assert bounds(kbroker, topic) == [(0, 10), (0, 2)]
    done = kbroker("topics", "delete-records", f"{topic}:0", "--before-offset", "3")
    assert (done.code, done.err) == (0, f"{topic}-0 begins at 3 now\n")
    assert bounds(kbroker, topic) == [(3, 10), (0, 2)]
    done = kbroker("topics", "delete-records", topic, "--before-time", "5000", "--json")
    assert [json.loads(line)["start"] for line in done.lines] == [5, 1]
    path = tmp_path / "offsets.csv"
    path.write_text(f"{topic},0,7\n")
    assert kbroker("topics", "delete-records", "--from-file", str(path)).code == 0
    assert bounds(kbroker, topic) == [(7, 10), (1, 2)]
    assert kbroker("topics", "delete-records", topic, "--all", "--yes").code == 0
    assert bounds(kbroker, topic) == [(10, 10), (2, 2)]
    assert kbroker("consume", topic, "-e", "-x").lines == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("delete-records", "t"), 2, "give one of --before-offset, --before-time, --all"),
        (("delete-records", "--all"), 2, "name topics, or give --from-file"),
        (("delete-records", "t", "--all", "--before-offset", "1"), 2, "give one of"),
        (("delete-records", "t", "--before-time", "soon"), 2, "'soon' is no time"),
        (("delete-records", "no-such", "--all"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("offsets", "t", "--at", "1", "--latest-record"), 2, "give --at or --latest-record"),
        (("offsets", "t:x"), 2, "partitions are numbers"),
        (("offsets", "no-such"), 1, "UNKNOWN_TOPIC_OR_PARTITION: topic no-such"),
    ],
)
def test_mistakes_are_one_line(
    kbroker: Kbroker, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = kbroker("topics", *arguments)
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert message in result.err


def test_a_partition_that_is_not_there(kbroker: Kbroker, kafka_topic: str) -> None:
    result = kbroker("topics", "offsets", f"{kafka_topic}:7")
    assert result.err == f"kbroker: {kafka_topic} has no partition 7, its last is 0\n"


def answered(broker: EmbeddedBroker, answer: str, *arguments: str) -> tuple[int, str]:
    """Exit code and screen of a command that is asked a question on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kbroker", *arguments]
    environment = {**os.environ, "KBROKER_BOOTSTRAP": broker.bootstrap_servers}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        os.write(ours, answer.encode())
        seen = b""
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # Linux ends a terminal that nothing has open any more with EIO
            pass
        code = process.wait(60)
    os.close(ours)
    return code, seen.decode()


def test_a_terminal_is_asked(kbroker: Kbroker, kafka_broker: EmbeddedBroker, topic: str) -> None:
    arguments = ("topics", "delete-records", topic, "--all")
    code, seen = answered(kafka_broker, "n\n", *arguments)
    assert code == 1
    assert f"delete 12 records of {topic}? [y/N]" in seen
    assert "kbroker: nothing was changed" in seen
    assert bounds(kbroker, topic) == [(0, 10), (0, 2)]
    code, seen = answered(kafka_broker, "", "topics", "delete", topic, "--yes")
    assert (code, "?" in seen) == (0, False)
    assert topic not in kbroker("topics", "list").out


def test_yes_is_an_answer(kbroker: Kbroker, kafka_broker: EmbeddedBroker, topic: str) -> None:
    code, seen = answered(kafka_broker, "y\n", "topics", "delete", topic)
    assert code == 0, seen
    assert f"deleted {topic}" in seen
