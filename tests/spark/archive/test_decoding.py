"""`archive --decode` with Spark on a real broker: a table of each topic, and dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.archive.job import describe_check
from spark_jobs.decoding.options import DecodeOptions
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.restore.job import restore
from spark_jobs.restore.options import RestoreOptions
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.decoding.protobuf_bytes import content, number, shop
from tests.spark.decoding.test_avro import encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

BASE_MS = 1_700_000_000_000
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "name", "type": ["null", "string"], "default": None}],
}  # type: ignore[misc]
CHANGED = {**FIRST, "fields": [{"name": "id", "type": "string"}]}


def framed(schema: object, number: int, value: object) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + encoded(schema, value)


@pytest.fixture
def produce(bootstrap: str) -> Callable[..., None]:
    def call(topic: str, *values: bytes | None) -> None:
        sent = [Sent(b"k", value, (), BASE_MS, 0) for value in values]
        ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)

    return call


@pytest.fixture
def run(bootstrap: str, tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(
        output=str(tmp_path / "out"), bootstrap_servers=bootstrap, layout=("topic",)
    )


def rows(spark: SparkSession, folder: str, column: str = "value") -> list[Any]:
    """By offset, as Python values."""
    frame = spark.read.option("mergeSchema", "true").parquet(folder)
    found = frame.orderBy("offset").select("offset", column).collect()
    return [(row[0], row[1].asDict() if hasattr(row[1], "asDict") else row[1]) for row in found]


def test_schemas_that_change(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    run: ArchiveOptions,
    tmp_path: Path,
) -> None:
    """Columns are added and none is dropped; what does not fit is a dead letter."""
    orders, other = new_topic(1), new_topic(1)
    registry = tmp_path / "schemas"
    registry.mkdir()
    for name, schema in (("1", FIRST), ("2", SECOND), ("3", CHANGED)):
        (registry / f"{name}.avsc").write_text(json.dumps(schema))
    decoding = DecodeOptions("confluent-avro", registry=str(registry))
    run = replace(run, subscribe=f"{orders},{other}", decoding=decoding)
    produce(orders, framed(FIRST, 1, {"id": 1}), b"no avro", None)
    produce(other, framed(CHANGED, 3, {"id": "x"}))
    first = archive(spark, run)
    assert (first.totals.rows, first.archived, first.dead) == (4, 4, 1)
    assert first.to_text(run).endswith("; 1 could not be decoded")
    assert rows(spark, f"{run.output}/topic={orders}") == [(0, {"id": 1}), (2, None)]

    produce(
        orders,
        framed(SECOND, 2, {"id": 2, "name": "b"}),
        framed(CHANGED, 3, {"id": "c"}),
        framed(FIRST, 9, {"id": 4}),
        framed(FIRST, 1, {"id": 5}),
    )
    second = archive(spark, run)
    assert (second.totals.rows, second.archived, second.dead) == (4, 8, 2)
    assert rows(spark, f"{run.output}/topic={orders}") == [
        (0, {"id": 1, "name": None}),
        (2, None),
        (3, {"id": 2, "name": "b"}),
        (6, {"id": 5, "name": None}),
    ]
    assert rows(spark, f"{run.output}/topic={other}") == [(0, {"id": "x"})]
    dead = spark.read.parquet(f"{run.output}/_dlq/topic={orders}").orderBy("offset").collect()
    why = [
        bytes(header["value"]).decode()
        for row in dead
        for header in row["headers"]
        if header["key"] == "__connect.errors.exception.message"
    ]
    assert [row["offset"] for row in dead] == [1, 4, 5]
    assert why[0] == "the value does not begin with a byte 0 and the id of a schema"
    assert why[1].startswith("schema 3 does not fit the table: value.id is string, and long")
    assert why[2].endswith("has no schema 9 (no file 9.avsc)")

    with pytest.raises(StartRefused, match="with --decode confluent-avro, and this is none"):
        archive(spark, replace(run, decoding=DecodeOptions()))
    with pytest.raises(JobError, match="its values are data, not the bytes that they were"):
        restore(spark, RestoreOptions(to_topic="t", archive=run.output, topic=orders))
    # Everything again: dead letters are not there twice either.
    again = archive(spark, replace(run, resume_from="earliest"))
    assert (again.archived, again.dead) == (8, 3)
    assert spark.read.parquet(f"{run.output}/_dlq/topic={orders}").count() == 3


def test_ten_thousand_values_that_cannot_be_decoded(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    run: ArchiveOptions,
) -> None:
    topic = new_topic(1)
    produce(topic, *(b"{" if n % 11 else b'{"id": %d}' % n for n in range(11_000)))
    run = replace(run, subscribe=topic, decoding=DecodeOptions("json", "id long NOT NULL"))
    summary = archive(spark, run)
    assert (summary.archived, summary.dead) == (11_000, 10_000)
    found = rows(spark, f"{run.output}/topic={topic}")
    assert found == [(n, {"id": n}) for n in range(0, 11_000, 11)]
    assert spark.read.parquet(f"{run.output}/_dlq").count() == 10_000
    with pytest.raises(JobError, match="--schema id nonsense"):
        archive(spark, replace(run, decoding=DecodeOptions("json", "id nonsense")))


def test_each_kind_of_values(
    spark: SparkSession,
    new_topic: Callable[[int], str],
    produce: Callable[..., None],
    run: ArchiveOptions,
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.desc").write_bytes(shop())
    (tmp_path / "order.avsc").write_text(json.dumps(SECOND))
    at = content(7, number(1, 1_700_000_000))
    for decoding, value, column, expected in (
        (DecodeOptions("string"), "ü".encode(), "value", "ü"),
        (DecodeOptions("json"), b'{"a":1}', "value", '{"a":1}'),
        (
            DecodeOptions("avro", schema_file=str(tmp_path / "order.avsc")),
            encoded(SECOND, {"id": 7, "name": None}),
            "value",
            {"id": 7, "name": None},
        ),
        (
            DecodeOptions("protobuf", descriptor_file=str(tmp_path / "shop.desc"), message="Order"),
            number(1, 7) + at + content(6, content(1, "a") + number(2, 3)),
            "struct(value.id, value.counts, unix_seconds(value.at) at) x",
            {"id": 7, "counts": {"a": 3}, "at": 1_700_000_000},
        ),
    ):
        topic = new_topic(1)
        output = str(tmp_path / f"out-{decoding.decode}")
        produce(topic, value, b"\xff", None)
        one = replace(run, output=output, subscribe=topic, decoding=decoding)
        describe_check(one)
        summary = archive(spark, one)
        assert (summary.archived, summary.dead) == (3, 1), decoding
        frame = spark.read.parquet(f"{output}/topic={topic}").orderBy("offset")
        first, last = frame.selectExpr(column).collect()
        found = first[0].asDict() if hasattr(first[0], "asDict") else first[0]
        assert found == expected
        assert last[0] is None or last[0]["id"] is None


def test_a_registry_that_is_down_is_one_line(
    new_topic: Callable[[int], str], run: ArchiveOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.decoding import registry

    monkeypatch.setattr(registry, "PAUSE_S", 0.0)
    decoding = DecodeOptions("confluent-avro", registry="http://127.0.0.1:9")
    with pytest.raises(JobError, match=r"http://127.0.0.1:9 cannot be asked: Connection refused$"):
        describe_check(replace(run, subscribe=new_topic(1), decoding=decoding))
