"""Options of Spark's guide on Kafka as tables: what Spark reads and writes with each of them.

Left out are those of the whole process (`spark.kafka.consumer.cache.*`, `.producer.cache.*`,
`.consumer.fetchedData.cache.*`), which brokers see nothing of, and delegation tokens
(`spark.kafka.clusters.*`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

BASE_MS = 1_700_000_000_000
STEP_MS = 1000
PARTITIONS = 2
RECORDS = 20
"""Record n is in partition n % 2 at offset n // 2, n seconds behind BASE_MS."""
TOPIC, BOOTSTRAP = "TOPIC", "BOOTSTRAP"
"""In values, for those of the run."""
LATE_MS = BASE_MS + 100 * STEP_MS
EVEN, ODD = frozenset(range(0, RECORDS, 2)), frozenset(range(1, RECORDS, 2))
ALL = EVEN | ODD
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

NewTopic = Callable[[int], str]


@dataclass(frozen=True)
class Row:
    """What is read with an option. also: others that it needs. numbers: of the records; None if
    Spark refuses. tasks: how many there are then, 0 for any number.
    """

    option: str
    value: str
    numbers: frozenset[int] | None = ALL
    also: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 0

    def options(self, bootstrap: str, topic: str) -> dict[str, str]:
        """For a reader."""
        values = {"kafka.bootstrap.servers": BOOTSTRAP, **self.also, self.option: self.value}
        if not {"subscribe", "subscribePattern", "assign"} & values.keys():
            values["subscribe"] = TOPIC
        return {
            name: value.replace(TOPIC, topic).replace(BOOTSTRAP, bootstrap)
            for name, value in values.items()
        }


def by_partition(zero: int, one: int) -> str:
    return json.dumps({TOPIC: {"0": zero, "1": one}})


def numbers(zero: range, one: range) -> frozenset[int]:
    """Of the records at these offsets of the two partitions."""
    return frozenset({*(2 * offset for offset in zero), *(2 * offset + 1 for offset in one)})


SHARED = (
    Row("subscribe", TOPIC),
    Row("subscribePattern", f"{TOPIC}|none-[0-9]+"),
    Row("assign", json.dumps({TOPIC: [1]}), ODD),
    Row("kafka.bootstrap.servers", f"127.0.0.1:9,{BOOTSTRAP}"),
    Row("startingOffsets", by_partition(4, -2), numbers(range(4, 10), range(10))),
    Row("startingTimestamp", str(BASE_MS + 7 * STEP_MS), frozenset(range(7, RECORDS))),
    Row(
        "startingOffsetsByTimestamp",
        by_partition(BASE_MS + 4 * STEP_MS, BASE_MS + 15 * STEP_MS),
        numbers(range(2, 10), range(7, 10)),
    ),
    Row(
        "startingOffsetsByTimestampStrategy",
        "error",
        None,
        {"startingOffsetsByTimestamp": by_partition(BASE_MS, LATE_MS)},
    ),
    Row(
        "startingOffsetsByTimestampStrategy",
        "latest",
        EVEN,
        {"startingOffsetsByTimestamp": by_partition(BASE_MS, LATE_MS)},
    ),
    Row("minPartitions", "6", tasks=6),
    Row("maxRecordsPerPartition", "4"),
    Row("failOnDataLoss", "true"),
    Row("kafkaConsumer.pollTimeoutMs", "20000"),
    Row("fetchOffset.numRetries", "1"),
    Row("fetchOffset.retryIntervalMs", "5"),
    Row("groupIdPrefix", "prefix"),
    Row("kafka.group.id", "group"),
    Row("includeHeaders", "true"),
    Row("kafka.max.partition.fetch.bytes", "100"),
    Row("kafka.isolation.level", "read_committed"),
    Row("kafka.check.crcs", "true"),
)
BATCH = (
    *SHARED,
    Row("startingOffsets", "latest", None),
    Row("endingOffsets", by_partition(3, -1), numbers(range(3), range(10))),
    Row("endingTimestamp", str(BASE_MS + 7 * STEP_MS), frozenset(range(7))),
    Row(
        "endingOffsetsByTimestamp",
        by_partition(BASE_MS + 4 * STEP_MS, LATE_MS),
        numbers(range(2), range(10)),
    ),
    Row("kafka.auto.offset.reset", "earliest", None),
    Row("kafka.enable.auto.commit", "true", None),
)
STREAM = (
    *SHARED,
    Row("startingOffsets", "latest", frozenset()),
    Row("maxOffsetsPerTrigger", "8"),
    Row("maxRecordsPerPartition", "3", tasks=8),
    Row("endingOffsets", "latest", None),
    Row("kafka.auto.offset.reset", "earliest", None),
    Row("kafka.enable.auto.commit", "true", None),
)
GUIDE = {
    *("assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsets"),
    *("endingOffsetsByTimestamp", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *("groupIdPrefix", "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy"),
}


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"guide-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(20)
    fill(bootstrap, name, range(RECORDS))
    return name


def fill(bootstrap: str, topic: str, those: range) -> None:
    records = [
        Sent(b"%d" % n, b"v", (("n", b"%d" % n),), BASE_MS + n * STEP_MS, n % PARTITIONS)
        for n in those
    ]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.key)) for row in frame.collect())


def test_the_tables_are_sparks_guide() -> None:
    """Two options are of the test of a batch that waits, one of the test of lost records."""
    rows = {row.option for row in (*BATCH, *STREAM)}
    assert rows >= GUIDE - {"minOffsetsPerTrigger", "maxTriggerDelay"}


@pytest.mark.parametrize("row", BATCH, ids=lambda row: f"{row.option}={row.value}")
def test_batch(spark: SparkSession, bootstrap: str, topic: str, row: Row) -> None:
    reader = spark.read.format("kafka").options(**row.options(bootstrap, topic))
    if row.numbers is None:
        with pytest.raises(Exception, match=r"."):
            reader.load().collect()
        return
    frame = reader.load()
    headers = ("headers",) if row.option == "includeHeaders" else ()
    assert tuple(frame.columns) == (*COLUMNS, *headers)
    assert numbers_of(frame) == sorted(row.numbers)
    if row.tasks:
        assert frame.rdd.getNumPartitions() == row.tasks
    if headers:
        assert all([tuple(row.headers[0])] == [("n", row.key)] for row in frame.collect())


@pytest.mark.parametrize("row", STREAM, ids=lambda row: f"{row.option}={row.value}")
def test_stream(spark: SparkSession, bootstrap: str, topic: str, row: Row, tmp_path: Path) -> None:
    """From the earliest offset, if the option is not another start."""
    options = row.options(bootstrap, topic)
    if not {"startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"} & options.keys():
        options["startingOffsets"] = "earliest"
    batches: list[list[int]] = []
    tasks: list[int] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        batches.append(numbers_of(frame))
        tasks.append(frame.rdd.getNumPartitions())

    def run() -> None:
        writer = spark.readStream.format("kafka").options(**options).load().writeStream
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.foreachBatch(collect).trigger(availableNow=True).start().awaitTermination()

    if row.numbers is None:
        with pytest.raises(Exception, match=r"."):
            run()
        return
    run()
    assert sorted(number for batch in batches for number in batch) == sorted(row.numbers)
    if row.option == "maxOffsetsPerTrigger":
        assert [len(batch) for batch in batches] == [8, 8, 4]
    if row.tasks:
        assert tasks[0] == row.tasks


def test_a_batch_waits_for_its_records(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """minOffsetsPerTrigger, and no longer than maxTriggerDelay."""
    name, delay_s = new_topic(PARTITIONS), 4.0
    fill(bootstrap, name, range(10))
    ends: list[tuple[float, int]] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        ends.append((time.monotonic(), frame.count()))

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.options(subscribe=name, startingOffsets="earliest")
    reader = reader.options(minOffsetsPerTrigger="10", maxTriggerDelay=f"{delay_s:.0f}s")
    writer = reader.load().writeStream.option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(collect).start()
    try:
        wait_until(lambda: len(ends) == 1, 60, "the first batch")
        fill(bootstrap, name, range(10, 14))
        wait_until(lambda: len(ends) == 2, 60, "a batch of fewer records")
        fill(bootstrap, name, range(14, 30))
        wait_until(lambda: len(ends) == 3, 60, "a batch of enough records")
    finally:
        query.stop()
    assert [rows for _, rows in ends] == [10, 4, 16]
    assert ends[1][0] - ends[0][0] >= delay_s / 2


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_were_deleted(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, *, fails: bool
) -> None:
    """failOnDataLoss of a batch query whose first offset is no longer there."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    name = new_topic(PARTITIONS)
    fill(bootstrap, name, range(RECORDS))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 6)]).values():
        future.result(20)
    row = Row("failOnDataLoss", str(fails).lower(), also={"startingOffsets": by_partition(2, 9)})
    frame = spark.read.format("kafka").options(**row.options(bootstrap, name)).load()
    if fails:
        with pytest.raises(Exception, match=r"(?i)out of range|data.?loss|missing|may have been"):
            frame.collect()
    else:
        assert numbers_of(frame) == sorted(numbers(range(6, 10), range(9, 10)))


SINK: tuple[tuple[str, dict[str, str], dict[str, Any]], ...] = (
    ("topic", {"topic": TOPIC}, {}),
    ("a column topic", {}, {"topic": TOPIC}),
    ("the option topic wins", {"topic": TOPIC}, {"topic": "another"}),
    ("includeHeaders", {"topic": TOPIC, "includeHeaders": "true"}, {}),
    ("kafka.bootstrap.servers", {"topic": TOPIC, "kafka.bootstrap.servers": "127.0.0.1:9,B"}, {}),
    ("kafka.compression.type", {"topic": TOPIC, "kafka.compression.type": "zstd"}, {}),
    ("kafka.acks", {"topic": TOPIC, "kafka.acks": "1", "kafka.enable.idempotence": "false"}, {}),
    ("a column partition", {"topic": TOPIC}, {"partition": 1}),
)


@pytest.mark.parametrize(("what", "options", "columns"), SINK, ids=[what for what, *_ in SINK])
def test_sink(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    what: str,
    options: dict[str, str],
    columns: dict[str, Any],
) -> None:
    from pyspark.sql import functions as F

    name = new_topic(PARTITIONS)
    frame = spark.range(10, numPartitions=2).select(
        F.col("id").cast("string").alias("key"),
        F.lit("v").alias("value"),
        F.array(
            F.struct(
                F.lit("h").alias("key"), F.col("id").cast("string").cast("binary").alias("value")
            )
        ).alias("headers"),
        *(
            F.lit(name if value == TOPIC else value)
            .cast("int" if column == "partition" else "string")
            .alias(column)
            for column, value in columns.items()
        ),
    )
    if what != "includeHeaders":
        frame = frame.drop("headers")
    given = {"kafka.bootstrap.servers": bootstrap} | {
        key: value.replace(TOPIC, name).replace(",B", f",{bootstrap}")
        for key, value in options.items()
    }
    frame.write.format("kafka").options(**given).save()
    row = Row("includeHeaders", "true")
    rows = spark.read.format("kafka").options(**row.options(bootstrap, name)).load().collect()
    assert sorted(int(bytes(row.key)) for row in rows) == list(range(10))
    for row in rows:
        headers = [(header.key, bytes(header.value)) for header in row.headers or ()]
        assert headers == ([("h", bytes(row.key))] if what == "includeHeaders" else [])
        assert row.partition == columns.get("partition", row.partition)
