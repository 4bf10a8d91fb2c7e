"""Spark's standard Kafka source on our topics: batch, stream, and from a point in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]

BASE_MS = 1_700_000_000_000


def fill(bootstrap: str, topic: str, partitions: int, numbers: range, codec: str = "lz4") -> None:
    records = [
        Sent(
            b"key-%d" % n,
            b"value-%d" % n,
            (("number", b"%d" % n),),
            BASE_MS + n * 1000,
            n % partitions,
        )
        for n in numbers
    ]
    ConfluentAdapter(bootstrap).produce(topic, records, codec=codec, idempotent=True)


def rows(frame: DataFrame) -> list[tuple[int, int, int, bytes, bytes]]:
    """(partition, offset, timestamp in ms, key, value) of every row, sorted."""
    return sorted(
        (
            row.partition,
            row.offset,
            round(row.timestamp.timestamp() * 1000),
            bytes(row.key),
            bytes(row.value),
        )
        for row in frame.select("partition", "offset", "timestamp", "key", "value").collect()
    )


def expected(partitions: int, numbers: range) -> list[tuple[int, int, int, bytes, bytes]]:
    return sorted(
        (n % partitions, n // partitions, BASE_MS + n * 1000, b"key-%d" % n, b"value-%d" % n)
        for n in numbers
    )


def reader_options(bootstrap: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}


def test_batch_reads_everything(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(3)
    fill(bootstrap, topic, 3, range(300))
    frame = spark.read.format("kafka").options(**reader_options(bootstrap, topic)).load()
    assert rows(frame) == expected(3, range(300))
    (row,) = frame.where("offset = 7 and partition = 1").select("headers").collect()
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("number", b"22")]


def test_batch_reads_a_range_of_offsets(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(1)
    fill(bootstrap, topic, 1, range(50), codec="zstd")
    frame = (
        spark.read.format("kafka")
        .options(**reader_options(bootstrap, topic))
        .option("startingOffsets", json.dumps({topic: {"0": 11}}))
        .option("endingOffsets", json.dumps({topic: {"0": 42}}))
        .load()
    )
    assert rows(frame) == expected(1, range(11, 42))


def test_batch_starts_at_a_timestamp(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 2, range(100), codec="gzip")
    starts = {topic: {"0": BASE_MS + 20_000, "1": BASE_MS + 70_500}}
    frame = (
        spark.read.format("kafka")
        .options(**reader_options(bootstrap, topic))
        .option("startingOffsetsByTimestamp", json.dumps(starts))
        .load()
    )
    wanted = [row for row in expected(2, range(100)) if row[2] >= starts[topic][str(row[0])]]
    assert rows(frame) == wanted
    assert len(wanted) == 40 + 15


def test_stream_takes_every_record_once_over_restarts(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    seen: list[tuple[int, int, int, bytes, bytes]] = []

    def run_once() -> None:
        query = (
            spark.readStream.format("kafka")
            .options(**reader_options(bootstrap, topic))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "64")
            .load()
            .writeStream.foreachBatch(lambda frame, _: seen.extend(rows(frame)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    fill(bootstrap, topic, 2, range(200))
    run_once()
    assert sorted(seen) == expected(2, range(200))
    fill(bootstrap, topic, 2, range(200, 260), codec="snappy")
    run_once()
    run_once()
    assert sorted(seen) == expected(2, range(260))


def test_stream_starts_at_a_timestamp(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(bootstrap, topic, 1, range(60))
    query = (
        spark.readStream.format("kafka")
        .options(**reader_options(bootstrap, topic))
        .option("startingOffsetsByTimestamp", json.dumps({topic: {"0": BASE_MS + 45_000}}))
        .load()
        .writeStream.format("memory")
        .queryName("from_time")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert rows(spark.table("from_time")) == expected(1, range(45, 60))
