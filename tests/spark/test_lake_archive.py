"""The archive job with tables of Delta Lake and Iceberg: rows are the records, each once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.archive.commits import Commit, add_commit
from spark_jobs.archive.job import describe_check
from spark_jobs.archive.stores import store_of
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.java import java_problem
from spark_jobs.lake import tables
from spark_jobs.lake.notes import partitions_of
from spark_jobs.storage import Folder, absolute
from tests.clients.adapters import ConfluentAdapter
from tests.spark.test_archive import Row, expected, job, row, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]


class Killed(BaseException):
    """The driver ends here."""


def rows_of(spark: SparkSession, options: ArchiveOptions) -> list[Row]:
    frame = spark.read.format(options.format).load(options.output)
    return sorted(row(values.asDict(recursive=True)) for values in frame.collect())


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_table(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
) -> None:
    """Kills before and behind the table's commit, a lost checkpoint, a topic that is created again:
    each record is in the table once.
    """
    topic = new_topic(2)
    records = sent(range(120), 2)
    options = ArchiveOptions(
        output=str(tmp_path / "a lake" / "ta.b-le"),
        bootstrap_servers=bootstrap,
        subscribe=topic,
        format=format_,
        layout=("topic", "date", "partition"),
    )
    adapter = ConfluentAdapter(bootstrap)
    adapter.produce(topic, records[:40], codec="none", idempotent=True)
    assert "begins a new archive" in describe_check(options)
    summary = archive(spark, options)
    assert (summary.totals.rows, summary.archived) == (40, 40)
    assert summary.to_text(options) == (
        f"archived 40 records of {topic} to {options.output} in 1 batch"
    )
    assert rows_of(spark, options) == expected(topic, records[:40], 2)

    adapter.produce(topic, records[40:80], codec="none", idempotent=True)
    kill_at_the_commit(spark, options, monkeypatch, is_behind=False)
    assert rows_of(spark, options) == expected(topic, records[:40], 2)
    kill_at_the_commit(spark, options, monkeypatch, is_behind=True)
    assert rows_of(spark, options) == expected(topic, records[:80], 2)
    newest = store_of(options).newest()
    assert newest is not None and newest.positions == {topic: {0: 40, 1: 40}}
    adapter.produce(topic, records[80:], codec="none", idempotent=True)
    summary = archive(spark, options)
    assert summary.archived == 120
    assert rows_of(spark, options) == expected(topic, records, 2)

    # The checkpoint is lost, and with it the copies of the table's notes.
    shutil.rmtree(f"{options.output}.checkpoint")
    shutil.rmtree(Path(options.output) / "_archive")
    with pytest.raises(StartRefused, match="holds 120 records and its checkpoint"):
        describe_check(options)
    assert archive(spark, replace(options, resume_from="output")).totals.rows == 0
    assert archive(spark, replace(options, resume_from="earliest")).archived == 120
    assert rows_of(spark, options) == expected(topic, records, 2)
    with pytest.raises(StartRefused, match="has the layout topic,date,partition"):
        describe_check(replace(options, layout=("topic",)))


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_another_layout_before_the_first_record(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    format_: str,
) -> None:
    topic, records = new_topic(1), sent(range(30), 1)
    options = ArchiveOptions(
        output=str(tmp_path / "out"),
        bootstrap_servers=bootstrap,
        subscribe=topic,
        format=format_,
        layout=("topic", "date"),
    )
    archive(spark, options)
    assert options.lake is not None
    folder = Folder(options.output_uri)
    wanted = {
        ("topic", "hour"): (["topic", "hour"], ["`topic`", "hours(`timestamp`)"]),
        (): ([], []),
        ("partition",): (["partition"], ["`partition`"]),
    }
    for layout, partitions in wanted.items():
        archive(spark, replace(options, layout=layout))
        assert partitions_of(folder, options.lake) == partitions[format_ == "iceberg"]
    versions = len([*(tmp_path / "out").glob("*/*.json")])
    archive(spark, replace(options, layout=layout))  # nothing is another: the table stays
    assert len([*(tmp_path / "out").glob("*/*.json")]) == versions
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    assert archive(spark, replace(options, layout=layout)).archived == 30
    assert rows_of(spark, options) == expected(topic, records, 1)


def kill_at_the_commit(
    spark: SparkSession,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_behind: bool,
) -> None:
    """The driver is killed before or behind the table's commit of a batch. Spark's commit log and
    the copy of the note do not know of it.
    """
    kind = tables.DeltaTable if options.format == "delta" else tables.IcebergTable
    append = kind.append

    def killed(*arguments: object) -> None:
        if is_behind:
            append(*arguments)  # type: ignore[arg-type]
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "append", killed)
        with pytest.raises(JobError, match="archive stopped: killed"):
            archive(spark, options)


def test_a_second_driver_at_the_commit(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delta skips a commit whose number it has, so the driver that is late changes nothing."""
    topic, records = new_topic(1), sent(range(30), 1)
    options = ArchiveOptions(
        output=str(tmp_path / "out"),
        bootstrap_servers=bootstrap,
        subscribe=topic,
        format="delta",
        layout=("topic", "hour"),
    )
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    append = tables.DeltaTable.append

    def late(table: tables.DeltaTable, frame: object, note: tables.Note, names: object) -> None:
        other = tables.Note(note.number, note.text.replace('"query":1', '"query":7'))
        append(table, frame, other, names)  # type: ignore[arg-type]
        append(table, frame, note, names)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tables.DeltaTable, "append", late)
        with pytest.raises(StartRefused, match=r"another run writes to .*out: this one ends"):
            archive(spark, options)
    assert rows_of(spark, options) == expected(topic, records, 1)
    frame = spark.read.format("delta").load(options.output)
    hours = {(values.hour, values.timestamp.hour) for values in frame.collect()}
    assert len(hours) > 1 and all(ours == sparks for ours, sparks in hours)


def test_outputs_of_another_kind(
    tmp_path: Path, bootstrap: str, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(1)
    options = ArchiveOptions(
        output=str(tmp_path / "out"), bootstrap_servers=bootstrap, subscribe=topic, format="delta"
    )
    out = tmp_path / "out"
    (out / "metadata").mkdir(parents=True)
    with pytest.raises(StartRefused, match=r"what archive did not write \(metadata\)"):
        describe_check(options)
    (out / "metadata" / "v1.metadata.json").write_text("{}")
    with pytest.raises(StartRefused, match="holds a table, not files of Parquet"):
        describe_check(replace(options, format="parquet"))
    add_commit(Folder(absolute(str(out))), Commit(1, "c", 1, 0, (), {"t": {0: 5}}, records=5))
    with pytest.raises(StartRefused, match="is no table of Delta Lake"):
        describe_check(options)
    shutil.rmtree(out / "metadata")
    with pytest.raises(StartRefused, match="has lost its table"):
        describe_check(options)


def test_old_metadata_of_iceberg_is_deleted(
    lake_spark: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    enabled, maximum = tables.METADATA_LIMITS
    table = tables.IcebergTable(Folder(absolute(str(tmp_path / "t"))))
    table.create(spark, [tables.Column("a", "INT")], [])
    name = table.name(spark)
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{enabled}', '{maximum}')")
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{maximum}'='3')")
    table.limit_metadata(spark)  # as for a table from before
    for number in range(8):
        table.append(spark.createDataFrame([(number,)], "a int"), tables.Note(number, "{}"), {})
    versions = [*(tmp_path / "t" / "metadata").glob("v*.metadata.json")]
    assert len(versions) == 1 + 3
    assert sorted(row.a for row in spark.table(name).collect()) == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_the_command_killed_behind_commits(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    format_: str,
) -> None:
    """kill -9 of driver and executors as soon as the table has one more commit, twice."""
    topic, records = new_topic(2), sent(range(400), 2)
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    options = ArchiveOptions(output=str(tmp_path / "out"), format=format_)
    log = tmp_path / "out" / ("_delta_log" if format_ == "delta" else "metadata")
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--output", "out", "--format", format_, "--max-offsets-per-trigger", "60"]

    def commits() -> int:
        return len([*log.glob("[0-9v]*.json")])

    for _ in range(2):
        before = commits()
        with job(*arguments, folder=tmp_path) as run:
            while commits() < before + 2:
                assert run.poll() is None, run.communicate()
                time.sleep(0.005)
        assert commits() < 9, "it ended before it could be killed"
    with job(*arguments, folder=tmp_path) as run:
        printed, errors = run.communicate(timeout=900)
    assert (run.returncode, errors) == (0, "")
    assert printed.startswith("archived ") and printed.count("\n") == 1
    assert rows_of(spark, options) == expected(topic, records, 2)
