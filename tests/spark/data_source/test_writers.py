"""Commits of the format `kbroker` on a broker, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.copying.targets import create_target
from spark_jobs.data_source.sink_options import SinkOptions, sink_options
from spark_jobs.errors import JobError
from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from tests.spark.copying.records import records_of

pa = pytest.importorskip("pyarrow")
pyspark = pytest.importorskip("pyspark")

from pyspark.sql.types import (  # noqa: E402  # it may be missing
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from spark_jobs.data_source.writers import (  # noqa: E402
    ADVICE,
    KafkaStreamWriter,
    KafkaWriter,
    Staged,
)

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", StringType()),
        StructField("partition", IntegerType()),
    ]
)
ARROW = pa.schema([("key", pa.binary()), ("value", pa.string()), ("partition", pa.int32())])


def batch(*values: str, partition: int = 0) -> pa.RecordBatch:
    rows = [{"key": b"k", "value": value, "partition": partition} for value in values]
    return pa.RecordBatch.from_pylist(rows, ARROW)


@pytest.fixture
def topic(kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    client = BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))
    name = f"written-by-{request.node.name.replace('_', '-')}"[:200]
    create_target(client, name, 2, {})
    client.close()
    return name


@pytest.fixture
def values(kafka_broker: EmbeddedBroker, topic: str) -> Callable[[], list[list[bytes]]]:
    """Of each partition, committed."""
    return lambda: [
        [bytes(record.value or b"") for record in records]
        for records in records_of(kafka_broker.bootstrap_servers, topic, 2)
    ]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "cp"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": f"id-{tmp_path.name}"}))
    for batch_id in range(3):
        (folder / "offsets" / str(batch_id)).write_text('v1\n{}\n{"logOffset": 3}\n')
    return folder


@pytest.fixture
def stream(kafka_broker: EmbeddedBroker, topic: str, checkpoint: Path) -> KafkaStreamWriter:
    options = SinkOptions(
        kafka_broker.bootstrap_servers, topic, (topic,), checkpoint=str(checkpoint)
    )
    return KafkaStreamWriter(options, SCHEMA)


Values = Callable[[], list[list[bytes]]]


def test_a_batch_of_a_stream_is_written_once(
    stream: KafkaStreamWriter, values: Values, checkpoint: Path
) -> None:
    first = stream.write(iter([batch("a", "b"), batch("c", partition=1)]))
    second = Staged(stream.write(iter([batch("d")])).rows)
    second.rows = type(second.rows)(1, second.rows.name, second.rows.rows)
    stream.commit([second, first], 0)
    assert values() == [[b"a", b"b", b"d"], [b"c"]]
    assert not (checkpoint / "kbroker-staging").exists()
    stream.commit([stream.write(iter([batch("a", "b")]))], 0)  # Spark repeats it
    stream.commit([stream.write(iter([batch("e")]))], 1)
    stream.commit([None, stream.write(iter([]))], 2)
    assert values() == [[b"a", b"b", b"d", b"e"], [b"c"]]


def test_the_newest_token_and_the_checkpoint_tell_one_story(
    stream: KafkaStreamWriter, checkpoint: Path
) -> None:
    with pytest.raises(SinkError, match=r"no batch of query id-.* was ever written") as caught:
        stream.commit([], 2)
    assert str(caught.value).endswith(f": {ADVICE}")  # and not with names of kafka_sink
    (checkpoint / "metadata").unlink()
    with pytest.raises(JobError, match="is no checkpoint that can be seen here"):
        stream.commit([], 0)


def test_what_tasks_left_is_gone(stream: KafkaStreamWriter, values: Values) -> None:
    message = stream.write(iter([batch("a")]))
    stream.abort([message, None], 0)
    with pytest.raises(SinkError, match=r"the rows of a task are not in .*: give the option stag"):
        stream.commit([message], 0)
    assert values() == [[], []]


def test_a_row_that_cannot_be_written(stream: KafkaStreamWriter, values: Values) -> None:
    message = stream.write(iter([batch("a"), batch("b", partition=5)]))
    with pytest.raises(SinkError, match="a row has partition 5"):
        stream.commit([message], 0)
    assert values() == [[], []]


@pytest.fixture
def writer(kafka_broker: EmbeddedBroker, topic: str, tmp_path: Path) -> Callable[..., KafkaWriter]:
    def make(**given: str) -> KafkaWriter:
        servers = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "topic": topic}
        staging = {"stagingLocation": str(tmp_path / "staged")}
        options = sink_options(servers | staging | given, is_stream=False)
        return KafkaWriter(options, SCHEMA)

    return make


def test_batch_writes(
    writer: Callable[..., KafkaWriter], values: Values, tmp_path: Path, topic: str
) -> None:
    def write(value: str, **given: str) -> None:
        one = writer(**given)
        one.commit([one.write(iter([batch(value)]))])

    write("a")
    write("b")
    named = {"queryName": topic}
    write("c", **named)
    write("d", **named)
    write("e", **named, batchId="9")
    write("again", **named, batchId="9")
    write("f", **named)
    assert values() == [[b"a", b"b", b"c", b"d", b"e", b"f"], []]
    one = writer()
    one.abort([one.write(iter([batch("x")]))])
    assert list((tmp_path / "staged").iterdir()) == []


def test_rows_without_a_partition_go_where_their_key_says(
    kafka_broker: EmbeddedBroker, topic: str, values: Values
) -> None:
    options = SinkOptions(kafka_broker.bootstrap_servers, None, (topic,))
    schema = StructType([*SCHEMA.fields[:2], StructField("Topic", StringType())])
    one = KafkaWriter(options, schema)
    rows = [{"key": b"%d" % n, "value": "v", "Topic": topic} for n in range(20)]
    arrow = pa.schema([*list(ARROW)[:2], ("Topic", pa.string())])
    one.commit([one.write(iter([pa.RecordBatch.from_pylist(rows, arrow)]))])
    assert sorted(map(len, values()))[0] > 0
    assert sum(map(len, values())) == 20


def test_columns_that_cannot_be_written(topic: str) -> None:
    options = SinkOptions("k:1", topic, (topic,))
    for fields, said in (
        ([StructField("v", StringType())], "no column value"),
        ([StructField("value", IntegerType())], "column value is int: make it a string"),
        (
            [StructField("value", StringType()), StructField("timestamp", TimestampNTZType())],
            "column timestamp has no time zone",
        ),
    ):
        with pytest.raises(SinkError, match=said):
            KafkaWriter(options, StructType(fields))
