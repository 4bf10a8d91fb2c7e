"""The format `kbroker` with Spark on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

BASE_MS = 1_700_000_000_000


def test_batch_and_stream(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    from spark_jobs.data_source.source import register

    register(spark)
    topic = new_topic(2)

    def produce(numbers: range) -> None:
        sent = [Sent(None, b"%d" % n, (), BASE_MS + n, n % 2) for n in numbers]
        ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)

    produce(range(10))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    frame = spark.read.format("kbroker").options(**options).option("includeHeaders", "true").load()
    kafka = spark.read.format("kafka").options(**options).option("includeHeaders", "true").load()
    assert frame.schema.simpleString() == kafka.schema.simpleString()
    assert sorted(frame.collect(), key=str) == sorted(kafka.collect(), key=str)

    sizes: list[int] = []

    def run() -> None:
        stream = spark.readStream.format("kbroker").options(**options)
        query = (
            stream.option("maxOffsetsPerTrigger", "4")
            .load()
            .writeStream.foreachBatch(lambda rows, _: sizes.append(rows.count()))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .start()
        )
        query.processAllAvailable()
        query.stop()

    run()
    assert (sum(sizes), max(sizes)) == (10, 4)
    produce(range(10, 17))
    run()
    assert (sum(sizes), max(sizes)) == (17, 4)
