"""The format `kbroker` with Spark on a real broker."""

from __future__ import annotations

import re
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
DOCS = Path(__file__).resolve().parents[3] / "docs" / "data-source.md"


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


def test_the_example(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic(1)
    sent = [Sent(None, b"v", (), BASE_MS, 0)] * 3
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)
    (code,) = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    code = code.replace("localhost:9092", bootstrap).replace('"orders"', f'"{topic}"')
    exec(compile(code, "data-source.md", "exec"), {"spark": spark})
    assert capsys.readouterr().out == "3\n"
