"""`restore` and `replay` with Spark on a real broker: the same records, each once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.compact.job import compact
from spark_jobs.compact.options import CompactOptions
from spark_jobs.copying.targets import add_partitions, create_target
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.progress import BatchProgress, Reporter
from spark_jobs.restore import slices, sources
from spark_jobs.restore.job import describe_check, restore
from spark_jobs.restore.options import OffsetsWanted, RestoreOptions
from spark_jobs.verify.job import TopicSide, VerifyOptions, verify_frame
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from tests.spark.copying.records import (
    BASE_MS,
    STEP_MS,
    begin_transaction,
    check_map,
    content,
    fill,
    offset_map,
    records_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

PARTITIONS = 3
NewTopic = Callable[[int], str]


class StopAfter(Reporter):
    """Sets `stop` after so many batches, as Ctrl-C would."""

    def __init__(self, batches: int) -> None:
        super().__init__("none")
        self.stop = threading.Event()
        self.left = batches

    def show(self, name: str, batch: BatchProgress, files: int) -> None:
        self.left -= 1
        if not self.left:
            self.stop.set()


def test_an_archive_comes_back_byte_for_byte(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Offsets too; in two runs, the first of which is stopped, and behind a grown archive."""
    from pyspark.sql import functions as F

    topic = new_topic(PARTITIONS)
    copy = f"{topic}-copy"
    out = str(tmp_path / "out")
    fill(bootstrap, topic, range(300), PARTITIONS)
    archiving = ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic)
    archive(spark, archiving)
    options = RestoreOptions(copy, bootstrap, archive=out, max_offsets=150)
    assert "offsets are kept if the source has no gaps" in describe_check(options)

    reporter = StopAfter(1)
    first = restore(spark, options, reporter=reporter, stop=reporter.stop)
    assert (first.rows, first.is_whole, first.are_offsets_kept) == (150, False, True)
    assert first.notes == (f"created topic {copy} with 3 partitions and retention.ms=-1",)
    assert "150 offsets of archive" in describe_check(options)
    assert restore(spark, options).rows == 150
    fill(bootstrap, topic, range(300, 330), PARTITIONS)
    archive(spark, archiving)
    assert restore(spark, options).rows == 30
    assert restore(spark, options).rows == 0

    assert records_of(bootstrap, copy, PARTITIONS) == records_of(bootstrap, topic, PARTITIONS)
    rows = spark.read.parquet(out).withColumn("topic", F.lit(copy))
    verified = VerifyOptions(TopicSide(ClusterAddress(bootstrap), copy))
    assert verify_frame(spark, verified, rows).findings == []


def test_an_archive_into_a_topic_that_has_records(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, copy = new_topic(PARTITIONS), new_topic(PARTITIONS)
    out = str(tmp_path / "out")
    fill(bootstrap, topic, range(300), PARTITIONS)
    fill(bootstrap, copy, range(9), PARTITIONS)
    archive(spark, ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic))
    since = BASE_MS + 150 * STEP_MS
    options = RestoreOptions(copy, bootstrap, archive=out, since_ms=since, max_offsets=70)
    with pytest.raises(StartRefused, match=f"cannot be kept: partition 0 of {copy} is not empty"):
        restore(spark, replace(options, offsets="keep"))
    reporter = StopAfter(1)
    first = restore(spark, options, reporter=reporter, stop=reporter.stop)
    rest = restore(spark, options)
    assert first.rows + rest.rows == 150
    assert (rest.are_offsets_kept, rest.is_whole) == (False, True)
    sources = [
        [record for record in records if record.timestamp >= since]
        for records in records_of(bootstrap, topic, PARTITIONS)
    ]
    copies = [records[3:] for records in records_of(bootstrap, copy, PARTITIONS)]
    assert [content(one) for one in copies] == [content(one) for one in sources]
    check_map(offset_map(bootstrap, options.name), copy, sources, copies)
    with pytest.raises(StartRefused, match="from another source"):
        restore(
            spark,
            RestoreOptions(copy, bootstrap, topic=topic, query_name=options.name),
        )


@pytest.mark.parametrize("wanted", ["keep", "map"])
def test_files_that_were_deleted_before_they_were_restored(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    wanted: OffsetsWanted,
) -> None:
    """By `compact --retention`, behind a run that was stopped: each message says what helps."""
    topic = new_topic(1)
    out = str(tmp_path / "out")
    for numbers in (range(300), range(300, 330)):  # retention leaves the files of the last batch
        fill(bootstrap, topic, numbers, 1)
        archive(spark, ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic))
    options = RestoreOptions(
        f"{topic}-copy", bootstrap, archive=out, max_offsets=66, offsets=wanted
    )
    reporter = StopAfter(1)
    assert restore(spark, options, reporter=reporter, stop=reporter.stop).rows == 66
    # The files of the first two days: of 11 records, then of 144.
    now_ms = time.time_ns() // 1_000_000
    old_ms = BASE_MS + 160 * STEP_MS
    deleting = CompactOptions(out, retention_ms=now_ms - old_ms)
    assert compact(None, deleting, now_ms).deleted_records == 155

    with pytest.raises(StartRefused, match=r"89 offsets of archive .* were deleted") as raised:
        restore(spark, options)
    if wanted == "keep":
        assert str(raised.value).endswith("restore to another topic with --offsets map")
        options = replace(options, to_topic=f"{topic}-again", offsets="map")
    else:
        assert str(raised.value).endswith("--failOnDataLoss false goes on behind them")
        options = replace(options, fail_on_data_loss=False)
    report = restore(spark, options)
    assert (report.rows, report.is_whole) == (330 - 155, True)
    (copied,) = records_of(bootstrap, options.to_topic, 1)
    (expected,) = records_of(bootstrap, topic, 1)
    assert content(copied)[-175:] == content(expected)[155:]


def test_a_topic_with_transactions_is_replayed(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """Its markers take offsets, so these cannot be kept; aborted records are not replayed."""
    topic, copy = new_topic(PARTITIONS), new_topic(PARTITIONS)
    fill(bootstrap, topic, range(60), PARTITIONS)
    begin_transaction(bootstrap, topic, range(60, 90), PARTITIONS, commit=False)
    begin_transaction(bootstrap, topic, range(90, 120), PARTITIONS, commit=True)
    fill(bootstrap, topic, range(120, 150), PARTITIONS)
    options = RestoreOptions(copy, bootstrap, topic=topic, max_offsets=45)
    with pytest.raises(StartRefused, match="has offsets without a record"):
        restore(spark, replace(options, offsets="keep"))
    report = restore(spark, options)
    assert (report.rows, report.are_offsets_kept) == (120, False)
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, copy))
    assert [content(one) for one in copies] == [content(one) for one in sources]
    check_map(offset_map(bootstrap, options.name), copy, sources, copies)

    part = RestoreOptions(
        new_topic(PARTITIONS),
        bootstrap,
        topic=topic,
        starting={topic: {0: 10, 1: -1}},
        ending={topic: {0: 15, 2: 4}},
    )
    assert restore(spark, part).rows == 5 + 0 + 4
    found = records_of(bootstrap, part.to_topic, PARTITIONS)
    assert [content(one) for one in found] == [
        content(sources[0][10:15]),
        [],
        content(sources[2][:4]),
    ]


def test_a_whole_topic_keeps_its_offsets_at_a_pace(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rate, then by the records' own times: 60 records of 10 minutes each."""
    monkeypatch.setattr(slices, "SLICE_S", 2.0)
    monkeypatch.setattr(sources, "SLICE_S", 2.0)
    topic = new_topic(PARTITIONS)
    fill(bootstrap, topic, range(60), PARTITIONS)
    expected = records_of(bootstrap, topic, PARTITIONS)
    paces = (
        RestoreOptions(f"{topic}-rate", bootstrap, topic=topic, rate=15.0),
        # 20 records of 600 s are 12,000 s: 2 s at this speed.
        RestoreOptions(f"{topic}-speed", bootstrap, topic=topic, speed=6000.0),
    )
    for options, batches in zip(paces, (2, 3), strict=True):
        began_s = time.monotonic()
        report = restore(spark, options)
        assert time.monotonic() - began_s >= 2.0 * (batches - 1)
        assert (report.rows, report.batches, report.are_offsets_kept) == (60, batches, True)
        assert records_of(bootstrap, options.to_topic, PARTITIONS) == expected


def test_a_partition_that_the_source_gets_meanwhile_is_for_the_next_run(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, range(40), 2)
    options = RestoreOptions(f"{topic}-copy", bootstrap, topic=topic, max_offsets=20)
    client = BlockingClient(ClusterAddress(bootstrap))

    class Growing(Reporter):
        def show(self, name: str, batch: BatchProgress, files: int) -> None:
            if batch.batch_id == 0:
                add_partitions(client, topic, 3)
                fill(bootstrap, topic, range(40, 43), 3)

    report = restore(spark, options, reporter=Growing("none"))
    assert (report.rows, report.batches, report.is_whole) == (40, 2, True)
    with pytest.raises(JobError, match="has 2 partitions, the source 3: add partitions"):
        restore(spark, options)
    add_partitions(client, options.to_topic, 3)
    client.close()
    report = restore(spark, options)
    assert (report.rows, report.are_offsets_kept) == (3, True)
    assert records_of(bootstrap, options.to_topic, 3) == records_of(bootstrap, topic, 3)


def test_mistakes(spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, range(4), 2)
    client = BlockingClient(ClusterAddress(bootstrap))
    appended = f"{topic}-appended"
    create_target(client, appended, 2, {"message.timestamp.type": "LogAppendTime"})
    client.close()
    for options, why in (
        (RestoreOptions("x", bootstrap, topic="absent"), "topic absent does not exist"),
        (RestoreOptions("x", bootstrap, archive=str(tmp_path)), "is no archive"),
        (RestoreOptions(appended, bootstrap, topic=topic), "replaces the times of records"),
        (RestoreOptions(topic, bootstrap, topic=topic), "would be replayed into itself"),
        (RestoreOptions(new_topic(1), bootstrap, topic=topic), "has 1 partition, the source 2"),
        (
            RestoreOptions("x", bootstrap, topic=topic, ending={topic: {0: 9}}),
            "partition 0 of .* ends at 2",
        ),
        (RestoreOptions("x", "localhost:1", topic=topic), "no broker answers"),
    ):
        with pytest.raises(JobError, match=why):
            restore(spark, options)
        with pytest.raises(JobError, match=why):
            describe_check(options)
