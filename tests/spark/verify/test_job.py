"""`verify` with Spark on a real broker: a topic, a mirror of it, an archive of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.copying.targets import set_configs
from spark_jobs.errors import JobError
from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.storage import Folder
from spark_jobs.verify.archive import archive_side, lost_records, verify_archive
from spark_jobs.verify.job import (
    NEWEST_ONLY,
    PartitionRange,
    TopicSide,
    VerifyOptions,
    read_topic,
    verify,
    verify_frame,
)
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

NewTopic = Callable[[int], str]


def sent(number: int, partitions: int) -> Sent:
    headers = (("n", b"%d" % number),) * (number % 3)
    return Sent(
        None, b"value-%d" % number, headers, 1_700_000_000_000 + number, number % partitions
    )


def fill(bootstrap: str, topic: str, numbers: range, partitions: int = 3) -> None:
    rows = [sent(number, partitions) for number in numbers]
    ConfluentAdapter(bootstrap).produce(topic, rows, codec="lz4", idempotent=True)


def test_topics(spark: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    address = ClusterAddress(bootstrap)
    source, same, spread, less = (TopicSide(address, new_topic(3)) for _ in range(4))
    fill(bootstrap, source.topic, range(300))
    fill(bootstrap, same.topic, range(300))
    fill(bootstrap, spread.topic, range(300), partitions=2)
    fill(bootstrap, less.topic, range(299))
    options = VerifyOptions(source)

    alone = verify(spark, options)
    assert (alone.exit_code, alone.findings) == (0, [])
    assert [facts.records for facts in alone.topic] == [100, 100, 100]
    assert verify(spark, replace(options, copy=same)).findings == []
    assert verify(spark, replace(options, copy=spread, keeps_partitions=False)).findings == []
    report = verify(spark, replace(options, copy=less))
    assert report.findings == ["partition 2: 100 records expected, 99 found: 1 missing"]
    assert report.exit_code == 1
    assert len(verify(spark, replace(options, copy=spread)).findings) == 3
    with pytest.raises(SinkError, match="topic absent does not exist"):
        verify(spark, VerifyOptions(TopicSide(address, "absent")))


def test_a_frame(spark: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    from pyspark.sql import functions as F

    topic = new_topic(3)
    fill(bootstrap, topic, range(300))
    frame: DataFrame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .localCheckpoint()
    )
    options = VerifyOptions(TopicSide(ClusterAddress(bootstrap), topic))
    assert verify_frame(spark, options, frame).findings == []
    lost = frame.where("not (partition = 1 and offset = 50)")
    assert verify_frame(spark, options, lost).findings == [
        "partition 1: 100 records expected, 99 found: 1 missing"
    ]
    changed = frame.withColumn(
        "value", F.when(F.col("offset") == 7, b"x").otherwise(F.col("value"))
    )
    assert len(verify_frame(spark, options, changed).findings) == 3
    twice = frame.union(frame.where("partition = 0 and offset = 3"))
    assert verify_frame(spark, options, twice).findings == [
        f"{topic}-0: 1 offsets occur more than once",
        "partition 0: 100 records expected, 101 found: 1 too many",
    ]
    fill(bootstrap, topic, range(300, 360))
    behind = verify_frame(spark, options, frame)
    assert behind.findings == []
    assert f"{topic}-2: the archive ends at offset 100, the topic at 120" in behind.notes


@pytest.mark.parametrize("layout", [("topic", "date"), ("topic", "date", "partition"), ()])
def test_an_archive(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    layout: tuple[str, ...],
) -> None:
    """Its commits say how far it is: files that are lost are findings."""
    topic = new_topic(3)
    fill(bootstrap, topic, range(300))
    out = ArchiveOptions(
        str(tmp_path / "out"), subscribe=topic, bootstrap_servers=bootstrap, layout=layout
    )
    archive(spark, out)
    fill(bootstrap, topic, range(300, 360))
    archive(spark, out)
    options, folder = (
        VerifyOptions(TopicSide(ClusterAddress(bootstrap), topic)),
        Folder(out.output_uri),
    )
    report = verify_archive(spark, options, folder)
    assert (report.findings, report.notes) == ([], [])
    assert [facts.records for facts in report.copy] == [120, 120, 120]
    side = archive_side(folder, topic)
    assert side is not None and lost_records(spark, side) == 0

    *_, newest = sorted(Path(out.output).rglob("*p00001-*.parquet"), key=lambda path: path.name)
    newest.unlink()
    assert lost_records(spark, side) == 20
    report = verify_archive(spark, options, folder)
    assert report.findings == ["partition 1: 120 records expected, 100 found: 20 missing"]
    for path in Path(out.output).rglob("*p00001-*.parquet"):
        path.unlink()
    report = verify_archive(spark, options, folder)
    assert report.findings[0] == f"partition 1: 120 records are in {topic}-1 only"
    assert "the files have 120 records fewer" in report.findings[1]


def test_compacted_topics(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """An archive has what the cleaner removed since, and so has a copy that is not cleaned."""
    address = ClusterAddress(bootstrap)
    source, whole = (TopicSide(address, new_topic(1)) for _ in range(2))
    client = BlockingClient(address)
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    set_configs(client, source.topic, configs)
    client.close()
    out = ArchiveOptions(str(tmp_path / "out"), subscribe=source.topic, bootstrap_servers=bootstrap)
    rows = [
        Sent(b"key-%d" % (number % 3), b"%d" % number, timestamp_ms=1_700_000_000_000 + number)
        for number in range(40)
    ]
    for part in (rows[:20], rows[20:30], rows[30:]):
        for side in (source, whole):
            ConfluentAdapter(bootstrap).produce(side.topic, part, codec="lz4", idempotent=True)
    archive(spark, out)
    options = VerifyOptions(source)
    deadline = time.monotonic() + 120
    while not sum(facts.compacted for facts in verify(spark, options).topic):
        assert time.monotonic() < deadline
        time.sleep(1)

    report = verify_archive(spark, options, Folder(out.output_uri))
    (topic,), (copy,) = report.topic, report.copy
    assert (report.findings, report.exit_code) == ([], 0)
    assert topic.records == copy.records < 40
    assert (copy.left_out, topic.compacted) == (40 - copy.records, 40 - topic.records)
    assert f"{copy.left_out} records that compaction removed" in report.notes[-1]
    frame = spark.read.parquet(out.output)
    assert verify_frame(spark, options, frame).findings == []
    stayed = frame.where("offset < 39")
    assert verify_frame(spark, options, stayed).findings == []  # the frame's end is an end
    twice = frame.union(frame.where("offset = 39"))
    assert len(verify_frame(spark, options, twice).findings) == 2

    copied = verify(spark, replace(options, copy=whole))
    assert (copied.findings, copied.notes) == ([], [NEWEST_ONLY])
    assert [facts.current for facts in (*copied.topic, *copied.copy)] == [3, 3]
    ConfluentAdapter(bootstrap).produce(whole.topic, rows[:1], codec="lz4", idempotent=True)
    (finding,) = verify(spark, replace(options, copy=whole)).findings
    assert finding.startswith("partition 0: the content of 3 records differs")


def test_a_task_that_fails_is_one_line(spark: SparkSession) -> None:
    nowhere: Any = None
    with pytest.raises(JobError, match=r"^verify stopped: .*'NoneType'.*$"):
        read_topic(spark, [PartitionRange(nowhere, 0, 0, 1, is_compacted=False)], frozenset())
