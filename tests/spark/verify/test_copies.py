"""A topic against a copy of it of which retention has deleted other segments. Without Spark: a task
runs where it is asked for, on a cluster in memory.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from spark_jobs.verify import job
from spark_jobs.verify.job import ReadRanges, TopicSide, VerifyOptions, verify
from spark_jobs.verify.report import VerifyReport
from spark_jobs.wire.client import ClusterAddress
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster

ADDRESS = ClusterAddress("broker:9092")
OPTIONS = VerifyOptions(TopicSide(ADDRESS, "t"), TopicSide(ADDRESS, "copy"))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    """Of a topic `t` and its copy, whose records are in batches of ten."""

    def map_in_arrow(count: int, reader: ReadRanges, _schema: str) -> Any:
        numbers = pa.RecordBatch.from_pydict({"id": list(range(count))})
        rows = [row for batch in reader([numbers]) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in rows])

    found = ScriptedCluster(t=1, copy=1)
    monkeypatch.setattr(job, "BlockingClient", lambda _address: found.client())
    monkeypatch.setattr(job, "map_in_arrow", map_in_arrow)
    monkeypatch.setattr(job, "ship", lambda _spark: None)
    return found


def fill(cluster: ScriptedCluster, topic: str, numbers: range) -> None:
    log = cluster.log(topic, 0)
    for first in range(numbers.start, numbers.stop, 10):
        of_batch = range(first, min(first + 10, numbers.stop))
        batch = build_batch([(number, None, b"%d" % number, ()) for number in of_batch])
        assert log.append(bytes(batch), 10_000)[0] is ErrorCode.NONE


def delete(cluster: ScriptedCluster, topic: str, start: int) -> None:
    log = cluster.log(topic, 0)
    del log.batches[: (start - log.start) // 10]
    log.start = start


def verified(options: VerifyOptions = OPTIONS) -> VerifyReport:
    spark: Any = SimpleNamespace(range=lambda _first, end, _step, _tasks: end)
    return verify(spark, options)


def note(topic: str, start: int, outcome: str = "") -> str:
    return f"{topic}-0: records before offset {start} were deleted from the topic{outcome}"


def test_retention_at_the_source(cluster: ScriptedCluster) -> None:
    fill(cluster, "t", range(100))
    fill(cluster, "copy", range(100))
    delete(cluster, "t", 60)
    report = verified()
    assert (report.findings, report.exit_code) == ([], 0)
    assert report.notes == [
        note("t", 60),
        "copy-0: the oldest 60 of 100 records are not compared: t-0 no longer has what was before "
        "its offset 60",
    ]
    assert report.to_text().endswith("the same 40 records on both sides")
    alone = verified(VerifyOptions(OPTIONS.topic))
    assert alone.notes == [note("t", 60, " and are not compared")]


def test_retention_at_the_copy(cluster: ScriptedCluster) -> None:
    fill(cluster, "t", range(100))
    fill(cluster, "copy", range(20, 100))  # t had lost 20 when the copy began
    delete(cluster, "t", 20)
    delete(cluster, "copy", 30)  # record 50
    report = verified()
    assert report.findings == []
    assert report.notes == [
        note("t", 20),
        note("copy", 30),
        "t-0: the oldest 30 of 80 records are not compared: copy-0 no longer has what was before "
        "its offset 30",
    ]
    assert "80 records, the oldest 30 not compared, hash" in report.to_text()
    delete(cluster, "t", 50)
    report = verified()
    assert (report.findings, report.notes) == ([], [note("t", 50), note("copy", 30)])


def test_a_source_that_has_nothing_left(cluster: ScriptedCluster) -> None:
    fill(cluster, "t", range(20))
    fill(cluster, "copy", range(20))
    delete(cluster, "t", 20)
    report = verified()
    assert (report.findings, len(report.notes)) == ([], 2)


def test_a_copy_that_has_nothing_left_lacks_all(cluster: ScriptedCluster) -> None:
    fill(cluster, "t", range(20))
    fill(cluster, "copy", range(20))
    delete(cluster, "copy", 20)
    assert verified().findings == ["partition 0: 20 records expected, 0 found: 20 missing"]


@pytest.mark.parametrize(
    ("copied", "finding"),
    [
        (range(90), "40 records expected, 90 found: 50 too many, and the newest 40 differ"),
        (range(30), "40 records expected, 30 found: 10 missing"),
        (range(40), "the content of 40 records differs"),
        (range(110), "40 records expected, 110 found: 70 too many, and the newest 40 differ"),
    ],
)
def test_a_copy_that_differs(cluster: ScriptedCluster, copied: range, finding: str) -> None:
    """Whatever retention has deleted, the newest records must be there."""
    fill(cluster, "t", range(100))
    fill(cluster, "copy", copied)
    delete(cluster, "t", 60)
    report = verified()
    (found,) = report.findings
    assert found.startswith(f"partition 0: {finding}")
    assert report.notes == [note("t", 60)]


def test_records_that_were_never_copied(cluster: ScriptedCluster) -> None:
    """Without a deletion at the copy they are missing, and without one at the source too many."""
    fill(cluster, "t", range(100))
    fill(cluster, "copy", range(70, 100))
    delete(cluster, "t", 60)
    assert verified().findings == ["partition 0: 40 records expected, 30 found: 10 missing"]
    turned = VerifyOptions(TopicSide(ADDRESS, "copy"), OPTIONS.topic)
    assert verified(turned).findings == ["partition 0: 30 records expected, 40 found: 10 too many"]


def test_partitions_that_are_not_kept(cluster: ScriptedCluster) -> None:
    """Which records are the newest is not known then."""
    fill(cluster, "t", range(100))
    fill(cluster, "copy", range(100))
    delete(cluster, "t", 60)
    report = verified(replace(OPTIONS, keeps_partitions=False))
    assert report.findings == ["all partitions: 40 records expected, 100 found: 60 too many"]
    outcome = ", and count as differences where the other side has them"
    assert report.notes == [note("t", 60, outcome)]
