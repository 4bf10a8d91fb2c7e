"""Jobs in a session of Spark Connect. The server has Spark and pyarrow, but not this package; the
client has no Java.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.batches.records import Record
from spark_jobs.java import java_problem
from spark_jobs.lake.formats import FORMATS
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import committed_offsets
from tests.clients.adapters import ConfluentAdapter, Sent, wait_until
from tests.spark.archive.readers import seen_by_pyarrow
from tests.spark.connect_server import ConnectServer
from tests.spark.connected_frames import MODULE as FRAMES
from tests.spark.connected_query import MODULE
from tests.spark.copying.records import content, fill, records_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 3
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect"), *FORMATS.values()) as running:
        yield running


@pytest.fixture
def topic(bootstrap: str, new_topic: Callable[[int], str]) -> str:
    name = new_topic(PARTITIONS)
    fill(bootstrap, name, range(300), PARTITIONS)
    return name


@pytest.fixture
def start(server: ConnectServer) -> Iterator[Start]:
    """Start a job of the command line; killed at the end if it still runs."""
    with ExitStack() as stack:

        def run(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "spark_jobs", *arguments, "--json"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, "--conf", f"spark.remote={server.remote}"],
                    env=server.client_environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield run


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a job says at its end, which must be a good one."""
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(printed)
    return found


@pytest.mark.parametrize("decode", ["none", "string"])
def test_archive(start: Start, bootstrap: str, topic: str, tmp_path: Path, decode: str) -> None:
    output = tmp_path / "out"
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic, "--decode", decode]
    arguments += ["--output", str(output), "--maxOffsetsPerTrigger", "100"]
    told = result(start(*arguments))
    assert (told["rows"], told["archived"]) == (300, 300)
    assert told["files"] == len(list(output.rglob("*.parquet")))
    fill(bootstrap, topic, range(300, 350), PARTITIONS)
    told = result(start(*arguments))
    assert (told["rows"], told["archived"]) == (50, 350)
    expected = [
        (topic, partition, record.offset, record.key, stored(record.value, decode))
        for partition, records in enumerate(records_of(bootstrap, topic, PARTITIONS))
        for record in records
    ]
    assert seen_by_pyarrow(output) == expected


def stored(value: bytes | None, decode: str) -> bytes | str | None:
    return value if value is None or decode == "none" else value.decode()


def keys_and_values(records: list[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


def test_mirror(start: Start, bootstrap: str, topic: str, tmp_path: Path) -> None:
    arguments = ["mirror", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--prefix", "copy.", "--checkpoint", str(tmp_path / "cp"), "--queryName", topic]
    assert result(start(*arguments))["rows"] == 300
    copies = records_of(bootstrap, f"copy.{topic}", PARTITIONS)
    sources = records_of(bootstrap, topic, PARTITIONS)
    assert [content(one) for one in copies] == [content(one) for one in sources]


def test_dlq_counts_what_the_server_wrote(
    start: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    arguments = ["dlq", "--bootstrap-servers", bootstrap, "--topic", topic, "--decode", "json"]
    arguments += ["--to", f"{topic}-good", "--checkpoint", str(tmp_path / "cp")]
    told = result(start(*arguments))
    good = records_of(bootstrap, f"{topic}-good", PARTITIONS)
    assert told["rows"] == 300
    assert told["used"] == sum(map(len, good))
    assert told["dead"] == 300 - told["used"] > 0


def test_dedupe_counts_what_the_server_wrote(
    start: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    arguments = ["dedupe", "--bootstrap-servers", bootstrap, "--topic", topic, "--by", "value"]
    arguments += ["--to", f"{topic}-once", "--checkpoint", str(tmp_path / "cp")]
    arguments += ["--withoutId", "keep"]
    told = result(start(*arguments))
    values = [r.value for records in records_of(bootstrap, topic, PARTITIONS) for r in records]
    once = [r.value for found in records_of(bootstrap, f"{topic}-once", PARTITIONS) for r in found]
    assert Counter(once) == Counter(set(values) - {None}) + Counter(v for v in values if v is None)
    assert (told["rows"], told["written"]) == (300, len(once))


def seen(server: ConnectServer, *arguments: str) -> Any:
    """What a session of the server sees."""
    done = subprocess.run(
        [sys.executable, "-m", FRAMES, server.remote, *arguments],
        env=server.client_environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("format_", FORMATS)
def test_tables(
    server: ConnectServer,
    start: Start,
    bootstrap: str,
    new_topic: Callable[[int], str],
    topic: str,
    tmp_path: Path,
    format_: str,
) -> None:
    """Their store is another object on the server, where the batches are written."""
    keyed, archived, state = new_topic(2), tmp_path / "archived", tmp_path / "state"
    written = [
        "archive",
        *("--bootstrap-servers", bootstrap, "--topics", topic, "--output", str(archived)),
        *("--format", format_, "--maxOffsetsPerTrigger", "100"),
    ]
    assert result(start(*written))["archived"] == 300
    fill(bootstrap, topic, range(300, 350), PARTITIONS)
    assert result(start(*written))["archived"] == 350
    told = result(start("compact", "--output", str(archived), "--minFiles", "2"))
    assert told["files"] > told["into"] > 0
    assert seen(server, "table", format_, str(archived)) == 350

    # The values of b are read behind its tombstone, which is the newest in another partition.
    changes = [(b"a", b"1", 0), (b"b", b"2", 0), (b"a", b"3", 0), (b"b", None, 1), (b"c", b"4", 0)]
    changes.sort(key=lambda change: change[0] == b"b")
    records = [
        Sent(key, value, (), 1_700_000_000_000 + partition, partition)
        for key, value, partition in changes
    ]
    ConfluentAdapter(bootstrap).produce(keyed, records, codec="none", idempotent=True)
    current = ["table", "--bootstrap-servers", bootstrap, "--topic", keyed]
    current += ["--output", str(state), "--format", format_, "--maxOffsetsPerTrigger", "2"]
    assert result(start(*current))["applied"] == 5
    assert result(start(*current))["applied"] == 5
    assert seen(server, "table", format_, str(state)) == 2


def test_an_archive_comes_back_and_is_verified(
    start: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    archived, address = str(tmp_path / "out"), ("--bootstrap-servers", bootstrap)
    result(start("archive", *address, "--topics", topic, "--output", archived))
    assert result(start("verify", *address, "--topic", topic, "--againstArchive", archived))
    sources = [content(one) for one in records_of(bootstrap, topic, PARTITIONS)]
    for command, copy in (
        (("restore", "--archive", archived), f"{topic}-back"),
        (("replay", "--topic", topic), f"{topic}-again"),
    ):
        assert result(start(*command, *address, "--to", copy))["rows"] == 300
        assert [content(one) for one in records_of(bootstrap, copy, PARTITIONS)] == sources
        assert result(start("verify", *address, "--topic", topic, "--againstTopic", copy))


def test_aggregate(start: Start, bootstrap: str, topic: str, tmp_path: Path) -> None:
    arguments = ["aggregate", "--bootstrap-servers", bootstrap, "--topic", topic]
    arguments += ["--to", f"{topic}-totals", "--checkpoint", str(tmp_path / "cp")]
    told = result(start(*arguments, "--groupBy", "partition", "--aggregates", "n=count(*)"))
    written = records_of(bootstrap, f"{topic}-totals", PARTITIONS)
    totals = [json.loads(one.value or b"") for records in written for one in records]
    assert [one["n"] for one in totals] == [100] * PARTITIONS
    assert (told["rows"], told["written"]) == (300, PARTITIONS)


def test_aggregate_refuses_groups_that_are_not_utf_8(
    start: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    records = [Sent(bytes([number]), b"", (), 0, 0) for number in (128, 129)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    arguments = ["aggregate", "--bootstrap-servers", bootstrap, "--topic", topic]
    arguments += ["--to", f"{topic}-totals", "--checkpoint", str(tmp_path / "cp")]
    job = start(*arguments)
    printed, said = job.communicate(timeout=300)
    assert (job.returncode, printed) == (1, "")
    assert f"group key of {topic}-0 at offset 100 is not UTF-8" in said
    assert said.count("\n") == 1
    assert result(start(*arguments, "--groupBy", "id=hex(key)"))["rows"] == 302


def test_the_format(
    server: ConnectServer,
    bootstrap: str,
    topic: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    target = new_topic(PARTITIONS)
    found = seen(server, "format", bootstrap, topic, target, str(tmp_path / "cp"))
    assert found == [300, 600]
    copies = records_of(bootstrap, target, PARTITIONS)
    sources = records_of(bootstrap, topic, PARTITIONS)
    assert [keys_and_values(one) for one in copies] == [keys_and_values(one) * 2 for one in sources]


def test_a_query_of_a_user(
    server: ConnectServer,
    bootstrap: str,
    topic: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    group, target = f"follows-{topic}", new_topic(PARTITIONS)
    arguments = [server.remote, bootstrap, topic, target, str(tmp_path / "cp"), group]
    for count in (300, 350):
        fill(bootstrap, topic, range(300, count), PARTITIONS)
        subprocess.run(
            [sys.executable, "-m", MODULE, *arguments],
            env=server.client_environment,
            check=True,
            timeout=300,
        )
        sources = records_of(bootstrap, topic, PARTITIONS)
        copies = records_of(bootstrap, target, PARTITIONS)
        assert [keys_and_values(one) for one in copies] == [keys_and_values(one) for one in sources]
        client = BlockingClient(ClusterAddress(bootstrap))
        try:
            found = committed_offsets(client, group)
        finally:
            client.close()
        assert found == {topic: {index: len(records) for index, records in enumerate(sources)}}


def archiving(start: Start, bootstrap: str, topic: str, output: Path) -> subprocess.Popen[str]:
    """A job that has written files and goes on."""
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic]
    job = start(*arguments, "--output", str(output), "--every", "1 second")
    wait_until(lambda: any(output.rglob("*.parquet")), 120, "files")
    return job


def test_what_a_batch_says_when_it_fails(
    start: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    job = archiving(start, bootstrap, topic, output)
    shutil.rmtree(output, ignore_errors=True)
    fill(bootstrap, topic, range(300, 310), PARTITIONS)
    printed, said = job.communicate(timeout=300)
    assert (job.returncode, printed) == (1, "")
    assert said.startswith(f"spark_jobs: {output} has vanished or was emptied")
    assert said.count("\n") == 1


def test_sigterm_ends_it_with_the_summary(
    start: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    job = archiving(start, bootstrap, topic, output)
    job.send_signal(signal.SIGTERM)
    assert result(job)["archived"] == 300
