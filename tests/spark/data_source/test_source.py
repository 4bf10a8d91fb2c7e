"""The format `kbroker` with Spark on a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.copying.records import records_of

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


def test_batch_reads_with_nothing_to_read(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str]
) -> None:
    from spark_jobs.data_source.source import register

    register(spark)
    topic = new_topic(2)
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic)
    assert reader.load().count() == 0
    sent = [Sent(None, b"v", (), BASE_MS, n % 2) for n in range(10)]
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)
    offsets = f'{{"{topic}":{{"0":3,"1":5}}}}'
    same = reader.options(startingOffsets=offsets, endingOffsets=offsets)
    assert same.load().collect() == []
    with pytest.raises(Exception, match="startingOffsets of a batch read cannot be latest"):
        reader.option("startingOffsets", "latest").load().count()


def test_a_batch_read_of_records_that_were_deleted(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str]
) -> None:
    """As from Spark's source: see `test_source_guide`."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    from spark_jobs.data_source.source import register

    register(spark)
    topic = new_topic(2)
    sent = [Sent(None, b"%d" % n, (), BASE_MS, n % 2) for n in range(20)]
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(20)

    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.options(subscribe=topic, failOnDataLoss="false")
    reader = reader.option("startingOffsets", f'{{"{topic}":{{"0":0,"1":8}}}}')
    found = sorted((row.partition, row.offset) for row in reader.load().collect())
    assert found == [*((0, n) for n in range(6, 10)), (1, 8), (1, 9)]


def test_batch_and_stream_writes(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """A batch that Spark repeats, as after a kill behind the commit, is skipped."""
    from spark_jobs.data_source.source import register

    register(spark)
    source, target = new_topic(2), new_topic(3)
    checkpoint = tmp_path / "cp"

    def produce(numbers: range) -> None:
        sent = [Sent(b"%d" % (n % 5), b"%d" % n, (), BASE_MS + n, n % 2) for n in numbers]
        ConfluentAdapter(bootstrap).produce(source, sent, codec="none", idempotent=True)

    def run() -> None:
        frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        frame = frame.option("subscribe", source).option("startingOffsets", "earliest")
        rows = frame.load().selectExpr("key", "cast(value as string) value", "timestamp")
        writer = rows.writeStream.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", target).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def written() -> list[tuple[bytes, bytes, int]]:
        return sorted(
            (bytes(r.key or b""), bytes(r.value or b""), r.timestamp)
            for records in records_of(bootstrap, target, 3)
            for r in records
        )

    def expected(count: int) -> list[tuple[bytes, bytes, int]]:
        return sorted((b"%d" % (n % 5), b"%d" % n, BASE_MS + n) for n in range(count))

    produce(range(20))
    run()
    assert written() == expected(20)
    produce(range(20, 30))
    run()
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    produce(range(30, 35))
    run()
    assert written() == expected(35)
    assert not (checkpoint / "kbroker-staging").exists()

    frame = spark.createDataFrame([("a", target), ("b", target)], "value string, topic string")
    batch = frame.write.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    batch.option("topics", target).mode("append").save()
    assert len(written()) == 37
    with pytest.raises(Exception, match="a topic cannot be overwritten: mode"):
        batch.mode("overwrite").save()


def test_the_examples(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    topic, target = new_topic(1), new_topic(1)
    sent = [Sent(None, b"v", (), BASE_MS, 0)] * 3
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    code = "".join(blocks).replace("localhost:9092", bootstrap)
    code = code.replace('"orders"', f'"{topic}"').replace('"copies"', f'"{target}"')
    exec(compile(code, "data-source.md", "exec"), {"spark": spark})
    assert capsys.readouterr().out == "3\n"
    assert [record.value for record in records_of(bootstrap, target, 1)[0]] == [b"v"] * 6
