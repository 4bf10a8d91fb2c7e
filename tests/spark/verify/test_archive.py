"""An archive as the copy of a topic: lost files are findings, older generations and records that
retention deleted are not. Without Spark: files are read by pyarrow, the topic is in memory.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import commits
from spark_jobs.archive.commits import newest_commit, staging_folder
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.compact.job import compact
from spark_jobs.compact.options import CompactOptions
from spark_jobs.errors import JobError
from spark_jobs.restore.files import overlapping
from spark_jobs.storage import Folder
from spark_jobs.verify import archive
from spark_jobs.verify.archive import ArchiveSide, archive_side, verify_archive
from spark_jobs.verify.facts import FactsBuilder, Field, PartitionFacts
from spark_jobs.verify.frames import FrameFacts, Marks
from spark_jobs.verify.job import PartitionRange, TopicSide, VerifyOptions
from spark_jobs.verify.report import VerifyReport
from spark_jobs.wire.client import ClusterAddress
from tests.spark.archive_simulation import DAY_US, Cluster, SimulatedSpark, Topic

LATER_MS = 4_000_000_000_000
"""No file is touched at this time."""

SIDE = TopicSide(ClusterAddress("none:1"), "t")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its topic `t` is what `verify` reads."""
    found = Cluster(monkeypatch)

    def ranges(side: TopicSide) -> list[PartitionRange]:
        topic = found.topics[side.topic]
        facts = topic.facts()
        return [
            PartitionRange(
                side, partition, facts.earliest[partition], end, is_compacted=topic.is_compacted
            )
            for partition, end in facts.latest.items()
        ]

    def read(
        _spark: None, side: ArchiveSide, parts: Sequence[PartitionRange], ignored: frozenset[Field]
    ) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
        marks = [Marks() for _ in parts]
        topic = [
            _facts(found.topics[part.side.topic], part, ignored, mark)
            for part, mark in zip(parts, marks, strict=True)
        ]
        rows = [
            row
            for facts, mark in zip(topic, marks, strict=True)
            for batch in mark.rows(facts)
            for row in batch.to_pylist()
        ]
        return _read_files(rows, side, parts, ignored)

    monkeypatch.setattr(archive, "ranges_of", ranges)
    monkeypatch.setattr(archive, "read_sides", read)
    monkeypatch.setattr(archive, "count_visible", lambda _spark, folder: _rows(folder))
    return found


def _facts(
    topic: Topic, part: PartitionRange, ignored: frozenset[Field], marks: Marks
) -> PartitionFacts:
    builder = FactsBuilder(
        part.side.topic, part.partition, part.start, ignored, on_compacted=marks.add
    )
    for offset in range(part.start, part.end):
        if offset in topic.cleaned.get(part.partition, ()):
            continue
        value = topic.values[part.partition][offset]
        builder.advance(offset, offset + 1, is_compacted=topic.is_compacted)
        builder.add_record(offset, offset % 3 * DAY_US // 1000, None, value, ())
    builder.advance(part.end, part.end, is_compacted=topic.is_compacted)
    return builder.facts(part.end)


def _read_files(
    marks: list[dict[str, Any]],
    side: ArchiveSide,
    parts: Sequence[PartitionRange],
    ignored: frozenset[Field],
) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
    limits = {part.partition: range(part.start, part.end) for part in parts}
    starts = {partition: limit.start for partition, limit in limits.items()}
    files = overlapping(side.files, starts, {number: each.stop for number, each in limits.items()})
    rows = [
        {**row, "topic": side.topic, "timestamp_ms": row["timestamp"].timestamp() * 1000}
        for file in files
        for row in pq.read_table(f"{side.folder}/{file.path}", partitioning=None).to_pylist()
        if row["offset"] in limits[row["partition"]]
    ]
    rows += marks
    rows.sort(key=lambda row: (row["partition"], row["offset"], row.get("end") is None))
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp_ms", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("end", pa.int64()),
            ("facts", pa.string()),
        ]
    )
    (batch,) = FrameFacts(ignored)([pa.RecordBatch.from_pylist(rows, schema)])
    found: tuple[list[PartitionFacts], list[PartitionFacts]] = ([], [])
    for row in batch.to_pylist():
        found[row["is_copy"]].append(PartitionFacts.decode(row["facts"]))
    return found


def _rows(folder: Folder) -> int:
    return sum(pq.read_metadata(f"{folder}/{path}").num_rows for path in folder.files())


@pytest.fixture
def options(tmp_path: Path, cluster: Cluster) -> ArchiveOptions:
    """Of an archive of 60 records in two partitions and three days."""
    options = ArchiveOptions(output=str(tmp_path / "out"), subscribe="t")
    cluster.add("t", 60)
    run(cluster, options)
    return options


def run(cluster: Cluster, options: ArchiveOptions) -> None:
    SimulatedSpark(cluster, records_per_batch=5).run(options)


def verified(options: ArchiveOptions) -> VerifyReport:
    return verify_archive(None, VerifyOptions(SIDE), Folder(options.output_uri))  # type: ignore[arg-type]


def files_in(options: ArchiveOptions, partition: int, pattern: str = "**") -> list[Path]:
    out = Path(options.output) / "topic=t"
    return sorted(out.glob(f"{pattern}/p{partition:05d}-*.parquet"), key=lambda path: path.name)


def test_a_whole_archive(cluster: Cluster, options: ArchiveOptions) -> None:
    report = verified(options)
    assert (report.findings, report.notes, report.exit_code) == ([], [], 0)
    assert [facts.records for facts in report.copy] == [30, 30]
    cluster.add("t", 4)
    report = verified(options)
    assert (report.findings, report.exit_code) == ([], 0)
    assert report.notes == [
        "t-0: the archive ends at offset 30, the topic at 32",
        "t-1: the archive ends at offset 30, the topic at 32",
    ]


def test_lost_files_are_findings(options: ArchiveOptions) -> None:
    """The last ones of a partition, those of a day, those of a whole partition, all."""
    out = Path(options.output)
    files_in(options, 1)[-1].unlink()
    report = verified(options)
    assert report.findings == ["partition 1: 30 records expected, 29 found: 1 missing"]
    assert (report.notes, report.exit_code) == ([], 1)
    shutil.rmtree(out / "topic=t" / "date=1970-01-03")
    findings = [finding.partition(":")[0] for finding in verified(options).findings]
    assert findings == ["partition 0", "partition 1"]
    for path in files_in(options, 1):
        path.unlink()
    assert verified(options).findings == [
        "partition 0: 30 records expected, 20 found: 10 missing",
        "partition 1: 30 records are in t-1 only",
        f"{out}: the files have 40 records fewer than the archive counts, of all its topics",
    ]
    shutil.rmtree(out / "topic=t")
    assert len(verified(options).findings) == 3


def test_a_topic_that_was_compacted_since(cluster: Cluster, options: ArchiveOptions) -> None:
    """Its archive has the removed records too, and misses none of those that stayed."""
    topic = cluster.topics["t"]
    topic.is_compacted = True
    topic.cleaned = {0: {*range(5), 7, 28, 29}, 1: set(range(30))}
    report = verified(options)
    assert (report.findings, report.exit_code) == ([], 0)
    assert [facts.records for facts in report.topic] == [22, 0]
    assert [(facts.records, facts.left_out) for facts in report.copy] == [(22, 8), (0, 30)]
    assert report.notes == [
        "t-0: 8 records that compaction removed from the topic are in the archive and are not "
        "compared",
        "t-1: 30 records that compaction removed from the topic are in the archive and are not "
        "compared",
    ]
    assert report.to_text().endswith("the same 22 records on both sides")
    topic.values[0][6] = b"other"
    assert verified(options).findings[0].startswith("partition 0: the content of 22 records")
    topic.cleaned[0].add(6)
    assert verified(options).exit_code == 0
    files_in(options, 0, "date=1970-01-03")[4].unlink()
    counts, lost = verified(options).findings
    assert counts == "partition 0: 21 records expected, 19 found: 2 missing"
    assert "the files have 2 records fewer than the archive counts" in lost


def test_lost_records_that_the_topic_no_longer_has_are_findings(
    cluster: Cluster, options: ArchiveOptions
) -> None:
    topic = cluster.topics["t"]
    topic.is_compacted = True
    topic.cleaned = {1: set(range(30))}
    files_in(options, 1)[-1].unlink()
    (finding,) = verified(options).findings
    assert "the files have 1 records fewer than the archive counts" in finding


def test_lost_files_at_the_beginning(options: ArchiveOptions) -> None:
    lost = files_in(options, 0)[0]
    lost.unlink()
    assert verified(options).findings[0].startswith("partition 0: 30 records expected, 2")
    assert "records fewer than the archive counts" in verified(options).findings[1]


def test_the_newest_generation_is_compared(cluster: Cluster, options: ArchiveOptions) -> None:
    """Of a topic that was deleted and created again."""
    del cluster.topics["t"]
    cluster.add("t", 40, topic_id="again")
    run(cluster, replace(options, resume_from="earliest"))
    report = verified(options)
    assert (report.findings, report.notes) == ([], [])
    assert [facts.records for facts in report.copy] == [20, 20]
    for path in Path(options.output).rglob("p00000-*.g2.parquet"):
        path.unlink()
    assert verified(options).findings[0] == "partition 0: 20 records are in t-0 only"


def test_what_retention_deleted_is_no_finding(cluster: Cluster, options: ArchiveOptions) -> None:
    """As long as the files have what the archive counts."""
    folder = Folder(options.output_uri)
    values = cluster.topics["t"].values
    for partition in values:  # older records first, as in life
        values[partition] = values[partition][:1]
    shutil.rmtree(options.output)
    shutil.rmtree(f"{options.output}.checkpoint")
    run(cluster, options)
    cluster.add("t", 4)
    run(cluster, options)
    keep = CompactOptions(options.output, retention_ms=LATER_MS - DAY_US // 1000, min_files=99)
    assert compact(None, keep, LATER_MS).deleted_records == 2
    report = verified(options)
    assert report.findings == []
    assert report.notes == [
        "t-0: the archive begins at offset 1, the topic at 0",
        "t-1: the archive begins at offset 1, the topic at 0",
        f"{folder}: --retention deleted 2 records; those between offsets that stayed count as "
        "missing",
    ]
    files_in(options, 1)[0].unlink()
    assert verified(options).exit_code == 1


def test_an_archive_that_began_later(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("t", 20)
    cluster.topics["t"].first = {0: 6}
    options = ArchiveOptions(output=str(tmp_path / "later"), subscribe="t")
    run(cluster, options)
    cluster.topics["t"].first = {}
    report = verified(options)
    assert report.findings == []
    assert report.notes == ["t-0: the archive begins at offset 6, the topic at 0"]
    cluster.topics["t"].first = {1: 3}
    notes = verified(options).notes
    assert notes[0].startswith("t-1: records before offset 3 were deleted from the topic")


def test_a_batch_that_is_not_visible_yet(
    cluster: Cluster, options: ArchiveOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running archive needs a moment, one that was killed a start."""
    folder = Folder(options.output_uri)
    commit = newest_commit(folder)
    assert commit is not None and commit.files
    folder.write(f"{staging_folder(commit.number)}/x", b"")
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(JobError, match=r"newest batch are not visible yet: start archive"):
        verified(options)
    assert len(waits) == commits.ATTEMPTS

    def published(_seconds: float) -> None:
        folder.delete_folder(commits.STAGING)

    monkeypatch.setattr(time, "sleep", published)
    assert verified(options).exit_code == 0


def test_what_cannot_be_compared(options: ArchiveOptions, tmp_path: Path) -> None:
    folder = Folder(options.output_uri)
    with pytest.raises(JobError, match="has no records of topic other"):
        archive_side(folder, "other")
    assert archive_side(Folder((tmp_path / "plain").as_uri()), "t") is None
    folder.write("_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(JobError, match="is a table of Delta Lake, and verify reads files"):
        archive_side(folder, "t")
