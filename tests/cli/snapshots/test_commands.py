"""`kbroker topics snapshot`, `restore` and `clone` against a running broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.cluster import Client
from kbroker.client.producer import Producer, ProducerConfig
from kbroker.testing import EmbeddedBroker
from tests.cli.test_transactions import hang

Kbroker = Callable[..., Any]

RECORDS = [
    {"key": "ada", "value": "1815", "timestamp": 1000, "headers": {"source": "import"}},
    {"key": "grace", "value": None, "timestamp": 2000},
    {"key": None, "value": "1912", "timestamp": 3000, "headers": {"a": None, "b": "x"}},
    {"key": "edsger", "value_base64": "/w==", "timestamp": 4000},
]


@pytest.fixture
def topic(kbroker: Kbroker, kafka_topic: str) -> str:
    """Four records in partition 0, one in partition 1 of 3, a configuration of its own."""
    kbroker("topics", "alter", kafka_topic, "--set", "retention.ms=-1", "--set", "segment.ms=9999")
    kbroker("topics", "add-partitions", kafka_topic, "--partitions", "3")
    text = "\n".join(map(json.dumps, RECORDS))
    assert kbroker("produce", kafka_topic, "--json", "-p", "0", text=text).code == 0
    assert kbroker("produce", kafka_topic, "-p", "1", "--timestamp", "5000", text="one").code == 0
    return kafka_topic


@pytest.fixture
def taken(kbroker: Kbroker, topic: str, tmp_path: Path) -> Path:
    output = tmp_path / "snapshot"
    result = kbroker("topics", "snapshot", topic, "--output", str(output))
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(f"{topic}: 3 partitions, ")
    return output


def content(kbroker: Kbroker, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """The committed records of a topic without its name, in order of partition and offset."""
    read = kbroker("consume", topic, "-e", "-x", "--json", "--read-committed", *arguments)
    assert read.code == 0, read.err
    rows = [json.loads(line) for line in read.lines]
    for row in rows:
        del row["topic"]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def own_configs(kbroker: Kbroker, topic: str) -> dict[str, Any]:
    lines = kbroker("configs", "describe", "topic", topic, "--json").lines
    rows = map(json.loads, lines)
    return {row["key"]: row["value"] for row in rows if row["source"] == "TOPIC_CONFIG"}


async def write(broker: EmbeddedBroker, topic: str, value: bytes, *, commit: bool) -> None:
    """One record in a transaction, in partition 0."""
    config = ProducerConfig(transactional_id=f"{topic}-{value!r}")
    async with Client(broker.bootstrap_servers) as client, Producer(client, config) as producer:
        await producer.send_and_wait(topic, value, partition=0, timestamp_ms=6000)
        if commit:
            await producer.commit()


def test_a_restored_topic_is_equal(kbroker: Kbroker, topic: str, taken: Path) -> None:
    new = f"{topic}-new"
    result = kbroker("topics", "restore", str(taken), new)
    assert (result.code, result.out) == (0, ""), result.err
    *lines, summary = result.err.splitlines()
    assert lines == [
        f"{new}-0: 4 records, offsets kept",
        f"{new}-1: 1 record, offsets kept",
        f"{new}-2: 0 records, offsets kept",
    ]
    assert summary.startswith(f"5 records to {new} in ")
    assert content(kbroker, new) == content(kbroker, topic)
    assert own_configs(kbroker, new) == own_configs(kbroker, topic)


def test_it_replaces_a_topic_that_was_deleted(kbroker: Kbroker, topic: str, taken: Path) -> None:
    before = content(kbroker, topic)
    there = kbroker("topics", "restore", str(taken))
    assert (there.code, there.out) == (1, "")
    assert there.err == (
        f"kbroker: topic {topic} exists already: name another one, delete it first (kbroker topics "
        f"delete {topic}), or write into it (--existing)\n"
    )
    assert content(kbroker, topic) == before
    assert kbroker("topics", "delete", topic, "--yes").code == 0
    assert kbroker("topics", "restore", str(taken)).code == 0
    assert content(kbroker, topic) == before


def test_old_records_stay_until_the_user_says_otherwise(
    kbroker: Kbroker, topic: str, tmp_path: Path
) -> None:
    """With the retention of the source they would be deleted at once: they are of 1970."""
    settings = ("--set", "cleanup.policy=compact", "--set", "message.timestamp.type=LogAppendTime")
    kbroker("topics", "alter", topic, "--set", "retention.ms=60000", *settings)
    output = tmp_path / "snapshot"
    assert kbroker("topics", "snapshot", topic, "-o", str(output)).code == 0
    result = kbroker("topics", "restore", str(output), f"{topic}-new")
    assert result.code == 0, result.err
    assert (
        f"{topic}-new keeps its old records (retention.ms=-1); as the source had it: kbroker "
        f"topics alter {topic}-new --set retention.ms=60000\n"
    ) in result.err
    wanted = own_configs(kbroker, topic) | {"retention.ms": -1}
    assert own_configs(kbroker, f"{topic}-new") == wanted
    timestamps = [row["timestamp"] for row in content(kbroker, f"{topic}-new")]
    assert timestamps == [1000, 2000, 3000, 4000, 5000]


def test_into_a_topic_with_records(kbroker: Kbroker, topic: str, taken: Path) -> None:
    """Offsets are not kept where there are records already, and that is said."""
    kbroker("produce", topic, "-p", "1", "--timestamp", "6000", text="two")
    result = kbroker("topics", "restore", str(taken), topic, "--existing", "--json")
    assert result.code == 0, result.err
    rows = list(map(json.loads, result.lines))
    assert [(row["partition"], row["records"], row["offsets_kept"]) for row in rows] == [
        (0, 4, False),
        (1, 1, False),
        (2, 0, True),
    ]
    assert (rows[1]["first_offset"], rows[1]["target_first_offset"]) == (0, 2)
    values = [row["value"] for row in content(kbroker, topic) if row["partition"] == 1]
    assert values == ["one", "two", "one"]


def test_what_an_existing_topic_must_be(kbroker: Kbroker, topic: str, taken: Path) -> None:
    kbroker("topics", "create", f"{topic}-small", "-p", "2")
    small = kbroker("topics", "restore", str(taken), f"{topic}-small", "--existing")
    assert (small.code, small.err.count("\n")) == (1, 1)
    assert "has 2 partitions, 3 are needed" in small.err
    kbroker("topics", "alter", topic, "--set", "message.timestamp.type=LogAppendTime")
    times = kbroker("topics", "restore", str(taken), topic, "--existing")
    assert (times.code, times.err.count("\n")) == (1, 1)
    assert "message.timestamp.type=LogAppendTime, which replaces" in times.err
    missing = kbroker("topics", "restore", str(taken), f"{topic}-none", "--existing")
    assert (missing.code, missing.err.count("\n")) == (1, 1)


def test_transactions(
    kbroker: Kbroker, kafka_broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """Aborted records are stored and not restored, nor those of a transaction without an end."""
    asyncio.run(write(kafka_broker, topic, b"committed", commit=True))
    asyncio.run(write(kafka_broker, topic, b"aborted", commit=False))
    kbroker("produce", topic, "-p", "0", "--timestamp", "7000", text="last")
    wanted = content(kbroker, topic)
    open_from = hang(kafka_broker, topic)
    output = tmp_path / "snapshot"
    result = kbroker("topics", "snapshot", topic, "-o", str(output))
    assert f"{topic}-0: a transaction was open from offset {open_from} on; " in result.err
    result = kbroker("topics", "restore", str(output), f"{topic}-new")
    assert result.code == 0, result.err
    assert f"{topic}-0: 1 transaction had no end in the snapshot and is left out" in result.err
    assert f"{topic}-new-0: 6 records, offsets not kept: the end" in result.err
    restored = content(kbroker, f"{topic}-new")
    assert [row | {"offset": 0} for row in restored] == [row | {"offset": 0} for row in wanted]
    offsets = [row["offset"] for row in restored if row["partition"] == 0]
    assert offsets == [0, 1, 2, 3, 4, 5]
    cloned = kbroker("topics", "clone", topic, f"{topic}-clone")
    assert cloned.code == 0, cloned.err
    assert content(kbroker, f"{topic}-clone") == restored


def test_records_that_were_deleted_stay_deleted(
    kbroker: Kbroker, topic: str, tmp_path: Path
) -> None:
    assert kbroker("topics", "delete-records", f"{topic}:0", "--before-offset", "2", "-y").code == 0
    output = tmp_path / "snapshot"
    assert kbroker("topics", "snapshot", topic, "-o", str(output)).code == 0
    result = kbroker("topics", "restore", str(output), f"{topic}-new")
    assert f"{topic}-new-0: 2 records, offsets not kept: 2 is 0\n" in result.err
    timestamps = [row["timestamp"] for row in content(kbroker, f"{topic}-new")]
    assert timestamps == [3000, 4000, 5000]


def test_a_clone_is_equal(kbroker: Kbroker, topic: str) -> None:
    result = kbroker("topics", "clone", topic, f"{topic}-clone", "--compression", "lz4", "--json")
    assert result.code == 0, result.err
    assert [json.loads(line)["offsets_kept"] for line in result.lines] == [True] * 3
    assert content(kbroker, f"{topic}-clone") == content(kbroker, topic)
    assert own_configs(kbroker, f"{topic}-clone") == own_configs(kbroker, topic)
    again = kbroker("topics", "clone", topic, f"{topic}-clone")
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"kbroker: topic {topic}-clone exists already: ")
    assert content(kbroker, f"{topic}-clone") == content(kbroker, topic)
    none = kbroker("topics", "clone", f"{topic}-none", f"{topic}-other")
    assert (none.code, none.err.count("\n")) == (1, 1)


def test_dry_run_needs_no_cluster(
    kbroker: Kbroker, taken: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "localhost:1")
    result = kbroker("topics", "restore", str(taken), "--dry-run", "--json")
    assert result.code == 0, result.err
    rows = list(map(json.loads, result.lines))
    assert [(row["partition"], row["start"], row["end"]) for row in rows] == [
        (0, 0, 4),
        (1, 0, 1),
        (2, 0, 0),
    ]
    assert {row["topic"] for row in rows} == {topic}


def test_the_files_are_those_of_a_log_directory(kbroker: Kbroker, taken: Path) -> None:
    verified = kbroker("dump-log", str(taken), "--verify", "--records")
    assert (verified.code, verified.out) == (0, "")
    assert "checked 3 files" in verified.err


def test_what_is_no_snapshot(kbroker: Kbroker, taken: Path, topic: str, tmp_path: Path) -> None:
    for wrong, message in ((tmp_path / "none", "no such directory"), (tmp_path, "no topic snap")):
        result = kbroker("topics", "restore", str(wrong), f"{topic}-new")
        assert (result.code, result.err.count("\n")) == (1, 1)
        assert message in result.err
    (segment,) = (taken / f"{topic}-0").iterdir()
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    result = kbroker("topics", "restore", str(taken), f"{topic}-new")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "the snapshot is damaged" in result.err
    listed = kbroker("topics", "list", "--json").lines
    assert f"{topic}-new" not in [json.loads(line)["topic"] for line in listed]


def test_where_a_snapshot_may_go(kbroker: Kbroker, topic: str, taken: Path, tmp_path: Path) -> None:
    result = kbroker("topics", "snapshot", topic, "-o", str(taken))
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "is a topic snapshot already" in result.err
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    result = kbroker("topics", "snapshot", topic, "-o", str(tmp_path / "used"))
    assert "is not empty" in result.err
    missing = kbroker("topics", "snapshot", f"{topic}-none", "-o", str(tmp_path / "other"))
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert not (tmp_path / "other").exists()


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from kbroker.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_full_disk_is_one_line(
    kbroker: Kbroker, topic: str, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    output = tmp_path / "snapshot"
    arguments = ("topics", "snapshot", topic, "-o", str(output))
    done = subprocess.run(
        [sys.executable, "-B", "-c", LIMITED, *arguments, "-b", kafka_broker.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"kbroker: cannot write {output / (topic + '-0')}")
    assert done.stderr.count("\n") == 1
    assert not output.exists()


STOPPED_BEFORE_THE_END = """
import sys, time
from kbroker.cli.snapshots import restoring
async def wait(*_, **__):
    print("filled", flush=True)
    time.sleep(600)
restoring.settle_target = wait
from kbroker.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_killed_restore_can_be_made_again(
    kbroker: Kbroker, topic: str, taken: Path, kafka_broker: EmbeddedBroker
) -> None:
    new = f"{topic}-new"
    restore = ("topics", "restore", str(taken), new)
    with subprocess.Popen(
        [
            *(sys.executable, "-c", STOPPED_BEFORE_THE_END, *restore),
            *("-b", kafka_broker.bootstrap_servers),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        process.kill()
    assert "exists already" in kbroker(*restore).err
    assert kbroker("topics", "delete", new, "--yes").code == 0
    assert kbroker(*restore).code == 0
    assert content(kbroker, new) == content(kbroker, topic)


def test_an_error_says_what_it_leaves(kbroker: Kbroker, topic: str, tmp_path: Path) -> None:
    """A record that the topic's limit, which was lowered since, does not allow any more."""
    kbroker("produce", topic, "-p", "1", text="x" * 5000)
    kbroker("topics", "alter", topic, "--set", "max.message.bytes=1000")
    output = tmp_path / "snapshot"
    assert kbroker("topics", "snapshot", topic, "-o", str(output)).code == 0
    result = kbroker("topics", "restore", str(output), f"{topic}-new")
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert last.endswith(
        f"; {topic}-new has a part of the records; delete it and start again (kbroker topics "
        f"delete {topic}-new)"
    )
