"""An archive as the copy of a topic: its newest commit says how far it is, so files that are lost
are findings, whichever they are.

Compared are the files of the topic's newest generation, from their first record up to the commit's
positions. That records before the first one are not there is in order where the archive began later
or `compact --retention` deleted them: then its files have as many records as it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..archive.commits import Commit, newest_commit, published_commit
from ..archive.layout import parse_file
from ..archive.steps import read_ledger
from ..errors import JobError, first_cause
from ..lake.formats import FORMATS
from ..lake.notes import is_table
from ..restore.files import TopicFile, overlapping, starts_of
from ..storage import Folder
from .compare import compare_partitions, findings_of, left_out_notes
from .facts import Field, PartitionFacts
from .job import (
    PartitionRange,
    VerifyOptions,
    deleted_notes,
    ranges_of,
    read_both,
    read_topic,
    verify_frame,
    within,
)
from .report import VerifyReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ArchiveSide:
    """A topic of an archive. commit: the newest one when it was looked at; its files are visible.
    files: of the topic's newest generation, listed behind the commit. is_empty: whether the archive
    has no visible file at all.
    """

    folder: Folder
    topic: str
    commit: Commit
    files: tuple[TopicFile, ...]
    is_empty: bool = False

    def end(self, part: PartitionRange) -> int:
        """Behind the last offset that is archived of a partition."""
        return self.commit.positions[self.topic].get(part.partition, part.start)

    def start(self, part: PartitionRange) -> int:
        """The first offset that the files have of a partition; the end without one."""
        return starts_of(self.files).get(part.partition, self.end(part))

    def begins_later(self, part: PartitionRange) -> bool:
        """Whether offsets are archived that the topic has and that are before the first file."""
        return part.start < min(self.start(part), self.end(part), part.end)


def archive_side(folder: Folder, topic: str) -> ArchiveSide | None:
    """What an archive has of a topic; None for a folder that says nothing of itself. Raises
    JobError.
    """
    try:
        commit = published_commit(folder)
        paths = folder.files()
    except OSError as error:
        raise JobError(f"{folder} cannot be read: {error.strerror or error}") from error
    if commit is None:
        return None
    for each in FORMATS.values():
        if is_table(folder, each):
            raise JobError(
                f"{folder} is a table of {each.title}, and verify reads files of Parquet: compare "
                "its frame by verify_frame (docs/verify.md)"
            )
    if topic not in commit.positions:
        raise JobError(f"{folder} has no records of topic {topic}: name a topic of the archive")
    generation = commit.generations.get(topic, 1)
    files = tuple(
        TopicFile(path, content)
        for path in paths
        if (content := parse_file(path)) is not None
        and (content.topic, content.generation) == (topic, generation)
    )
    return ArchiveSide(folder, topic, commit, files, is_empty=not paths)


def verify_archive(spark: SparkSession, options: VerifyOptions, folder: Folder) -> VerifyReport:
    """Compare the topic with an archive of it: record by record with their offsets. A folder of
    Parquet files without commits is compared as `verify_frame` does. Raises JobError.
    """
    side = archive_side(folder, options.topic.topic)
    try:
        if side is None:
            return verify_frame(spark, options, spark.read.parquet(folder.spark_uri))
        return _verify(spark, options, side)
    except JobError:
        raise
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"verify stopped: {first_cause(error)}") from error


def _verify(spark: SparkSession, options: VerifyOptions, side: ArchiveSide) -> VerifyReport:
    ranges = ranges_of(options.topic)
    # What compaction removed from the topic is only in the archive: nothing else tells its loss.
    is_counted = any(part.is_compacted or side.begins_later(part) for part in ranges)
    lost = lost_records(spark, side) if is_counted else 0
    parts, notes = compared(side, ranges, is_whole=not lost)
    notes = [*deleted_notes(ranges), *notes]
    topic, copy = read_sides(spark, side, parts, options.ignored)
    notes += left_out_notes(copy)
    findings = [*findings_of(topic), *findings_of(copy), *compare_partitions(topic, copy)]
    if lost:
        findings.append(
            f"{side.folder}: the files have {lost} records fewer than the archive counts, of all "
            "its topics"
        )
    removed = read_ledger(side.folder).removed_records
    if removed:
        notes.append(
            f"{side.folder}: --retention deleted {removed} records; those between offsets that "
            "stayed count as missing"
        )
    return VerifyReport(topic, copy, findings, notes)


def compared(
    side: ArchiveSide, ranges: Sequence[PartitionRange], *, is_whole: bool
) -> tuple[list[PartitionRange], list[str]]:
    """The ranges of the topic that the archive must have, and notes on what is left out. is_whole:
    whether no records are lost, so that it may begin behind the topic's first offset.
    """
    parts, notes = [], []
    for part in ranges:
        place = f"{part.side.topic}-{part.partition}"
        start, end = part.start, side.end(part)
        if is_whole and side.begins_later(part):
            start = min(side.start(part), end, part.end)
            notes.append(
                f"{place}: the archive begins at offset {start}, the topic at {part.start}"
            )
        if end != part.end:
            notes.append(f"{place}: the archive ends at offset {end}, the topic at {part.end}")
        parts.append(replace(part, start=start, end=max(start, min(end, part.end))))
    return parts, notes


def lost_records(spark: SparkSession, side: ArchiveSide) -> int:
    """How many records fewer the archive's files have than it counts, of all topics. Records that
    `archive` adds while they are counted make up for lost ones.
    """
    visible = 0 if side.is_empty else count_visible(spark, side.folder)
    newest = newest_commit(side.folder) or side.commit  # a --resume-from may have removed files
    records = min(side.commit.records, newest.records)
    return max(0, records - read_ledger(side.folder).removed_records - visible)


def count_visible(spark: SparkSession, folder: Folder) -> int:
    """Records in the visible files of an archive, by their metadata."""
    return spark.read.parquet(folder.spark_uri).count()


def read_sides(
    spark: SparkSession,
    side: ArchiveSide,
    parts: Sequence[PartitionRange],
    ignored: frozenset[Field],
) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
    """The facts of the topic and of what the archive's files have of these ranges."""
    from pyspark.sql import functions as F

    starts = {part.partition: part.start for part in parts}
    files = overlapping(side.files, starts, {part.partition: part.end for part in parts})
    if not files:
        return read_topic(spark, parts, ignored), []
    base = side.folder.spark_uri
    paths = [f"{base}/{file.path}" for file in files]
    rows = spark.read.option("basePath", base).parquet(*paths)
    # The folder's name may look like a number.
    rows = rows.where(within(parts)).withColumn("topic", F.lit(side.topic))
    return read_both(rows, parts, ignored)
