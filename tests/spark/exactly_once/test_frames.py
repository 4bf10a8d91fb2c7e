"""Rows that are arranged for the sink's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_jobs.exactly_once.frames import Layout, arranged
from spark_jobs.exactly_once.partitioner import partition_for
from spark_jobs.java import java_problem
from spark_jobs.session import shuffle_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

TOPICS = 3000


def test_rows_of_thousands_of_topics(spark: SparkSession) -> None:
    """Each by the partition count of its topic; those of a topic that the sink does not have pass,
    for the writer to report.
    """
    counts = {f"t{number}": number % 7 + 1 for number in range(TOPICS)}
    topics = ["t0", "t1", f"t{TOPICS - 1}", "unknown", None]
    rows = [(topic, b"key-%d" % n, b"value") for topic in topics for n in range(5)]
    frame = spark.createDataFrame(rows, "topic string, key binary, value binary")
    found = arranged(frame, Layout(topic=None, tasks=2), counts).collect()
    placed = {(row["topic"], bytes(row["key"]), row["partition"]) for row in found}
    assert placed == {
        (topic, key, partition_for(key, value, counts.get(topic or "", 1)))
        for topic, key, value in rows
    }


def test_a_partition_that_no_topic_has(spark: SparkSession) -> None:
    """Passes, for the writer to report."""
    partitions = [-(2**31), -1, 0, 1, 2**31 - 1]
    rows = [("b", partition, b"value") for partition in partitions]
    frame = spark.createDataFrame(rows, "topic string, partition int, value binary")
    for topic in (None, "b"):
        found = arranged(frame, Layout(topic=topic), {"a": 3, "b": 2}).collect()
        assert sorted(row["partition"] for row in found) == partitions


def test_tasks_of_a_session_that_does_not_say_how_many(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    given = spark.conf.get(name)
    assert shuffle_partitions(spark) == int(given or 0)
    spark.conf.unset(name)
    try:
        assert shuffle_partitions(spark) == 200
    finally:
        spark.conf.set(name, str(given))
