"""`verify`: a topic by itself, or against a copy of it: counts, ranges, missing offsets, duplicates
and hashes per partition. Read with read_committed, up to the last stable offset at the start.

Each partition is read by one Spark task, batch by batch over the wire: so markers, aborted
transactions and compaction explain offsets that are not there. An archive is a frame with the
columns of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    TopicPartition,
)
from kbroker.protocol.errors import KafkaError

from ..arrow_map import map_in_arrow
from ..errors import JobError, first_cause
from ..exactly_once.errors import sink_error
from ..exactly_once.topics import describe_topic, target_topic
from ..session import ship
from ..storage import Folder, absolute
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.offsets import list_offset
from .compare import compare_partitions, compare_wholes, findings_of
from .facts import Field, PartitionFacts
from .frames import COLUMNS, FACTS_SCHEMA, FrameFacts, facts_rows
from .reading import read_partition
from .report import VerifyReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

OFFSET: Final[Field] = "offset"


@dataclass(frozen=True, slots=True)
class TopicSide:
    """A topic of a cluster."""

    address: ClusterAddress
    topic: str


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What is compared. keeps_partitions: whether the copy has each record in the same partition,
    in the same order. ignored: parts of records that may differ.
    """

    topic: TopicSide
    copy: TopicSide | None = None
    keeps_partitions: bool = True
    ignored: frozenset[Field] = frozenset()


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A part of a partition to be read by one task: [start, end)."""

    side: TopicSide
    partition: int
    start: int
    end: int
    is_compacted: bool


@dataclass(frozen=True, slots=True)
class ReadRanges:
    """Reads the ranges whose numbers a task is given in its only column, for `mapInArrow`."""

    ranges: Sequence[PartitionRange]
    ignored: frozenset[Field]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields a record batch for each of them."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield facts_rows([self._read(self.ranges[number])])

    def _read(self, part: PartitionRange) -> PartitionFacts:
        client = BlockingClient(part.side.address)
        try:
            return read_partition(
                client,
                TopicPartition(part.side.topic, part.partition),
                part.start,
                part.end,
                is_compacted=part.is_compacted,
                ignored=self.ignored,
            )
        except KafkaError as error:
            raise sink_error(error, f"reading {part.side.topic}-{part.partition}") from error
        finally:
            client.close()


def ranges_of(side: TopicSide) -> list[PartitionRange]:
    """What a reader of committed records can read now. Raises SinkError."""
    client = BlockingClient(side.address)
    try:
        count = target_topic(client, side.topic).partition_count
        policy = describe_topic(client, side.topic, ["cleanup.policy"]).get("cleanup.policy", "")
        return [
            _range(client, side, partition, is_compacted="compact" in policy)
            for partition in range(count)
        ]
    finally:
        client.close()


def describe_check(options: VerifyOptions, archive: str | None) -> str:
    """What `verify` would read, in one line. archive: the folder of one, None without. Raises
    JobError if something cannot be read.
    """
    sides = [_described(options.topic)]
    if options.copy is not None:
        sides.append(_described(options.copy))
    if archive is not None:
        folder = Folder(absolute(archive))
        try:
            files = folder.files()
        except OSError as error:
            raise JobError(f"{folder} cannot be read: {error.strerror or error}") from error
        if not files:
            raise JobError(f"{folder} has no files: name the --output of the archive")
        sides.append(f"archive {folder} with {counted(len(files), 'file')}")
    return " against ".join(sides)


def _described(side: TopicSide) -> str:
    ranges = ranges_of(side)
    offsets = sum(part.end - part.start for part in ranges)
    return (
        f"topic {side.topic} of {side.address.bootstrap_servers} with "
        f"{counted(len(ranges), 'partition')} and {counted(offsets, 'offset')}"
    )


def _range(
    client: BlockingClient, side: TopicSide, partition: int, *, is_compacted: bool
) -> PartitionRange:
    place = TopicPartition(side.topic, partition)
    try:
        start = client.retry(lambda: list_offset(client, place, EARLIEST_TIMESTAMP))
        end = client.retry(lambda: list_offset(client, place, LATEST_TIMESTAMP, READ_COMMITTED))
    except KafkaError as error:
        raise sink_error(error, f"reading the offsets of {place}") from error
    return PartitionRange(side, partition, start, end, is_compacted)


def read_topic(
    spark: SparkSession, ranges: Sequence[PartitionRange], ignored: frozenset[Field]
) -> list[PartitionFacts]:
    """The facts of each range, read by as many tasks. Raises JobError."""
    ship(spark)
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return _collected(map_in_arrow(numbers, ReadRanges(ranges, ignored), FACTS_SCHEMA))


def _collected(frame: DataFrame) -> list[PartitionFacts]:
    try:
        facts = [PartitionFacts.decode(row.facts) for row in frame.collect()]
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"verify stopped: {first_cause(error)}") from error
    return sorted(facts, key=lambda one: (one.topic, one.partition))


def verify(spark: SparkSession, options: VerifyOptions) -> VerifyReport:
    """Read the topic, and its copy if there is one. Raises JobError if they cannot be read."""
    ignored = options.ignored | {OFFSET}
    ranges = ranges_of(options.topic)
    notes = deleted_notes(ranges)
    topic = read_topic(spark, ranges, ignored)
    if options.copy is None:
        return VerifyReport(topic, (), findings_of(topic), notes)
    copy = read_topic(spark, ranges_of(options.copy), ignored)
    compare = compare_partitions if options.keeps_partitions else compare_wholes
    findings = [*findings_of(topic), *findings_of(copy), *compare(topic, copy)]
    return VerifyReport(topic, copy, findings, notes)


def verify_frame(spark: SparkSession, options: VerifyOptions, archive: DataFrame) -> VerifyReport:
    """Compare the topic with a frame of it: record by record with their offsets, in the range
    that both have. archive: with the columns of Spark's Kafka source, perhaps of more topics.

    Records that the topic no longer has, and those behind the last one that the frame has of a
    partition, are notes. `archive.verify_archive` knows how far an archive is.
    """
    from pyspark.sql import functions as F

    rows = archive.where(F.col("topic") == options.topic.topic)
    ends = {
        row.partition: row.end
        for row in rows.groupBy("partition").agg((F.max("offset") + 1).alias("end")).collect()
    }
    ranges = ranges_of(options.topic)
    notes = deleted_notes(ranges)
    cut = []
    for part in ranges:
        end = min(ends.get(part.partition, part.start), part.end)
        if end < part.end:
            notes.append(
                f"{part.side.topic}-{part.partition}: the archive ends at offset {end}, the topic "
                f"at {part.end}"
            )
        cut.append(replace(part, end=max(end, part.start)))
    topic = read_topic(spark, cut, options.ignored)
    copy = frame_facts(rows.where(within(cut)), options.ignored)
    findings = [*findings_of(topic), *findings_of(copy), *compare_partitions(topic, copy)]
    return VerifyReport(topic, copy, findings, notes)


def within(parts: Sequence[PartitionRange]) -> Column:
    """Whether a row of a topic is in one of these ranges of it."""
    from pyspark.sql import functions as F

    inside = F.lit(False)
    for part in parts:
        offsets = F.col("offset").between(part.start, part.end - 1)
        inside = inside | ((F.col("partition") == part.partition) & offsets)
    return inside


def frame_facts(rows: DataFrame, ignored: frozenset[Field]) -> list[PartitionFacts]:
    """The facts of each partition in a frame with the columns of Spark's Kafka source. Raises
    JobError.
    """
    ship(rows.sparkSession)
    from pyspark.sql import functions as F

    columns = {name: F.col(name) for name in COLUMNS if name != "timestamp_ms"}
    columns["timestamp_ms"] = F.unix_millis(F.col("timestamp").cast("timestamp"))
    columns["topic"] = columns["topic"].cast("string")
    columns["offset"] = columns["offset"].cast("long")
    columns["partition"] = columns["partition"].cast("int")
    named = [columns[name].alias(name) for name in COLUMNS]
    order = ("topic", "partition", "offset")
    arranged = rows.select(*named).repartition("topic", "partition").sortWithinPartitions(*order)
    return _collected(map_in_arrow(arranged, FrameFacts(ignored), FACTS_SCHEMA))


def deleted_notes(ranges: Sequence[PartitionRange]) -> list[str]:
    """What is not compared since the topic no longer has it."""
    return [
        f"{part.side.topic}-{part.partition}: records before offset {part.start} were deleted from "
        "the topic and are not compared"
        for part in ranges
        if part.start > 0
    ]
