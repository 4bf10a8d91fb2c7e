"""`kafka_sink` in `foreachBatch` of real queries: with read_committed each row is there once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.arrow_map import map_in_arrow
from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.exactly_once.frames import Layout, arranged, record_columns
from spark_jobs.exactly_once.partitioner import partition_for
from spark_jobs.exactly_once.sink import KafkaSink, kafka_sink
from spark_jobs.exactly_once.source_offsets import CheckpointOffsets
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.exactly_once.committed import Row, read_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PARTITIONS = 3
BASE_MS = 1_700_000_000_000
NewTopic = Callable[[int], str]


def sent(number: int) -> Sent:
    key = None if number % 7 == 0 else b"key-%d" % (number % 11)
    headers = () if number % 2 else (("number", b"%d" % number), ("empty", b""))
    return Sent(key, b"value-%d" % number, headers, BASE_MS + number, number % PARTITIONS)


def fill(bootstrap: str, topic: str, numbers: range) -> None:
    rows = [sent(number) for number in numbers]
    ConfluentAdapter(bootstrap).produce(topic, rows, codec="lz4", idempotent=True)


def row(number: int) -> Row:
    one = sent(number)
    return Row(one.key, one.value, one.headers, one.timestamp_ms or 0)


def by_key(numbers: range) -> list[set[Row]]:
    found: list[set[Row]] = [set() for _ in range(PARTITIONS)]
    for number in numbers:
        one = sent(number)
        found[partition_for(one.key, one.value, PARTITIONS)].add(row(number))
    return found


def source(spark: SparkSession, bootstrap: str, topic: str, batch: int = 100) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", batch)
        .load()
    )


def run(frame: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """A sink is closed afterwards, also if the query fails: Spark holds it until the JVM releases
    it, with the sockets of its connections.
    """
    query: StreamingQuery = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        if isinstance(sink, KafkaSink):
            sink.close()


def check(bootstrap: str, topic: str, numbers: range) -> None:
    found = read_committed(bootstrap, topic, PARTITIONS)
    assert [set(rows) for rows in found] == by_key(numbers)
    assert sum(map(len, found)) == len(numbers)


@pytest.mark.long_spark
def test_each_row_once_through_restarts_and_failures(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A run, another one, a batch whose commit Spark did not learn of, a task that fails."""
    source_topic, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    frame = source(spark, bootstrap, source_topic).drop("partition")
    sink = kafka_sink(bootstrap, topic=target, query_name=f"to-{target}")

    fill(bootstrap, source_topic, range(250))
    run(frame, sink, tmp_path / "cp")
    check(bootstrap, target, range(250))
    assert sink.last_batch is not None
    assert (sink.last_batch.batch_id, sink.last_batch.attempts) == (2, 1)

    def fails_after_its_commit(rows: DataFrame, batch_id: int) -> None:
        again(rows, batch_id)
        raise RuntimeError("the driver ends between the commit and Spark's commit log")

    again = pickle.loads(pickle.dumps(sink))
    fill(bootstrap, source_topic, range(250, 330))
    with closing(again), pytest.raises(Exception, match="between the commit"):
        run(frame, fails_after_its_commit, tmp_path / "cp")
    check(bootstrap, target, range(330))

    flag = tmp_path / "failed"
    failing = map_in_arrow(frame, FailOnce(str(flag)), frame.schema)
    fill(bootstrap, source_topic, range(330, 400))
    sink = kafka_sink(bootstrap, topic=target, query_name=f"to-{target}", compression="zstd")
    run(failing, sink, tmp_path / "cp")
    assert flag.exists()
    assert sink.last_batch is not None
    assert sink.last_batch.attempts == 2
    check(bootstrap, target, range(400))


class FailOnce:
    """Passes record batches on, and fails in the first task that has one."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if batch.num_rows and not Path(self.flag).exists():
                Path(self.flag).touch()
                raise RuntimeError("the first task fails")


def test_a_mirror_keeps_partitions_and_order(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """And the source's offsets are those of a consumer group."""
    source_topic, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    fill(bootstrap, source_topic, range(400))
    sink = kafka_sink(
        bootstrap,
        topic=target,
        query_name=f"mirror-{target}",
        arrangement="keep",
        commit_group=f"mirror-{target}",
        end_offsets=CheckpointOffsets(str(tmp_path / "cp")),
    )
    run(source(spark, bootstrap, source_topic, batch=150), sink, tmp_path / "cp")
    wanted = [[row(number) for number in range(400) if number % 3 == index] for index in range(3)]
    assert read_committed(bootstrap, target, PARTITIONS) == wanted
    assert committed_offsets(bootstrap, f"mirror-{target}", source_topic) == [134, 133, 133]


def committed_offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return [place.offset for place in consumer.committed(places, timeout=30)]
    finally:
        consumer.close()


def test_rows_are_sorted_within_a_partition(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    source_topic, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    fill(bootstrap, source_topic, range(200))
    frame = source(spark, bootstrap, source_topic, batch=1000).drop("partition", "headers")
    sink = kafka_sink(
        bootstrap, topic=target, query_name=f"sorted-{target}", order_by=["timestamp"], tasks=2
    )
    run(frame, sink, tmp_path / "cp")
    found = read_committed(bootstrap, target, PARTITIONS)
    assert sum(map(len, found)) == 200
    for rows in found:
        times = [timestamp for *_, timestamp in rows]
        assert times == sorted(times)


def test_rows_go_to_the_topic_of_their_column(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    source_topic = new_topic(PARTITIONS)
    targets = [new_topic(PARTITIONS), new_topic(PARTITIONS)]
    fill(bootstrap, source_topic, range(100))
    frame = source(spark, bootstrap, source_topic).select(
        F.when(F.col("offset") % 2 == 0, targets[0]).otherwise(targets[1]).alias("topic"),
        F.col("value").cast("string").alias("value"),
    )
    sink = kafka_sink(bootstrap, topics=targets, query_name=f"split-{targets[0]}")
    run(frame, sink, tmp_path / "cp")
    values = [
        {value for rows in read_committed(bootstrap, target, PARTITIONS) for _, value, *_ in rows}
        for target in targets
    ]
    assert len(values[0]) + len(values[1]) == 100
    assert values[0] | values[1] == {b"value-%d" % number for number in range(100)}


def test_mistakes_end_the_query_with_one_line(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    source_topic, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    fill(bootstrap, source_topic, range(30))
    frame = source(spark, bootstrap, source_topic)
    name = f"to-{target}"
    run(frame, kafka_sink(bootstrap, topic=target, query_name=name), tmp_path / "cp")
    with pytest.raises(Exception, match=f"{name} wrote up to batch 0 with another checkpoint"):
        run(frame, kafka_sink(bootstrap, topic=target, query_name=name), tmp_path / "other")
    missing = kafka_sink(bootstrap, topic=f"no-{target}", query_name="missing")
    with pytest.raises(Exception, match=f"SinkError: topic no-{target} does not exist"):
        run(frame, missing, tmp_path / "missing")
    narrow = new_topic(1)
    with pytest.raises(Exception, match="SinkError: batch 0 cannot be written: a row has part"):
        run(frame, kafka_sink(bootstrap, topic=narrow, query_name="narrow"), tmp_path / "narrow")


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        ("value string", ["value"]),
        ("VALUE binary, Key string, other int", ["key", "value"]),
        (
            "key binary, value binary, topic string, partition int, offset long"
            ", timestamp timestamp, timestampType int"
            ", headers array<struct<key:string,value:binary>>",
            ["key", "value", "partition", "timestamp_ms", "headers"],
        ),
        ("value string, timestamp long", ["value", "timestamp_ms"]),
    ],
)
def test_columns(spark: SparkSession, schema: str, columns: list[str]) -> None:
    frame = spark.createDataFrame([], schema)
    assert frame.select(*record_columns(frame.schema, Layout("t"))).columns == columns


@pytest.mark.parametrize(
    ("schema", "topic", "why"),
    [
        ("key string", "t", "no column value"),
        ("value int", "t", "column value is int: make it a string or binary"),
        ("value string, partition string", "t", "column partition is string: make it an int"),
        ("value string, timestamp string", "t", "column timestamp is string: make it a timestamp"),
        ("value string, headers map<string,string>", "t", "column headers is map<string,string>"),
        (
            "value string, headers array<string>",
            "t",
            "make it array<struct<key:string",
        ),
        ("value string", None, "add a column topic"),
    ],
)
def test_columns_that_cannot_be_written(
    spark: SparkSession, schema: str, topic: str | None, why: str
) -> None:
    frame = spark.createDataFrame([], schema)
    with pytest.raises(SinkError, match=why):
        record_columns(frame.schema, Layout(topic))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"query_name": "a b", "topic": "t"}, "query_name 'a b'"),
        ({"query_name": "q"}, "name one topic, or topics"),
        ({"query_name": "q", "topic": "t", "topics": ["u"]}, "and not both"),
        ({"query_name": "q", "topic": "t", "compression": "rar"}, "none, gzip, snappy, lz4, zstd"),
        ({"query_name": "q", "topic": "t", "arrangement": "random"}, "shuffle"),
        ({"query_name": "q", "topic": "t", "commit_group": "g"}, "needs end_offsets"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SinkError, match=why):
        kafka_sink("localhost:9092", **options)


def test_a_sink_is_picklable() -> None:
    sink = kafka_sink("localhost:9092", topic="t", query_name="q", order_by=["a"])
    again = pickle.loads(pickle.dumps(sink))
    assert isinstance(again, KafkaSink)
    assert again.settings == sink.settings
    assert again.settings.query.transactional_id == "spark-q"


def test_partitions_are_spread_evenly_and_placed_alike_with_and_without_a_column_key(
    spark: SparkSession,
) -> None:
    """One target partition per task, for one topic and for several; without a column key Spark
    itself places the rows where `partition_for` does.
    """
    from pyspark.sql import functions as F

    count = 5
    values = [b"%d" % number for number in range(100)]
    rows = [(value,) for value in [*values, None]]
    plain = spark.createDataFrame(rows, "value binary")
    wanted = {value: partition_for(None, value, count) for value in [*values, None]}
    keyed = plain.withColumn("key", F.lit(None).cast("binary"))
    named = keyed.withColumn("topic", F.when(F.length("value") < 2, "t").otherwise("u"))
    for frame, topic in ((plain, "t"), (keyed, "t"), (named, None)):
        counts = {"t": count} if topic else {"t": count, "u": count}
        layout = Layout(topic, tasks=sum(counts.values()))
        found = arranged(frame, layout, counts).withColumn("task", F.spark_partition_id()).collect()
        assert len(found) == len(rows)
        assert {each.value and bytes(each.value): each.partition for each in found} == wanted
        places = {(topic or each.topic, each.partition): each.task for each in found}
        assert len(set(places.values())) == len(places) >= count
