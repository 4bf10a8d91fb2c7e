"""`table` with Spark: rows are the newest records of their keys, in whatever order they come."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.archive.commits import NO_BATCH, Commit
from spark_jobs.archive.stores import Batch
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.java import java_problem
from spark_jobs.lake import tables
from spark_jobs.table.changes import changes_of, newest_of_each_key
from spark_jobs.table.deletions import Deletions
from spark_jobs.table.job import describe_check, table
from spark_jobs.table.options import TableOptions
from spark_jobs.table.store import TableStore, table_store
from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

BASE_MS = 1_700_000_000_000
Row = tuple[bytes, object]


def rows_of(spark: SparkSession, options: TableOptions, *columns: str) -> list[tuple[object, ...]]:
    frame = spark.read.format(options.format).load(options.output)
    rows = frame.select("kafka_key", *(columns or ("value",))).collect()
    return sorted(
        tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in rows
    )


def produce(bootstrap: str, topic: str, *rows: tuple[bytes | None, bytes | None]) -> None:
    records = [Sent(key, value, (), BASE_MS, 0) for key, value in rows]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_the_current_row_of_each_key(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
) -> None:
    """Killed before and behind the MERGE of a batch; then the same records once more."""
    topic = new_topic(1)
    options = TableOptions(topic, str(tmp_path / "customers"), format_, bootstrap_servers=bootstrap)
    produce(bootstrap, topic, (b"a", b"a1"), (b"b", b"b1"), (b"a", b"a2"), (b"x", None))
    assert describe_check(options) == f"{options.output}: begins a new table; topics {topic}"
    report = table(spark, options)
    assert report.to_text() == f"applied 4 records of {topic} to {options.output} in 1 batch"
    assert rows_of(spark, options) == [(b"a", b"a2"), (b"b", b"b1")]

    produce(bootstrap, topic, (b"b", None), (b"c", b"c1"), (b"a", b"a3"))
    kind = tables.DeltaTable if format_ == "delta" else tables.IcebergTable
    change = kind.change
    for is_behind in (False, True):

        def killed(*arguments: object, is_behind: bool = is_behind) -> None:
            if is_behind:
                change(*arguments)  # type: ignore[arg-type]
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(kind, "change", killed)
            with pytest.raises(JobError, match="table stopped: killed"):
                table(spark, options)
        now = [(b"a", b"a3"), (b"c", b"c1")] if is_behind else [(b"a", b"a2"), (b"b", b"b1")]
        assert rows_of(spark, options) == now
    produce(bootstrap, topic, (b"b", b"b9"))
    assert table(spark, options).applied == 8
    now = [(b"a", b"a3"), (b"b", b"b9"), (b"c", b"c1")]
    assert rows_of(spark, options) == now
    assert table(spark, replace(options, resume_from="earliest")).totals.rows == 8
    assert rows_of(spark, options) == now
    with pytest.raises(StartRefused, match="and this is --envelope none and --schema 'id long'"):
        describe_check(replace(options, schema="id long"))
    produce(bootstrap, topic, (None, b"no key"))
    with pytest.raises(JobError, match=f"the record {topic}-0 at offset 8 has no key"):
        table(spark, options)
    assert rows_of(spark, options) == now


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_rule_that_was_wrong(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    format_: str,
) -> None:
    """As long as nothing is in the table, the next start may have another."""
    topic = new_topic(1)
    options = TableOptions(
        topic,
        str(tmp_path / "customers"),
        format_,
        schema="id long, name string",
        bootstrap_servers=bootstrap,
    )
    if format_ == "delta":  # Iceberg takes any name
        with pytest.raises(JobError, match=r"/customers: .*nvalid character.*\S$"):
            table(spark, replace(options, schema="id long, `full name` string"))
    assert table(spark, replace(options, schema="id long, nmae string")).applied == 0
    produce(bootstrap, topic, (b"a", b'{"id": "a1", "name": "x", "at": {"zip-code": 7}}'))
    with pytest.raises(JobError, match="has a value that does not fit"):
        table(spark, options)
    schema = "id string, name string, at struct<`zip-code`: int>"
    right = replace(options, schema=schema)
    assert "goes on where it stopped" in describe_check(right)
    assert table(spark, right).applied == 1
    assert rows_of(spark, right, "id", "name", "at.`zip-code`") == [(b"a", "a1", "x", 7)]
    frame = spark.read.format(format_).load(options.output)
    assert "nmae" not in frame.columns
    assert table(spark, right).applied == 1
    with pytest.raises(StartRefused, match=r"was made with .*id string"):
        table(spark, options)


def test_a_tombstone_that_is_read_before_the_values_of_its_key(
    lake_spark: SparkSession,
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    """They are in the partition that the topic had before it got a second one."""
    topic = new_topic(2)
    fillers = [(b"f%d" % number, b"1", 0) for number in range(5)]
    before = [*fillers, (b"k", b"k1", 0)]
    records = [Sent(key, value, (), BASE_MS, partition) for key, value, partition in before]
    records.append(Sent(b"k", None, (), BASE_MS + 1, 1))
    records += [Sent(b"g%d" % number, b"1", (), BASE_MS + 2, 1) for number in range(5)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    options = TableOptions(
        topic,
        str(tmp_path / "t"),
        bootstrap_servers=bootstrap,
        source_options={"maxOffsetsPerTrigger": "6"},
    )
    assert table(spark, options).totals.batches == 2
    keys = [b"%c%d" % (letter, number) for letter in b"fg" for number in range(5)]
    assert rows_of(spark, options) == [(key, b"1") for key in keys]
    assert not any((tmp_path / "t" / "_archive" / "deletions").iterdir())


SCHEMA = "key binary, value binary, partition int, offset long, timestamp timestamp"
Record = tuple[bytes, bytes | None, int, int, datetime]


def record(key: bytes, value: object, offset: int, partition: int = 0, at: int = 0) -> Record:
    content = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return (key, content, partition, offset, datetime.fromtimestamp(BASE_MS / 1000 + at, UTC))


def event(operation: str, after: object, *, is_wrapped: bool = False) -> dict[str, object]:
    content = {"before": None, "after": after, "op": operation, "ts_ms": 1}
    return {"schema": {"type": "struct"}, "payload": content} if is_wrapped else content


def opened_store(spark: SparkSession, options: TableOptions) -> TableStore:
    store = table_store(options, spark)
    first = Commit(1, "c", 1, NO_BATCH, options.rule, {})
    store.add(first)
    store.finish(first)
    return store


def apply(
    spark: SparkSession,
    store: TableStore,
    batch_id: int,
    rows: list[Record],
    ends: dict[int, int] | None = None,
    latest: dict[int, int] | None = None,
) -> None:
    """latest: None where brokers cannot be asked, empty where they do not answer."""
    previous = store.newest()
    assert previous is not None
    frame: DataFrame = spark.createDataFrame(rows, SCHEMA)
    known = None if latest is None else {"t": latest} if latest else {}
    batch = Batch(batch_id, {"t": ends or {0: 9}}, {}, lambda: None, latest=known)
    store.write(frame, previous, batch)


def test_batches_out_of_order_change_nothing(
    lake_spark: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    """Change events of Debezium, with a schema beside them or without; newer batches first."""
    options = TableOptions(
        "t", str(tmp_path / "t"), schema="id long, name string", envelope="debezium"
    )
    store = opened_store(spark, options)
    newer = [
        record(b"1", event("u", {"id": 1, "name": "new"}), 8),
        record(b"2", event("c", {"id": 2, "name": "two"}, is_wrapped=True), 9),
    ]
    older = [
        record(b"1", event("c", {"id": 1, "name": "old"}), 2),
        record(b"2", event("d", None), 3),
        record(b"2", None, 4),
        record(b"3", event("r", {"id": 3, "name": "three"}), 5),
    ]
    apply(spark, store, 0, newer)
    apply(spark, store, 1, older)
    apply(spark, store, 2, newer)
    now = [(b"1", 1, "new"), (b"2", 2, "two"), (b"3", 3, "three")]
    assert rows_of(spark, options, "id", "name") == now
    apply(spark, store, 3, [record(b"3", event("d", None, is_wrapped=True), 10)])
    assert rows_of(spark, options, "id", "name") == now[:2]
    for wrong in (b"{", {"id": 1}, event("c", None), event("c", {"id": "x"}), b""):
        with pytest.raises(JobError, match="t-0 at offset 11 has a value that does not fit"):
            apply(spark, store, 4, [record(b"1", wrong, 11)])
    assert rows_of(spark, options, "id", "name") == now[:2]


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_key_whose_partition_changed(
    lake_spark: SparkSession, spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """The topic got a second partition, and the table reads that one's beginning early."""
    options = TableOptions("t", str(tmp_path / "t"), format_)
    store = opened_store(spark, options)
    kept = tmp_path / "t" / "_archive" / "deletions"
    latest = {0: 12, 1: 5}
    first = [
        record(b"k", None, 2, 1, at=200),
        record(b"old", b"o1", 10, at=100),
        record(b"n", b"n1", 1, 1, at=150),
        record(b"x", b"x1", 3),
        record(b"x", None, 4),
    ]
    # The brokers do not answer, and the run is killed before the MERGE.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store.table), "change", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            apply(spark, store, 0, [record(b"other", None, 1)], {0: 5, 1: 4}, {})
    apply(spark, store, 0, first, {0: 11, 1: 4}, {})
    now = [(b"n", b"n1"), (b"old", b"o1")]
    assert rows_of(spark, options) == now
    (note,) = kept.glob("*.json")
    assert json.loads(note.read_text()) == {"generation": 1, "until": {}}

    second = [record(b"k", b"older", 8, at=100), record(b"n", None, 9, at=140)]
    apply(spark, store, 1, [*second, record(b"other", b"1", 6)], {0: 11, 1: 4}, latest)
    now = [(b"n", b"n1"), (b"old", b"o1"), (b"other", b"1")]
    assert rows_of(spark, options) == now
    assert json.loads(note.read_text())["until"] == {"0": 12, "1": 5}
    # The newest of partition 0 is older than the row it replaces, and than that of partition 1.
    third = [record(b"old", b"o2", 11, at=50), record(b"old", b"o3", 4, 1, at=70)]
    apply(spark, store, 2, [*third, record(b"k", b"older", 8, at=100)], {0: 12, 1: 5}, latest)
    now = [(b"n", b"n1"), (b"old", b"o3"), (b"other", b"1")]
    assert rows_of(spark, options) == now
    assert not list(kept.iterdir())

    # All is read, or the brokers cannot be asked: nothing is kept.
    apply(spark, store, 3, [record(b"n", None, 5, 1, at=900)], {0: 12, 1: 6}, {0: 12, 1: 6})
    apply(spark, store, 4, [record(b"old", None, 6, 1, at=900)], {0: 12, 1: 7})
    assert rows_of(spark, options) == now[2:]
    assert not list(kept.iterdir())


def test_kept_deletions_are_merged(
    spark: SparkSession,
    lake_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table that catches up over many batches has few folders of them."""
    monkeypatch.setattr(Deletions.merge, "__defaults__", (2,))
    options = TableOptions("t", str(tmp_path / "t"))
    store = opened_store(spark, options)
    kept = tmp_path / "t" / "_archive" / "deletions"
    latest = {0: 12, 1: 5}
    for number, key in enumerate((b"a", b"b", b"c", b"a")):
        ends = {0: 1, 1: number + 1}
        apply(spark, store, number, [record(key, None, number, 1, at=200 + number)], ends, latest)
        latest = {0: 12 + number, 1: 5}
    # Of the commits 2 to 4 after the fifth, of which the deletion may be read again.
    assert sorted(note.stem for note in kept.glob("*.json")) == [f"{5:020d}", f"{5:020d}-merged-1"]
    merged = kept / f"{5:020d}-merged-1"
    assert json.loads(merged.with_name(f"{merged.name}.json").read_text())["until"] == {
        "0": 13,
        "1": 5,
    }
    assert sorted(row.kafka_key for row in spark.read.parquet(str(merged)).collect()) == [
        b"a",
        b"b",
        b"c",
    ]

    # A run that was killed before it had deleted what it merged.
    shutil.copytree(merged, kept / f"{2:020d}")
    shutil.copy(f"{merged}.json", kept / f"{2:020d}.json")
    Deletions(store.folder, 1).merge(spark, 5)
    assert sorted(note.stem for note in kept.glob("*.json")) == [f"{5:020d}", f"{5:020d}-merged-1"]

    older = [record(key, b"1", 2 + place, at=100) for place, key in enumerate((b"a", b"b", b"d"))]
    apply(spark, store, 4, older, {0: 5, 1: 4}, latest)
    assert rows_of(spark, options) == [(b"d", b"1")]
    apply(spark, store, 5, [record(b"c", b"1", 11, at=100)], {0: 15, 1: 5}, latest)
    assert rows_of(spark, options) == [(b"d", b"1")]
    assert not list(kept.iterdir())


def test_the_newest_of_a_batch(spark: SparkSession) -> None:
    """In one partition the offset decides, whatever the times say; between two the time does."""
    from spark_jobs.table.changes import AS_THEY_ARE

    rows = [
        record(b"a", b"1", 1, at=9),
        record(b"a", b"2", 2, at=1),
        record(b"a", b"3", 9, 1, at=0),
        record(b"b", b"4", 3),
        record(b"b", None, 4),
    ]
    for order in list(permutations(rows))[::20]:
        changes = changes_of(spark.createDataFrame(list(order), SCHEMA), AS_THEY_ARE, 1)
        newest = newest_of_each_key(changes, AS_THEY_ARE.columns(spark)).collect()
        found = {bytes(row["kafka_key"]): (row["value"], row["kafka_deleted"]) for row in newest}
        assert found == {b"a": (b"2", False), b"b": (None, True)}


@pytest.mark.parametrize("schema", ["id lang", "kafka_key string"])
def test_a_wrong_schema_is_one_line(spark: SparkSession, schema: str) -> None:
    from spark_jobs.table.changes import parse_schema

    with pytest.raises(JobError, match=r"^--schema") as raised:
        parse_schema(spark, schema)
    assert "\n" not in str(raised.value)
