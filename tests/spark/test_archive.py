"""The archive job on Spark and a broker: rows are the records, each once, for any reader."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.archive.files import column_range
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.java import java_problem
from spark_jobs.spark_conf import connector_package
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.archive.readers import seen_by_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    # The first start in a fresh clone fetches the connector.
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

ROOT = Path(__file__).resolve().parents[2]
BASE_MS = 1_700_000_000_000
Row = tuple[object, ...]


def sent(numbers: range, partitions: int) -> list[Sent]:
    return [
        Sent(
            None if n % 5 == 0 else b"key-%d" % n,
            None if n % 7 == 3 and n % 5 else b"value-%d" % n,
            (("n", b"%d" % n), ("empty", b"")) if n % 2 else (),
            BASE_MS + n * 600_000,  # a day is 144 records
            n % partitions,
        )
        for n in numbers
    ]


def row(values: dict[str, object]) -> Row:
    headers = values["headers"]
    assert headers is None or isinstance(headers, list)
    time_ms = round(values["timestamp"].timestamp() * 1000)  # type: ignore[attr-defined]

    def plain(value: object) -> bytes | None:
        return bytes(value) if isinstance(value, bytes | bytearray) else None

    pairs = [(header["key"], plain(header["value"])) for header in headers or ()]
    place = (values["topic"], values["partition"], values["offset"], time_ms)
    return (*place, repr((plain(values["key"]), plain(values["value"]), pairs)))


def seen_by_pyarrow(folder: Path) -> list[Row]:
    return sorted(row(values) for values in pq.read_table(folder).to_pylist())


def seen_by_spark(spark: SparkSession, folder: Path) -> list[Row]:
    rows = spark.read.parquet(str(folder)).collect()
    return sorted(row(values.asDict(recursive=True)) for values in rows)


def expected(topic: str, records: list[Sent], partitions: int) -> list[Row]:
    return sorted(
        (
            topic,
            record.partition,
            number // partitions,
            record.timestamp_ms,
            repr((record.key, record.value, list(record.headers))),
        )
        for number, record in enumerate(records)
    )


@contextmanager
def job(
    *arguments: str, folder: Path = ROOT, command: tuple[str, ...] = ("-m", "spark_jobs")
) -> Iterator[subprocess.Popen[str]]:
    """The job in a process group of its own, which is gone at the end: also Spark's JVM."""
    run = subprocess.Popen(
        [sys.executable, *command, *arguments],
        cwd=folder,
        env={**os.environ, "SPARK_MASTER": "local[2]", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


@pytest.fixture
def produce(bootstrap: str) -> Callable[..., None]:
    def call(topic: str, records: list[Sent], codec: str = "lz4") -> None:
        ConfluentAdapter(bootstrap).produce(topic, records, codec=codec, idempotent=True)

    return call


@pytest.fixture
def options(bootstrap: str, tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(output=str(tmp_path / "out"), bootstrap_servers=bootstrap)


@pytest.mark.long_spark
def test_the_command_line_then_a_notebook(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
    tmp_path: Path,
) -> None:
    """Nothing but the summary is printed: not 40 lines of Ivy, no trace, no `artifacts`."""
    topic, output = new_topic(3), tmp_path / "out"
    records = sent(range(600), 3)
    produce(topic, records[:450], "zstd")
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic]
    with job(*arguments, "--output", "out", "--json", folder=tmp_path) as run:
        printed, errors = run.communicate(timeout=300)
    assert (run.returncode, errors) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.checkpoint"}
    summary = json.loads(printed)
    assert summary["end_offsets"] == {topic: {str(p): 150 for p in range(3)}}
    assert (summary["rows"], summary["archived"]) == (450, 450)
    assert seen_by_pyarrow(output) == expected(topic, records[:450], 3)
    produce(topic, records[450:])
    again = archive(spark, replace(options, subscribe=topic))
    assert (again.totals.rows, again.archived) == (150, 600)
    assert archive(spark, replace(options, subscribe=topic)).totals.rows == 0
    assert seen_by_pyarrow(output) == seen_by_spark(spark, output) == expected(topic, records, 3)


def test_batches_files_and_what_they_say(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
) -> None:
    """Two topics, several batches, files named by their content."""
    one, two = new_topic(1), new_topic(2)
    records = sent(range(300), 1), sent(range(200), 2)
    produce(one, records[0])
    produce(two, records[1])
    summary = archive(
        spark,
        replace(options, subscribe=f"{one},{two}", source_options={"maxOffsetsPerTrigger": "125"}),
    )
    out = Path(options.output)
    assert (summary.totals.rows, summary.totals.batches, summary.archived) == (500, 4, 500)
    assert summary.totals.end == {one: {0: 300}, two: {0: 100, 1: 100}}
    assert seen_by_pyarrow(out) == sorted(
        expected(one, records[0], 1) + expected(two, records[1], 2)
    )
    files = [path for path in out.rglob("*.parquet") if "_archive" not in path.parts]
    assert len(files) == summary.totals.files
    for path in files:
        metadata = pq.read_metadata(path)
        first, last = column_range(metadata, "offset") or (-1, -1)
        partition, _ = column_range(metadata, "partition") or (-1, -1)
        assert path.name == f"p{partition:05d}-{first:012d}-{last:012d}.parquet"
        rows = pq.read_table(path, partitioning=None)
        offsets = rows.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        assert (offsets[0], offsets[-1], len(offsets)) == (first, last, metadata.num_rows)
        assert set(rows.column("partition").to_pylist()) == {partition}
        assert path.parent.parent.name in {f"topic={one}", f"topic={two}"}
    assert not (out / "_spark_metadata").exists()


def test_aborted_transactions_are_left_out(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], options: ArchiveOptions
) -> None:
    from confluent_kafka import Producer

    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, value=b"%d" % number)
        producer.flush(30)
        producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)
    archive(spark, replace(options, subscribe=topic))
    rows = pq.read_table(options.output).to_pylist()
    assert sorted(values["value"] for values in rows) == [b"0", b"2", b"4"]
    everything = replace(
        options,
        subscribe=topic,
        output=f"{options.output}-all",
        source_options={"kafka.isolation.level": "read_uncommitted"},
    )
    assert archive(spark, everything).archived == 6
    # Only markers are left behind the last record: nothing to archive, and no error.
    assert archive(spark, replace(options, subscribe=topic)).totals.rows == 0


def test_a_topic_of_digits_is_a_string_and_its_time_has_a_type(
    spark: SparkSession, bootstrap: str, options: ArchiveOptions, produce: Callable[..., None]
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"2024{random.randrange(10**6):06d}"
    stamped = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=stamped)])[topic].result(20)
    produce(topic, [Sent(None, b"x", (), BASE_MS, 0)])
    archive(spark, replace(options, subscribe=topic))
    frame = spark.read.parquet(options.output)
    assert dict(frame.dtypes)["topic"] == "string"
    (values,) = frame.collect()
    assert (values.topic, values.timestampType) == (topic, 1)
    table = pq.read_table(options.output)
    assert table.column("topic").to_pylist() == [topic]
    assert table.schema.field("topic").type.value_type == pa.string()
    assert seen_by_duckdb(Path(options.output)) == [(topic, 0, 0, None, b"x")]


@pytest.mark.parametrize("layout", [(), ("topic", "date", "hour", "partition")])
def test_layouts(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
    layout: tuple[str, ...],
) -> None:
    topic, records = new_topic(2), sent(range(20), 2)
    produce(topic, records)
    run = replace(options, subscribe=topic, layout=layout)
    archive(spark, run)
    out = Path(options.output)
    assert seen_by_pyarrow(out) == seen_by_spark(spark, out) == expected(topic, records, 2)
    by_duckdb = [(place[1], place[2], place[4]) for place in seen_by_duckdb(out)]
    assert by_duckdb == sorted((n % 2, n // 2, record.value) for n, record in enumerate(records))
    with pytest.raises(StartRefused, match="has the layout"):
        archive(spark, replace(run, layout=("date",)))


@pytest.mark.long_spark
def test_batches_are_bounded_by_bytes(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
) -> None:
    topic = new_topic(1)
    produce(topic, [Sent(None, os.urandom(100), (), BASE_MS, 0) for _ in range(3000)])
    summary = archive(spark, replace(options, subscribe=topic, max_bytes_per_trigger=150_000))
    assert (summary.totals.rows, 2 <= summary.totals.batches <= 4) == (3000, True)


@pytest.mark.long_spark
def test_a_lost_checkpoint_and_the_way_out(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
) -> None:
    topic, records = new_topic(2), sent(range(90), 2)
    produce(topic, records[:60])
    run = replace(options, subscribe=topic)
    archive(spark, run)
    shutil.rmtree(f"{options.output}.checkpoint")
    produce(topic, records[60:])
    with pytest.raises(StartRefused, match="holds 60 records and its checkpoint"):
        archive(spark, run)
    assert archive(spark, replace(run, resume_from="output")).totals.rows == 30
    assert seen_by_pyarrow(Path(options.output)) == expected(topic, records, 2)
    assert archive(spark, replace(run, resume_from="earliest")).totals.rows == 90
    assert seen_by_pyarrow(Path(options.output)) == expected(topic, records, 2)


def test_a_topic_that_was_created_again(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = new_topic(1)
    produce(topic, sent(range(10), 1))
    run = replace(options, subscribe=topic)
    archive(spark, run)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    produce(topic, sent(range(100, 130), 1))
    with pytest.raises(StartRefused, match="would lose 10 records of the new topic"):
        archive(spark, run)
    archive(spark, replace(run, resume_from="earliest"))
    old, new = expected(topic, sent(range(10), 1), 1), expected(topic, sent(range(100, 130), 1), 1)
    assert seen_by_pyarrow(Path(options.output)) == sorted(old + new)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trigger": "nonsense"}, r"archive cannot start: \[INVALID_INTERVAL_FORMAT"),
        (
            {"source_options": {"startingOffsets": "nonsense"}},
            "archive (stopped|cannot start): .*nonsense",
        ),
    ],
)
def test_what_spark_refuses_is_one_line(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    options: ArchiveOptions,
    wrong: dict[str, object],
    said: str,
) -> None:
    run = replace(options, subscribe=new_topic(1), **wrong)  # type: ignore[arg-type]
    with pytest.raises(JobError, match=said) as raised:
        archive(spark, run)
    assert "\n" not in str(raised.value)


@pytest.mark.long_spark
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_the_batch_with_the_summary(
    bootstrap: str,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """They printed Java's traces and ended with 143 and 1. Ctrl-C goes to the whole group."""
    topic, records = new_topic(1), sent(range(50), 1)
    produce(topic, records)
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic, "--output", "out"]
    arguments += ["--every", "1 second", "--progress", "json"]
    with job(*arguments, folder=tmp_path) as run:
        assert run.stderr is not None
        batch = json.loads(run.stderr.readline())
        assert (batch["rows"], batch["lag"], batch["end_offsets"]) == (50, 0, {topic: {"0": 50}})
        if number is signal.SIGINT:
            os.killpg(run.pid, number)
        else:
            run.send_signal(number)
        printed, errors = run.communicate(timeout=60)
    assert (run.returncode, errors) == (0, "")
    assert printed.startswith(f"archived 50 records of {topic} to out in 1 batch and ")
    assert seen_by_pyarrow(tmp_path / "out") == expected(topic, records, 1)


@pytest.mark.long_spark
def test_spark_submit_with_a_bundle_and_the_file_alone(
    bootstrap: str, new_topic: Callable[[int], str], produce: Callable[..., None], tmp_path: Path
) -> None:
    import pyspark

    topic, records = new_topic(1), sent(range(40), 1)
    produce(topic, records)
    subprocess.run(
        [sys.executable, "-m", "spark_jobs", "bundle", str(tmp_path / "pack.zip")], cwd=ROOT
    )
    shutil.copy(ROOT / "spark_jobs" / "__main__.py", tmp_path / "main.py")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--packages", connector_package()]
    command += ["--py-files", "pack.zip", "main.py", "archive", "--bootstrap-servers", bootstrap]
    command += ["--topics", topic, "--output", "out"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert "archived 40 records" in done.stdout
    assert not (tmp_path / "artifacts").exists()
    assert seen_by_pyarrow(tmp_path / "out") == expected(topic, records, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments_any_reader_sees_each_record_once(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Readers that are not Spark saw rows of cut-off batches twice, and torn files."""
    topic, output = new_topic(2), tmp_path / "out"
    records = sent(range(8000), 2)
    produce(topic, records, "gzip")
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--output", str(output), "--max-offsets-per-trigger", "100"]
    source = random.Random(11)
    commits = output / "_archive" / "commits"
    for _ in range(8):
        reached = max((int(path.stem) for path in commits.glob("[0-9]*")), default=0)
        with job(*arguments) as run:
            while max((int(path.stem) for path in commits.glob("[0-9]*")), default=0) < reached + 3:
                assert run.poll() is None, run.communicate()
                time.sleep(0.02)
            time.sleep(source.random())
            assert run.poll() is None, "it ended before it could be killed"
        rows = seen_by_pyarrow(output)
        assert len(rows) == len(set(rows))
    with job(*arguments) as run:
        _, errors = run.communicate(timeout=500)
    assert run.returncode == 0, errors
    assert seen_by_pyarrow(output) == seen_by_spark(spark, output) == expected(topic, records, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_of_more_batches_than_spark_remembers(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    options: ArchiveOptions,
) -> None:
    topic = new_topic(1)
    produce(topic, sent(range(1100), 1))
    run = replace(options, subscribe=topic, source_options={"maxOffsetsPerTrigger": "10"})
    summary = archive(spark, run)
    assert (summary.totals.rows, summary.totals.batches) == (1100, 110)
