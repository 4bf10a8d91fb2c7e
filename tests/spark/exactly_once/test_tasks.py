"""A task's rows on a real broker, and its report."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from os import urandom
from typing import Any

import pytest

from kbroker.model import TopicPartition
from kbroker.testing import EmbeddedBroker
from spark_jobs.exactly_once.driver import BatchReport, QueryDriver, QuerySettings, TaskReport
from spark_jobs.exactly_once.errors import Failure, SinkError
from spark_jobs.exactly_once.grant import Grant
from spark_jobs.exactly_once.partitioner import partition_for
from spark_jobs.exactly_once.rows import PARTITION
from spark_jobs.exactly_once.runs import Run
from spark_jobs.exactly_once.tasks import (
    REPORT_SCHEMA,
    AddPartition,
    WriteTask,
    report_rows,
    reports_of,
    write_rows,
)
from spark_jobs.exactly_once.topics import TargetTopic
from spark_jobs.wire.client import BlockingClient, ClusterAddress

pa = pytest.importorskip("pyarrow")


def batches(*partitions: int, value: bytes = b"v") -> Iterator[Any]:
    """A record batch for each partition, with three rows."""
    for partition in partitions:
        columns = [pa.array([partition] * 3, pa.int32()), pa.array([value] * 3, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, names=["partition", "value"])


def write_batch(broker: EmbeddedBroker, topic: str, records: Iterator[Any]) -> BatchReport:
    """One batch of one task."""
    client = BlockingClient(ClusterAddress(broker.bootstrap_servers))
    driver = QueryDriver(client, QuerySettings(f"to-{topic}", (topic,), batch_retries=0))

    def write(grant: Grant) -> list[TaskReport]:
        again: Grant = pickle.loads(pickle.dumps(grant))
        assert again == grant
        return [write_rows(again, records, topic=topic, task=0)]

    try:
        return driver.write_batch(0, write)
    finally:
        client.close()


def test_rows_are_written(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    assert write_batch(kafka_broker, kafka_topic, batches(0, 0)).records == 6


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (batches(0, 4), "partition 4, but topic .* has partitions 0 to 0: add partitions"),
        (batches(-1), "partition -1, but"),
        (batches(0, value=urandom(1_100_000)), "too large for .*max.message.bytes=1048588"),
    ],
    ids=["partition", "negative", "too large"],
)
def test_rows_that_cannot_be_written(
    kafka_broker: EmbeddedBroker, kafka_topic: str, records: Iterator[Any], why: str
) -> None:
    with pytest.raises(SinkError, match=f"batch 0 cannot be written: .*{why}"):
        write_batch(kafka_broker, kafka_topic, records)


def test_a_topic_that_the_sink_does_not_have(
    kafka_broker: EmbeddedBroker, kafka_topic: str
) -> None:
    columns = [pa.array([0], pa.int32()), pa.array([b"v"]), pa.array(["other"])]
    names = ["partition", "value", "topic"]

    def write(grant: Grant) -> list[TaskReport]:
        rows = iter([pa.RecordBatch.from_arrays(columns, names=names)])
        return [write_rows(grant, rows, topic=None, task=0)]

    client = BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))
    driver = QueryDriver(client, QuerySettings(f"to-{kafka_topic}", (kafka_topic,)))
    why = f"a row has topic other, which is none of {kafka_topic}"
    with closing(client), pytest.raises(SinkError, match=why):
        driver.write_batch(0, write)


def test_a_broker_that_is_gone_begins_the_batch_again() -> None:
    address = ClusterAddress("127.0.0.1:1", connect_timeout_s=0.5)
    topics = {"t": TargetTopic("t", 1, None)}
    grant = Grant(address, "x", 1, 0, TopicPartition("tokens", 0), 0, topics)
    report = write_rows(grant, batches(0), topic="t", task=0)
    assert report.failure is Failure.RESTART
    assert report.message.startswith("no broker answers: 127.0.0.1:1: Connection refused")


def test_reports_are_rows() -> None:
    from types import SimpleNamespace

    def through_rows(report: TaskReport) -> list[TaskReport]:
        batch = report_rows(report)
        kinds = {"string": "string", "int32": "int", "int64": "long"}
        fields = [f"{field.name} {kinds[str(field.type)]}" for field in batch.schema]
        assert ", ".join(fields) == REPORT_SCHEMA
        rows: list[Any] = [SimpleNamespace(**row) for row in batch.to_pylist()]
        return reports_of(rows)

    failed = TaskReport(failure=Failure.FATAL, message="why")
    assert through_rows(failed) == [failed]
    assert through_rows(TaskReport()) == []
    counts = {TopicPartition("t", 1): 5, TopicPartition("t", 0): 2**40}
    found = through_rows(TaskReport(counts))
    assert {key: value for report in found for key, value in report.records.items()} == counts
    runs = {TopicPartition("t", 1): [Run(5, 0, 3), Run(9, 2**40, 1)]}
    assert through_rows(TaskReport({TopicPartition("t", 1): 4}, runs=runs)) == [
        TaskReport({TopicPartition("t", 1): 4}, runs=runs)
    ]


def test_rows_with_source_offsets_have_runs(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    """Two tasks' worth of rows in several record batches; the topic has a record before them."""

    def records() -> Iterator[Any]:
        for offsets in ([3, 4], [5, 9]):
            columns = [
                pa.array([0] * 2, pa.int32()),
                pa.array([b"v"] * 2, pa.binary()),
                pa.array(offsets, pa.int64()),
            ]
            names = ["partition", "value", "source_offset"]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    write_batch(kafka_broker, kafka_topic, batches(0))
    client = BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))
    driver = QueryDriver(client, QuerySettings(f"runs-{kafka_topic}", (kafka_topic,)))
    reports: list[TaskReport] = []

    def write(grant: Grant) -> list[TaskReport]:
        reports[:] = [write_rows(grant, records(), topic=kafka_topic, task=0)]
        return reports

    driver.write_batch(0, write)
    driver.close()
    # Three rows and a marker are before them.
    assert reports[0].runs == {TopicPartition(kafka_topic, 0): [Run(3, 4, 3), Run(9, 7, 1)]}


def test_a_row_without_a_source_offset_is_refused(
    kafka_broker: EmbeddedBroker, kafka_topic: str
) -> None:
    columns = [
        pa.array([0], pa.int32()),
        pa.array([b"v"], pa.binary()),
        pa.array([None], pa.int64()),
    ]
    names = ["partition", "value", "source_offset"]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    with pytest.raises(SinkError, match="a row has no source offset"):
        write_batch(kafka_broker, kafka_topic, iter([batch]))


@pytest.mark.parametrize("has_key", [False, True])
def test_partitions_by_key(has_key: bool) -> None:
    keys = [b"a", None, b"b", b"", None]
    values = [b"1", b"2", None, b"4", None]
    topics = ["t", "u", "t", "v", "t"]
    columns = {"value": pa.array(values, pa.binary()), "topic": pa.array(topics)}
    if has_key:
        columns["key"] = pa.array(keys, pa.binary())
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    counts = {"t": 7, "u": 3}
    (several,) = AddPartition(counts, None)(iter([batch]))
    shown = keys if has_key else [None] * 5
    assert several.column(several.schema.names.index(PARTITION)).to_pylist() == [
        partition_for(key, value, counts.get(topic, 1))
        for key, value, topic in zip(shown, values, topics, strict=True)
    ]
    (one,) = AddPartition(counts, "t")(iter([batch]))
    assert one.schema.names == [*columns, PARTITION]
    assert one.column(len(columns)).to_pylist()[0] == partition_for(shown[0], values[0], 7)


def test_the_functions_of_tasks_are_picklable() -> None:
    grant = Grant(ClusterAddress("a:1"), "x", 1, 0, TopicPartition("t", 0), 0, {})
    for function in (WriteTask(grant, "t"), AddPartition({"t": 1}, None)):
        assert pickle.loads(pickle.dumps(function)) == function
