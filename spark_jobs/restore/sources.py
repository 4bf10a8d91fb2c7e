"""Where `restore` and `replay` read: an archive's files, or a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    ZERO_UUID,
    TopicPartition,
)
from kbroker.protocol.errors import KafkaError

from ..archive.commits import Commit, newest_commit, published_commit
from ..archive.layout import parse_file
from ..archive.tables import refuse_decoded
from ..checkpoint import format_offsets
from ..cluster import Subscription, look
from ..copying.origins import cluster_id
from ..errors import JobError, StartRefused
from ..exactly_once.errors import sink_error
from ..exactly_once.frames import Arrangement
from ..storage import Folder
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.offsets import list_offsets
from .files import TopicFile, chosen_topic, ends_of, files_of, overlapping, starts_of
from .options import LATEST, RestoreOptions
from .slices import SLICE_S, TimedEnd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_PERIODS: Final = 1_000_000


class Source(Protocol):
    """What is written. identity: tells it from another source of its name.
    firsts, ends: the offsets it has, by partition. record_bytes: stored size of a record, None if
    unknown. arrangement: how frames reach the tasks.
    """

    topic: str
    identity: str
    firsts: dict[int, int]
    ends: dict[int, int]
    record_bytes: float | None
    arrangement: Arrangement

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def frame(
        self, spark: SparkSession, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> DataFrame | None:
        """The records with these offsets, with the columns of Spark's Kafka source, without the
        topic; None if there are none.
        """
        ...

    def starts_since(self, spark: SparkSession, since_ms: int) -> dict[int, int]:
        """By partition: the first offset whose record is of that time or later; the end without
        one. Raises JobError.
        """
        ...

    def is_whole(self, spark: SparkSession) -> bool:
        """Whether every offset from 0 to `ends` has a record."""
        ...


@dataclass
class ArchiveSource:
    """A topic of an archive."""

    folder: Folder
    topic: str
    identity: str
    files: list[TopicFile]
    firsts: dict[int, int]
    ends: dict[int, int]
    record_bytes: float | None
    arrangement: Arrangement = field(default="shuffle", init=False)

    @property
    def name(self) -> str:
        """For messages."""
        return f"archive {self.folder}"

    def frame(
        self, spark: SparkSession, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> DataFrame | None:
        """See `Source`."""
        from pyspark.sql import functions as F

        files = overlapping(self.files, starts, ends)
        if not files:
            return None
        condition = F.lit(False)
        for partition in sorted({file.content.partition for file in files}):
            last = ends[partition] - 1
            inside = F.col("offset").between(starts[partition], last)
            condition = condition | ((F.col("partition") == partition) & inside)
        base = self.folder.spark_uri
        paths = [f"{base}/{file.path}" for file in files]
        rows = spark.read.option("basePath", base).parquet(*paths)
        return rows.where(condition).select(
            "key",
            "value",
            "headers",
            F.col("partition").cast("int").alias("partition"),
            "offset",
            "timestamp",
        )

    def starts_since(self, spark: SparkSession, since_ms: int) -> dict[int, int]:
        """See `Source`."""
        return _first_since(self.frame(spark, self.firsts, self.ends), since_ms, self.ends)

    def is_whole(self, spark: SparkSession) -> bool:
        """See `Source`. Reads the files' metadata, not their records."""
        from ..archive.files import count_records

        for partition, end in self.ends.items():
            paths = [file.path for file in self.files if file.content.partition == partition]
            if count_records(self.folder, paths) != end:
                return False
        return all(first == 0 for first in self.firsts.values())


@dataclass
class TopicSource:
    """A topic of a cluster, up to its last stable offset at the start. topic_id: in text form,
    empty before Kafka 2.8.
    """

    servers: str
    topic: str
    identity: str
    firsts: dict[int, int]
    ends: dict[int, int]
    record_bytes: float | None
    fail_on_data_loss: bool = True
    topic_id: str = ""
    arrangement: Arrangement = field(default="keep", init=False)

    @property
    def name(self) -> str:
        """For messages."""
        return f"topic {self.topic}"

    def frame(
        self, spark: SparkSession, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> DataFrame | None:
        """See `Source`."""
        if all(starts[partition] >= end for partition, end in ends.items()):
            return None
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        rows = (
            # With subscribe, Spark fails once the topic has got a partition without offsets here.
            reader.option("assign", json.dumps({self.topic: sorted(ends)}))
            .option("startingOffsets", format_offsets({self.topic: dict(starts)}))
            .option("endingOffsets", format_offsets({self.topic: dict(ends)}))
            .option("kafka.isolation.level", "read_committed")
            .option("includeHeaders", "true")
            .option("failOnDataLoss", str(self.fail_on_data_loss).lower())
            .load()
        )
        return rows.drop("topic", "timestampType")

    def starts_since(self, spark: SparkSession, since_ms: int) -> dict[int, int]:
        """See `Source`. Asks the brokers."""
        client = BlockingClient(ClusterAddress(self.servers))
        places = {TopicPartition(self.topic, p): since_ms for p in self.ends}
        try:
            found = client.retry(partial(list_offsets, client, places, READ_COMMITTED))
        except KafkaError as error:
            raise sink_error(error, f"looking topic {self.topic} up by time") from error
        finally:
            client.close()
        return {
            place.partition: min(offset, self.ends[place.partition])
            if offset >= 0
            else self.ends[place.partition]
            for place, offset in found.items()
        }

    def is_topic(self, client: BlockingClient, name: str) -> bool:
        """Whether it is the topic of that name in the cluster of `client`, which has looked the
        topic up. Servers do not tell: a cluster has several addresses. Raises JobError, KafkaError.
        """
        if name != self.topic:
            return False
        topic_id = client.topic_id(name)
        if self.topic_id and topic_id != ZERO_UUID:
            return topic_id.hex() == self.topic_id
        own = BlockingClient(ClusterAddress(self.servers))
        try:
            return cluster_id(own) == cluster_id(client)
        finally:
            own.close()

    def is_whole(self, spark: SparkSession) -> bool:
        """See `Source`. Reads the topic once more."""
        rows = self.frame(spark, self.firsts, self.ends)
        counts = {} if rows is None else _counts(rows)
        return all(counts.get(partition, 0) == end for partition, end in self.ends.items())


def source_of(options: RestoreOptions) -> Source:
    """The source as it is now. Raises JobError."""
    return _archive_source(options) if options.archive else _topic_source(options)


def _archive_source(options: RestoreOptions) -> ArchiveSource:
    """Up to where the newest commit says that the archive is, once all files of it are visible. Of
    a batch that is committed later perhaps not all files are listed, so none of them are read.
    """
    folder = Folder(options.archive_uri)
    try:
        commit = published_commit(folder)
        if commit is None:
            raise JobError(f"{folder} is no archive: name the --output of `archive`")
        paths = folder.files()
        if newest_commit(folder) != commit:
            paths = [path for path in paths if not _is_later(path, commit)]
    except OSError as error:
        raise JobError(f"{folder} cannot be read: {error.strerror or error}") from error
    refuse_decoded(folder, "restored")
    topic = chosen_topic(paths, options.topic or None, str(folder))
    files = files_of(paths, topic)
    generation = files[0].content.generation
    ends = ends_of(files)
    if generation == commit.generations.get(topic, 1):  # else the new topic has no records yet
        ends |= commit.positions.get(topic, {})
    files = [file for file in files if file.content.first_offset < ends[file.content.partition]]
    firsts = starts_of(files)
    return ArchiveSource(
        folder,
        topic,
        f"archive {commit.checkpoint_id} {topic} {generation}",
        files,
        {partition: firsts.get(partition, end) for partition, end in ends.items()},
        ends,
        commit.size_bytes / commit.records if commit.records else None,
    )


def _is_later(path: str, commit: Commit) -> bool:
    """Whether a file is of a partition, or of a generation, that the commit does not know."""
    content = parse_file(path)
    if content is None:
        return False
    known = commit.generations.get(content.topic, 1)
    is_known = content.partition in commit.positions.get(content.topic, {})
    return content.generation > known or (content.generation == known and not is_known)


def _topic_source(options: RestoreOptions) -> TopicSource:
    servers, topic = options.from_servers, options.topic
    view = look(servers, Subscription((topic,)), "PLAINTEXT")
    facts = view.topics[topic]
    client = BlockingClient(ClusterAddress(servers))
    places = [TopicPartition(topic, partition) for partition in facts.latest]
    try:
        firsts, ends = (
            client.retry(partial(list_offsets, client, dict.fromkeys(places, time), READ_COMMITTED))
            for time in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
    except KafkaError as error:
        raise sink_error(error, f"reading the offsets of topic {topic}") from error
    finally:
        client.close()
    wanted = (options.ending or {}).get(topic, {})
    found = TopicSource(
        servers,
        topic,
        f"topic {facts.topic_id or servers} {topic}",
        {place.partition: firsts[place] for place in places},
        {place.partition: ends[place] for place in places},
        view.record_bytes,
        options.fail_on_data_loss,
        facts.topic_id,
    )
    unknown = sorted(wanted.keys() - found.ends.keys())
    if unknown:
        raise JobError(
            f"--endingOffsets: {topic} has no partition {unknown[0]}: name partitions that it has"
        )
    wanted = {p: end for p, end in wanted.items() if end != LATEST}
    beyond = [p for p, end in wanted.items() if end > found.ends[p]]
    if beyond:
        raise JobError(
            f"--endingOffsets: partition {beyond[0]} of {topic} ends at {found.ends[beyond[0]]}: "
            "give that, or -1 for the end"
        )
    found.ends |= wanted
    found.firsts = {p: min(first, found.ends[p]) for p, first in found.firsts.items()}
    return found


def refuse_itself(source: Source, client: BlockingClient, target: str) -> None:
    """Raises StartRefused if the source is the topic `target`, which `client` has looked up.
    Raises JobError, KafkaError.
    """
    if isinstance(source, TopicSource) and source.is_topic(client, target):
        raise StartRefused(
            f"topic {target} would be replayed into itself: {source.servers} and "
            f"{client.address.bootstrap_servers} are one cluster; give another --to or "
            "--toBootstrapServers"
        )


def periods_of(rows: DataFrame, speed: float) -> list[TimedEnd]:
    """The periods of records for `timed_slices`: each has SLICE_S x speed of the records' time, the
    first one from the earliest record on. The latest time so far in a partition counts. Raises
    JobError if there are too many.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    times = rows.select(
        "partition", "offset", F.unix_millis(F.col("timestamp").cast("timestamp")).alias("ms")
    )
    start = times.agg(F.min("ms")).collect()[0][0]
    if start is None:
        return []
    width_ms = max(int(SLICE_S * 1000 * speed), 1)
    earlier = Window.partitionBy("partition").orderBy("offset")
    latest = F.max("ms").over(earlier.rowsBetween(Window.unboundedPreceding, 0))
    period = F.greatest(F.floor((latest - F.lit(start)) / F.lit(width_ms)), F.lit(0))
    grouped = (
        times.select("partition", "offset", period.cast("long").alias("period"))
        .groupBy("period", "partition")
        .agg((F.max("offset") + 1).alias("end"))
    )
    found = [
        TimedEnd(row.period, row.partition, row.end)
        for row in grouped.limit(MAX_PERIODS + 1).collect()
    ]
    if len(found) > MAX_PERIODS:
        raise JobError(
            f"--speed {speed:g}x: the records' times are in more than {MAX_PERIODS:,} periods of "
            f"{width_ms:,} ms; give a higher speed, --since, or --rate"
        )
    return found


def _first_since(rows: DataFrame | None, since_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
    from pyspark.sql import functions as F

    found = dict(ends)
    if rows is not None:
        time = F.unix_millis(F.col("timestamp").cast("timestamp"))
        late = rows.where(time >= since_ms).groupBy("partition").agg(F.min("offset").alias("start"))
        found |= {row.partition: row.start for row in late.collect()}
    return found


def _counts(rows: DataFrame) -> dict[int, int]:
    return {row.partition: row["count"] for row in rows.groupBy("partition").count().collect()}
