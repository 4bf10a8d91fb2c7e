"""`kbroker resend` between topics and clusters."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.cluster import Client
from kbroker.client.producer import Producer, ProducerConfig
from kbroker.testing import EmbeddedBroker

Kbroker = Callable[..., Any]

RECORDS = [
    {"key": "ada", "value": "1815", "timestamp": 1000, "headers": {"source": "import"}},
    {"key": "grace", "value": None, "timestamp": 2000},
    {"key": None, "value": "1912", "timestamp": 3000, "headers": {"a": None, "b": "x"}},
    {"key": "edsger", "value_base64": "/w==", "timestamp": 4000},
]


def create(kbroker: Kbroker, topic: str, partitions: int, *arguments: str) -> None:
    """A topic whose old records stay: those of these tests are of 1970."""
    options = ("-p", str(partitions), "-c", "retention.ms=-1", *arguments)
    assert kbroker("topics", "create", topic, *options).code == 0


@pytest.fixture
def topic(kbroker: Kbroker, kafka_topic: str) -> str:
    """Four records in partition 0, one in partition 1 of 2; and an empty topic `...-copy`."""
    kbroker("topics", "alter", kafka_topic, "--set", "retention.ms=-1")
    kbroker("topics", "add-partitions", kafka_topic, "--partitions", "2")
    text = "\n".join(map(json.dumps, RECORDS))
    assert kbroker("produce", kafka_topic, "--json", "-p", "0", text=text).code == 0
    assert kbroker("produce", kafka_topic, "-p", "1", "--timestamp", "5000", text="one").code == 0
    create(kbroker, f"{kafka_topic}-copy", 2)
    return kafka_topic


@pytest.fixture(scope="module")
def other() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made


def content(kbroker: Kbroker, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """The records of a topic without its name, in order of partition and offset."""
    read = kbroker("consume", topic, "-e", "-x", "--json", *arguments)
    assert read.code == 0, read.err
    rows = [json.loads(line) for line in read.lines]
    for row in rows:
        del row["topic"]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def offsets(rows: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Where in `wanted` rows come from: partition and offset, by timestamp, which is unique."""
    places = {row["timestamp"]: (row["partition"], row["offset"]) for row in wanted}
    return [places[row["timestamp"]] for row in rows]


def test_a_copy_is_equal(kbroker: Kbroker, topic: str) -> None:
    result = kbroker("resend", topic, f"{topic}-copy")
    assert (result.code, result.out) == (0, "")
    *notes, summary = result.err.splitlines()
    assert notes == [
        f"{topic}-0: 4 records to {topic}-copy, of offsets 0 to 3",
        f"{topic}-1: 1 record to {topic}-copy, of offsets 0 to 0",
    ]
    assert summary.startswith(f"5 records to {topic}-copy at ")
    assert content(kbroker, f"{topic}-copy") == content(kbroker, topic)


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (("--offset", "1..3"), [(0, 1), (0, 2)]),
        (("--offset", "-1"), [(0, 3), (1, 0)]),
        (("--partition", "0", "--offset", "@3000"), [(0, 2), (0, 3)]),
        (("--since", "2000", "--until", "4000"), [(0, 1), (0, 2)]),
        (("--key", "^a|^g"), [(0, 0), (0, 1)]),
        (("--header", "source=import"), [(0, 0)]),
        (("--offset", "0..2", "--since", "2000"), [(0, 1), (1, 0)]),
        (("--partition", "0", "--max-messages", "2"), [(0, 0), (0, 1)]),
    ],
)
def test_what_is_selected(
    kbroker: Kbroker, topic: str, arguments: tuple[str, ...], places: list[tuple[int, int]]
) -> None:
    result = kbroker("resend", topic, f"{topic}-copy", *arguments, "--json")
    assert result.code == 0, result.err
    copied = content(kbroker, f"{topic}-copy")
    assert offsets(copied, content(kbroker, topic)) == places
    rows = list(map(json.loads, result.lines))
    assert sum(row["records"] for row in rows) == len(places)
    for row in rows:
        mine = [offset for partition, offset in places if partition == row["partition"]]
        assert (row["first_offset"], row["last_offset"]) == (mine[0], mine[-1])
        assert (row["topic"], row["target"]) == (topic, f"{topic}-copy")


def test_partitions_of_the_target(kbroker: Kbroker, topic: str) -> None:
    assert kbroker("resend", topic, f"{topic}-copy", "--to-partition", "1").code == 0
    assert [row["partition"] for row in content(kbroker, f"{topic}-copy")] == [1] * 5
    create(kbroker, f"{topic}-keys", 7)
    only_keys = ("--partition", "0", "--key", ".")
    by_key = ("resend", topic, f"{topic}-keys", "--to-partition", "key", *only_keys)
    assert kbroker(*by_key).code == 0
    create(kbroker, f"{topic}-produced", 7)
    lines = "ada:\ngrace:\nedsger:\n"
    kbroker("produce", f"{topic}-produced", "-k", ":", text=lines)
    chosen = {row["key"]: row["partition"] for row in content(kbroker, f"{topic}-produced")}
    assert {row["key"]: row["partition"] for row in content(kbroker, f"{topic}-keys")} == chosen


def test_topics_that_match_a_pattern(kbroker: Kbroker, topic: str) -> None:
    kbroker("topics", "create", f"{topic}-b")
    kbroker("produce", f"{topic}-b", text="b")
    result = kbroker("resend", f"{topic}(-b)?", f"{topic}-copy", "--regex", "--json")
    assert [json.loads(line)["topic"] for line in result.lines] == [topic, topic, f"{topic}-b"]
    assert len(content(kbroker, f"{topic}-copy")) == 6


def test_a_topic_to_itself_ends_at_its_end(kbroker: Kbroker, topic: str) -> None:
    assert kbroker("resend", f"{topic}:0", topic).code == 0
    assert len(content(kbroker, topic, "-p", "0")) == 8


def test_another_cluster(
    kbroker: Kbroker,
    other: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its address, by a file, and by a profile."""
    monkeypatch.setenv("KBROKER_PROFILES_FILE", str(tmp_path / "profiles.json"))
    there = other.bootstrap_servers
    config = tmp_path / "other.properties"
    config.write_text(f"bootstrap.servers={there}\n")
    assert kbroker("profile", "create", "other", "-b", there).code == 0
    create(kbroker, topic, 2, "-b", there)
    options = [("--to-bootstrap", there), ("--to-profile", "other")]
    for option in [*options, ("--to-command-config", str(config))]:
        result = kbroker("resend", topic, topic, *option)
        assert result.code == 0, result.err
        assert f"5 records to {topic} at {there} in " in result.err
    copied = content(kbroker, topic, "-b", there)
    assert len(copied) == 15
    assert {row["timestamp"] for row in copied} == {1000, 2000, 3000, 4000, 5000}
    assert len(content(kbroker, topic)) == 5


def test_aborted_records_are_left_out(
    kbroker: Kbroker, kafka_broker: EmbeddedBroker, topic: str
) -> None:
    """They would be committed records in the copy."""

    async def abort() -> None:
        config = ProducerConfig(transactional_id=f"aborted-{topic}")
        address = kafka_broker.bootstrap_servers
        async with Client(address) as client, Producer(client, config) as producer:
            await producer.send_and_wait(topic, b"aborted", timestamp_ms=6000, partition=1)

    asyncio.run(abort())
    source = ("resend", f"{topic}:1", f"{topic}-copy")
    assert kbroker(*source).code == 0
    assert [row["value"] for row in content(kbroker, f"{topic}-copy")] == ["one"]
    assert kbroker(*source, "-X", "isolation.level=read_uncommitted").code == 0
    values = [row["value"] for row in content(kbroker, f"{topic}-copy")]
    assert values == ["one", "one", "aborted"]


def test_a_transaction_is_seen_once_it_is_committed(kbroker: Kbroker, topic: str) -> None:
    transaction = ("--transactional-id", f"of-{topic}")
    assert kbroker("resend", topic, f"{topic}-copy", *transaction).code == 0
    committed = ("--read-committed", "-e", "-n", "5", "--timeout", "30")
    read = kbroker("consume", f"{topic}-copy", *committed, "--format", "%T")
    assert sorted(read.lines) == ["1000", "2000", "3000", "4000", "5000"]
    state = json.loads(kbroker("transactions", "describe", f"of-{topic}", "--json").out)
    assert state["state"] in ("PrepareCommit", "CompleteCommit")
    assert state["timeout_ms"] == 600_000


def test_a_transaction_that_fails_is_aborted(kbroker: Kbroker, topic: str) -> None:
    """After some records were written; of those nothing is said to be there."""
    kbroker("configs", "set", "topic", f"{topic}-copy", "max.message.bytes=5000")
    big = json.dumps({"key": "big", "value": "x" * 20_000, "timestamp": 9000})
    kbroker("produce", topic, "--json", "-p", "0", text=big)
    transaction = ("--transactional-id", f"of-{topic}")
    small_batches = ("-X", "batch.size=100", "-X", "linger.ms=0")
    result = kbroker("resend", topic, f"{topic}-copy", *transaction, *small_batches)
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert "MESSAGE_TOO_LARGE" in result.err
    assert len(content(kbroker, f"{topic}-copy")) > 0
    state = json.loads(kbroker("transactions", "describe", f"of-{topic}", "--json").out)["state"]
    assert state in ("PrepareAbort", "CompleteAbort")
    kbroker("produce", f"{topic}-copy", "-p", "0", text="after")
    committed = ("--read-committed", "-e", "-n", "1", "--timeout", "30")
    assert kbroker("consume", f"{topic}-copy:0", *committed).lines == ["after"]


def test_what_was_written_before_an_error_is_said(kbroker: Kbroker, topic: str) -> None:
    kbroker("configs", "set", "topic", f"{topic}-copy", "max.message.bytes=5000")
    big = json.dumps({"key": "big", "value": "x" * 20_000, "timestamp": 9000})
    kbroker("produce", topic, "--json", "-p", "0", text=big)
    result = kbroker("resend", topic, f"{topic}-copy", "-X", "batch.size=100")
    assert (result.code, result.out) == (1, "")
    assert f"{topic}-0: 4 records to {topic}-copy, of offsets 0 to 3" in result.err


def test_a_dry_run_writes_nothing(kbroker: Kbroker, topic: str) -> None:
    dry = kbroker("resend", topic, f"{topic}-copy", "--offset", "2", "--dry-run")
    assert dry.lines == [f"{topic}\t0\t2\t4\t2", f"{topic}\t1\t1\t1\t0"]
    assert content(kbroker, f"{topic}-copy") == []


def test_nothing_to_do(kbroker: Kbroker, topic: str) -> None:
    result = kbroker("resend", f"{topic}-copy", topic)
    assert (result.code, result.err) == (0, "there is nothing to resend\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{topic}", "nope-{topic}"), 1, "there is no topic nope-{topic}; make it first: kbroker"),
        (("nope-{topic}", "{topic}"), 1, "nope-{topic}"),
        (("{topic}", "{topic}", "--to-partition", "2"), 1, "has 2 partitions, and no partition 2"),
        (("{topic}:1", "{topic}-one"), 1, "{topic}-one has 1 partition, and no partition 1"),
        (("{topic}", "t", "--to-partition", "x"), 2, "x: write keep, key or the number"),
        (("{topic}", "t", "--to-partition", "9999999999"), 2, "write keep, key or the number"),
        (("{topic}", "t", "--to-bootstrap", "a:b"), 2, "is no broker address"),
        (("{topic}", "t", "--to-command-config", "/no/such"), 1, "/no/such: no such file"),
        (("{topic}", "t", "--to-profile", "nope"), 1, "no profile 'nope'"),
        (("{topic}", "t", "--to-bootstrap", "localhost:1"), 1, "localhost:1"),
        (("{topic}", "t", "--key", "("), 2, "Invalid value for --key"),
        (("{topic}", "t", "--offset", "soon"), 2, "'soon' is no offset"),
        (("{topic}",), 2, "Missing argument"),
    ],
)
def test_mistakes(
    kbroker: Kbroker, topic: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    kbroker("topics", "create", f"{topic}-one")
    result = kbroker("resend", *(each.format(topic=topic) for each in arguments))
    assert (result.code, result.err.count("\n")) == (code, 1), result.err
    assert message.format(topic=topic) in result.err


def test_a_file_without_an_address(kbroker: Kbroker, topic: str, tmp_path: Path) -> None:
    config = tmp_path / "other.properties"
    config.write_text("acks=all\n")
    result = kbroker("resend", topic, topic, "--to-command-config", str(config))
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "give --to-bootstrap" in result.err


def test_it_asks_on_a_terminal(kbroker: Kbroker, topic: str) -> None:
    def answered(answer: bytes) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "kbroker", "resend", topic, f"{topic}-copy", "-n", "3"]
        process = subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=theirs)
        os.close(theirs)
        os.write(ours, answer)
        seen = b""
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # the terminal's other end is closed
            pass
        os.close(ours)
        return process.wait(60), seen.replace(b"\r\n", b"\n")

    code, seen = answered(b"n\n")
    assert code == 1
    assert f"write up to 3 records of {topic} to {topic}-copy at ".encode() in seen
    assert content(kbroker, f"{topic}-copy") == []
    code, seen = answered(b"y\n")
    assert code == 0
    assert len(content(kbroker, f"{topic}-copy")) == 3
