"""Tables of Delta Lake and Iceberg, compacted by their own means; their archive goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.archive import lake_store as archive_lake_store
from spark_jobs.archive.commits import NO_BATCH, Commit
from spark_jobs.archive.lake_store import LakeStore, lake_store
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.stores import Batch
from spark_jobs.compact.job import compact, describe_check
from spark_jobs.compact.options import CompactOptions
from spark_jobs.errors import JobError
from spark_jobs.java import java_problem
from spark_jobs.lake.notes import newest_note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, offset long, timestamp timestamp, timestampType int"
)
BASE_S = 1_700_000_000
DAY_S = 86_400


def add(spark: SparkSession, store: LakeStore, batch_id: int) -> None:
    """A record of the batch's number, a day later than that of the batch before."""
    previous = store.newest()
    assert previous is not None
    at = datetime.fromtimestamp(BASE_S + batch_id * DAY_S, UTC)
    row = (None, b"%d" % batch_id, None, "t", 0, batch_id, at, 0)
    frame = spark.createDataFrame([row], SCHEMA)
    ends = {"t": {0: batch_id + 1}}
    store.write(frame, previous, Batch(batch_id, ends, {}, lambda: None))


def values_in(spark: SparkSession, options: ArchiveOptions) -> list[bytes]:
    rows = spark.read.format(options.format).load(options.output).select("value").collect()
    return sorted(bytes(row.value) for row in rows)


def files_in(spark: SparkSession, options: ArchiveOptions) -> int:
    from pyspark.sql import functions as F

    frame = spark.read.format(options.format).load(options.output)
    return frame.select(F.input_file_name()).distinct().count()


@contextmanager
def stages_of_few_tasks(spark: SparkSession) -> Iterator[None]:
    """No stage of a job in the block has more than a hundred."""
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    yield
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(None)) - before]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert max((stage.numTasks for stage in stages if stage), default=0) <= 100


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_table(
    lake_spark: SparkSession, spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    options = ArchiveOptions(
        output=str(tmp_path / "out"), subscribe="t", format=format_, layout=("topic",)
    )
    assert options.lake is not None
    store = lake_store(options, options.lake, spark)
    first = Commit(1, "c", 1, NO_BATCH, options.layout, {})
    store.add(first)
    store.finish(first)
    for batch_id in range(5):
        add(spark, store, batch_id)
    assert (len(values_in(spark, options)), files_in(spark, options)) == (5, 5)

    compacting = CompactOptions(options.output, min_files=2, retention_ms=3 * DAY_S * 1000)
    assert "which decides itself" in describe_check(compacting, 0)
    with pytest.raises(JobError, match="give a session"):
        compact(None, compacting, 0)
    now_ms = (BASE_S + 5 * DAY_S) * 1000
    report = compact(spark, compacting, now_ms)
    assert (report.deleted_records, report.files, report.into) == (2, 3, 1)
    assert report.to_text() == (
        f"compacted 3 files of {options.output} into 1; deleted 2 old records"
    )
    assert values_in(spark, options) == [b"2", b"3", b"4"]
    assert files_in(spark, options) == 1

    # What the archive said of itself still stands, also without the copies.
    shutil.rmtree(tmp_path / "out" / "_archive")
    newest = store.newest()
    assert newest is not None
    assert (newest.batch_id, newest.positions, newest.records) == (4, {"t": {0: 5}}, 5)
    add(spark, store, 5)
    newest = store.newest()
    assert newest is not None
    # A batch of nothing but markers of transactions has no records.
    store.write(
        spark.createDataFrame([], SCHEMA), newest, Batch(6, {"t": {0: 9}}, {}, lambda: None)
    )
    newest = store.newest()
    assert newest is not None and (newest.positions, newest.records) == ({"t": {0: 9}}, 6)
    year_ms = 366 * DAY_S * 1000
    with stages_of_few_tasks(spark):  # VACUUM of Delta Lake lists folders in 10,000 unless told
        compact(spark, CompactOptions(options.output, history_ms=year_ms), now_ms)
    assert values_in(spark, options) == [b"2", b"3", b"4", b"5"]
    with pytest.raises(JobError, match="compact stopped: "):
        compact(spark, CompactOptions(options.output, target_file_bytes=-1), now_ms)


def test_history_of_a_batch_that_only_the_table_tells_of(
    lake_spark: SparkSession,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed behind the table's commit: its snapshot expires, and the batch was archived again."""
    options = ArchiveOptions(
        output=str(tmp_path / "out"), subscribe="t", format="iceberg", layout=("topic",)
    )
    assert options.lake is not None
    store = lake_store(options, options.lake, spark)
    first = Commit(1, "c", 1, NO_BATCH, options.layout, {})
    store.add(first)
    store.finish(first)
    add(spark, store, 0)

    def killed(*_arguments: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(archive_lake_store, "keep_copy", killed)
        with pytest.raises(RuntimeError, match="killed"):
            add(spark, store, 1)
    later_ms = int(time.time() * 1000) + 3_600_000
    compact(spark, CompactOptions(options.output, min_files=2, history_ms=1000), later_ms)
    assert newest_note(store.folder, options.lake) is None
    newest = store.newest()
    assert newest is not None
    assert (newest.batch_id, newest.positions, newest.records) == (1, {"t": {0: 2}}, 2)
    assert values_in(spark, options) == [b"0", b"1"]
