"""`verify`: a topic by itself, or against a copy of it: counts, ranges, missing offsets, duplicates
and hashes per partition. Read with read_committed, up to the last stable offset at the start.

Each partition is read by one Spark task, batch by batch over the wire: so markers, aborted
transactions and compaction explain offsets that are not there. An archive is a frame with the
columns of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from .compare import (
    compare_partitions,
    compare_wholes,
    findings_of,
    left_out_notes,
    older_notes,
    older_records,
)
from .facts import Field, PartitionFacts
from .frames import (
    COLUMNS,
    FACTS_SCHEMA,
    MARKED_COLUMNS,
    MARKS_SCHEMA,
    SIDES_SCHEMA,
    FrameFacts,
    Marks,
    facts_rows,
)
from .reading import read_partition
from .report import VerifyReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row, SparkSession

OFFSET: Final[Field] = "offset"

NEWEST_ONLY: Final = (
    "compaction has left different records on both sides: compared is the newest record of each "
    "key, unless it is a tombstone"
)

COUNT_AS_DIFFERENCES: Final = ", and count as differences where the other side has them"


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
    """A part of a partition to be read by one task: [start, end). older: as of `FactsBuilder`."""

    side: TopicSide
    partition: int
    start: int
    end: int
    is_compacted: bool
    older: int = 0


@dataclass(frozen=True, slots=True)
class ReadRanges:
    """Reads the ranges whose numbers a task is given in its only column, for `mapInArrow`.
    newest_only: see `FactsBuilder`. gives_marks: for the records of a copy, in MARKS_SCHEMA.
    """

    ranges: Sequence[PartitionRange]
    ignored: frozenset[Field]
    newest_only: bool = False
    gives_marks: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields record batches of each of them, in FACTS_SCHEMA or MARKS_SCHEMA."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if self.gives_marks:
                    marks = Marks()
                    yield from marks.rows(self._read(self.ranges[number], marks.add))
                else:
                    yield facts_rows([self._read(self.ranges[number])])

    def _read(
        self, part: PartitionRange, on_compacted: Callable[[int, int], None] | None = None
    ) -> PartitionFacts:
        client = BlockingClient(part.side.address)
        try:
            return read_partition(
                client,
                TopicPartition(part.side.topic, part.partition),
                part.start,
                part.end,
                is_compacted=part.is_compacted,
                ignored=self.ignored,
                newest_only=self.newest_only,
                older=part.older,
                on_compacted=on_compacted,
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
    spark: SparkSession,
    ranges: Sequence[PartitionRange],
    ignored: frozenset[Field],
    *,
    newest_only: bool = False,
) -> list[PartitionFacts]:
    """The facts of each range, read by as many tasks. newest_only: see `FactsBuilder`. Raises
    JobError.
    """
    ship(spark)
    reader = ReadRanges(ranges, ignored, newest_only=newest_only)
    rows = _collected(map_in_arrow(_numbers(spark, ranges), reader, FACTS_SCHEMA))
    return _decoded(row.facts for row in rows)


def _numbers(spark: SparkSession, ranges: Sequence[PartitionRange]) -> DataFrame:
    return spark.range(0, len(ranges), 1, len(ranges))


def _collected(frame: DataFrame) -> list[Row]:
    try:
        return list(frame.collect())
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"verify stopped: {first_cause(error)}") from error


def _decoded(texts: Iterable[str]) -> list[PartitionFacts]:
    facts = map(PartitionFacts.decode, texts)
    return sorted(facts, key=lambda one: (one.topic, one.partition))


def verify(spark: SparkSession, options: VerifyOptions) -> VerifyReport:
    """Read the topic, and its copy if there is one. Raises JobError if they cannot be read."""
    ignored = options.ignored | {OFFSET}
    ranges = ranges_of(options.topic)
    topic = read_topic(spark, ranges, ignored)
    if options.copy is None:
        return VerifyReport(topic, (), findings_of(topic), deleted_notes(ranges))
    others = ranges_of(options.copy)
    copy = read_topic(spark, others, ignored)
    compare = compare_partitions if options.keeps_partitions else compare_wholes
    differences = compare(topic, copy)
    notes = []
    outcome = "" if options.keeps_partitions else COUNT_AS_DIFFERENCES
    if differences and any(facts.compacted for facts in (*topic, *copy)):
        # Two log cleaners keep different records. What neither removes must be the same.
        notes, outcome = [NEWEST_ONLY], COUNT_AS_DIFFERENCES
        topic = read_topic(spark, ranges, ignored, newest_only=True)
        copy = read_topic(spark, others, ignored, newest_only=True)
        differences = compare(topic, copy)
    elif differences and options.keeps_partitions:
        older = older_records(topic, copy)
        topic = _without_older(spark, topic, ranges, older[0], ignored)
        copy = _without_older(spark, copy, others, older[1], ignored)
        differences = compare(topic, copy)
        notes = older_notes(topic, copy)
    findings = [*findings_of(topic), *findings_of(copy), *differences]
    notes = [*deleted_notes((*ranges, *others), outcome), *notes]
    return VerifyReport(topic, copy, findings, notes)


def _without_older(
    spark: SparkSession,
    side: Sequence[PartitionFacts],
    ranges: Sequence[PartitionRange],
    older: Mapping[int, int],
    ignored: frozenset[Field],
) -> list[PartitionFacts]:
    """The facts of a side, without so many records at the beginning of these partitions."""
    parts = [
        replace(part, older=older[part.partition]) for part in ranges if part.partition in older
    ]
    again = {facts.partition: facts for facts in read_topic(spark, parts, ignored)} if parts else {}
    return [again.get(facts.partition, facts) for facts in side]


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
    topic, copy = read_both(rows.where(within(cut)), cut, options.ignored)
    findings = [*findings_of(topic), *findings_of(copy), *compare_partitions(topic, copy)]
    return VerifyReport(topic, copy, findings, [*notes, *left_out_notes(copy)])


def within(parts: Sequence[PartitionRange]) -> Column:
    """Whether a row of a topic is in one of these ranges of it."""
    from pyspark.sql import functions as F

    inside = F.lit(False)
    for part in parts:
        offsets = F.col("offset").between(part.start, part.end - 1)
        inside = inside | ((F.col("partition") == part.partition) & offsets)
    return inside


def read_both(
    rows: DataFrame, ranges: Sequence[PartitionRange], ignored: frozenset[Field]
) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
    """The facts of the topic's ranges and of each partition in a frame of them, with the columns of
    Spark's Kafka source: the records at offsets that compaction removed from the topic are left
    out. The topic is read once, since it may be cleaned at any time. Raises JobError.
    """
    spark = rows.sparkSession
    ship(spark)
    from pyspark.sql import functions as F

    columns = {name: F.col(name) for name in COLUMNS if name != "timestamp_ms"}
    columns["timestamp_ms"] = F.unix_millis(F.col("timestamp").cast("timestamp"))
    columns["topic"] = columns["topic"].cast("string")
    columns["offset"] = columns["offset"].cast("long")
    columns["partition"] = columns["partition"].cast("int")
    records = rows.select(*(columns[name].alias(name) for name in COLUMNS))
    reader = ReadRanges(ranges, ignored, gives_marks=True)
    marks = map_in_arrow(_numbers(spark, ranges), reader, MARKS_SCHEMA)
    marked = records.unionByName(marks, allowMissingColumns=True).select(*MARKED_COLUMNS)
    order = ("topic", "partition", "offset", F.asc_nulls_last("end"))
    arranged = marked.repartition("topic", "partition").sortWithinPartitions(*order)
    found = _collected(map_in_arrow(arranged, FrameFacts(ignored), SIDES_SCHEMA))
    topic = _decoded(row.facts for row in found if not row.is_copy)
    return topic, _decoded(row.facts for row in found if row.is_copy)


def deleted_notes(
    ranges: Sequence[PartitionRange], outcome: str = " and are not compared"
) -> list[str]:
    """What the topic no longer has. outcome: what that means for the comparison."""
    return [
        f"{part.side.topic}-{part.partition}: records before offset {part.start} were deleted from "
        f"the topic{outcome}"
        for part in ranges
        if part.start > 0
    ]
