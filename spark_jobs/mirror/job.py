"""`mirror`: topics to topics, of another cluster or under another name.

Partition, order, time, key, value and headers stay as they are; a batch is one transaction of the
exactly-once sink, and `__spark_offsets` of the target's cluster gets the exact offset map, by which
`translate` moves consumer groups.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kbroker.protocol.errors import KafkaError

from ..cluster import Subscription, Topics, look
from ..copying.opening import Opened, describe_start, opened
from ..copying.origins import (
    Origin,
    Registration,
    cluster_id,
    origins_of,
    refuse_circle,
    register,
    registrations,
    unregister,
)
from ..copying.start import query_id
from ..copying.stream import run_copy
from ..copying.targets import (
    add_partitions,
    check_target,
    create_copy,
    find_target,
    own_configs,
    retention_of,
    set_configs,
    shown_configs,
)
from ..errors import JobError, StartRefused
from ..exactly_once.driver import QuerySettings
from ..exactly_once.errors import sink_error
from ..exactly_once.sink import KafkaSink, kafka_sink
from ..exactly_once.source_offsets import CheckpointOffsets
from ..progress import Reporter, Totals
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from .options import MirrorOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a run did. totals: of this run."""

    options: MirrorOptions
    totals: Totals
    topics: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        totals = self.totals
        return {
            "rows": totals.rows,
            "batches": totals.batches,
            "end_offsets": totals.end,
            "topics": self.topics,
        }

    def to_text(self) -> str:
        """The line at the end of a run."""
        topics = counted(len(self.topics), "topic")
        return (
            f"mirrored {counted(self.totals.rows, 'record')} of {topics} to "
            f"{self.options.stream.target} in {counted(self.totals.batches, 'batch')}"
        )


@dataclass
class MirrorBatches:
    """Writes batches, and gives target topics the partitions that the source has got. Picklable.

    partition_counts: of the source topics, as the targets have them.
    """

    sink: KafkaSink
    target_servers: str
    prefix: str
    partition_counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch_id: int, topics: Topics) -> None:
        """See `BatchWriter`."""
        from pyspark.sql import functions as F

        self._grow(topics)
        self.sink(frame.withColumn("topic", F.concat(F.lit(self.prefix), "topic")), batch_id)

    def close(self) -> None:
        """See `BatchWriter`."""
        self.sink.close()

    def tally(self) -> dict[str, int]:
        """See `BatchWriter`. Empty: Spark itself counts what a mirror reports."""
        return {}

    def take(self, tally: Mapping[str, int]) -> None:
        """See `BatchWriter`."""

    def _grow(self, topics: Topics) -> None:
        grown = {
            name: len(facts.latest)
            for name, facts in topics.items()
            if len(facts.latest) > self.partition_counts.get(name, 0)
        }
        if not grown:
            return
        client = BlockingClient(ClusterAddress(self.target_servers))
        try:
            for name, count in grown.items():
                target = find_target(client, self.prefix + name)
                if target is not None and target.partition_count < count:
                    add_partitions(client, target.name, count)
        finally:
            client.close()
        self.partition_counts |= grown


def describe_check(options: MirrorOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    options = with_topics(options)
    said = describe_start(options.stream)
    clusters = _Clusters(options)
    try:
        clusters.origins()
    finally:
        clusters.close()
    return said


def mirror(
    spark: SparkSession,
    options: MirrorOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> MirrorReport:
    """Run the job: to the end of what there is now, or with a trigger until `stop` is set.

    Raises StartRefused if target, checkpoint and source do not fit together or records would go
    round, JobError if the query failed; what was committed stays.
    """
    options = with_topics(options)
    names = options.subscription.topics
    with opened(options.stream) as copy:
        clusters = _Clusters(options)
        try:
            clusters.register()
            notes = clusters.prepare(copy.view.topics)
        except KafkaError as error:
            raise sink_error(error, "preparing the target topics") from error
        finally:
            clusters.close()
        counts = {name: len(facts.latest) for name, facts in copy.view.topics.items()}
        batches = MirrorBatches(_sink(options, copy), options.to_servers, options.prefix, counts)
        totals = run_copy(spark, copy, batches, reporter=reporter, stop=stop)
    return MirrorReport(options, totals, names, (*copy.notes, *notes))


def with_topics(options: MirrorOptions) -> MirrorOptions:
    """The options with the topics that a pattern matches now, without internal ones (`__...`) and
    those that were mirrored from the target's cluster. Raises JobError.
    """
    if options.subscription.pattern is None:
        return options
    view = look(options.bootstrap_servers, options.subscription, "PLAINTEXT")
    names = [name for name in sorted(view.topics) if not name.startswith("__")]
    clusters = _Clusters(options)
    try:
        names = clusters.without_returning(names)
    except KafkaError as error:
        raise sink_error(error, "looking for mirrors in the source's cluster") from error
    finally:
        clusters.close()
    if not names:
        raise JobError(
            f"--subscribePattern {options.subscription} matches no topic but internal ones and "
            "mirrors of the target's"
        )
    return replace(options, subscription=Subscription(tuple(names)))


def _sink(options: MirrorOptions, copy: Opened) -> KafkaSink:
    return kafka_sink(
        options.to_servers,
        query_name=options.query_name,
        topics=[options.prefix + name for name in options.subscription.topics],
        arrangement="keep",
        end_offsets=CheckpointOffsets(str(copy.query)),
        query_id=query_id(copy.identity),
        adopt_checkpoint=copy.is_adopted,
        has_offset_map=True,
    )


class _Clusters:
    """Source and target over the wire, before the query starts. Every method raises JobError."""

    def __init__(self, options: MirrorOptions) -> None:
        self._options = options
        self._source = BlockingClient(ClusterAddress(options.bootstrap_servers))
        self._target = BlockingClient(ClusterAddress(options.to_servers))
        self._transactional_id = QuerySettings(options.query_name, ()).transactional_id

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._target.close()

    def origins(self) -> dict[str, tuple[Origin, ...]]:
        """By source topic, what it comes from. Raises StartRefused for a circle."""
        try:
            source_id, target_id = cluster_id(self._source), cluster_id(self._target)
            known = registrations(self._source)
        except KafkaError as error:
            raise sink_error(error, "looking for mirrors in the source's cluster") from error
        found = {}
        for name in self._options.subscription.topics:
            origins = origins_of(Origin(source_id, name), known)
            refuse_circle(Origin(target_id, self._options.prefix + name), origins)
            found[name] = origins
        return found

    def without_returning(self, names: list[str]) -> list[str]:
        """The topics of these that no mirror has brought from the target's cluster. Raises
        KafkaError.
        """
        source_id, target_id = cluster_id(self._source), cluster_id(self._target)
        known = registrations(self._source)
        kept = []
        for name in names:
            _, *earlier = origins_of(Origin(source_id, name), known)
            if all(origin.cluster_id != target_id for origin in earlier):
                kept.append(name)
        return kept

    def register(self) -> None:
        """Register, then look again: of two mirrors that begin at once, one sees the other. Raises
        StartRefused for a circle.
        """
        origins = self.origins()
        existing = {(one.query_name, one.target): one for one in registrations(self._target)}
        made = []
        for name, each in origins.items():
            target = self._options.prefix + name
            one = Registration(self._options.query_name, target, each)
            if existing.get((one.query_name, target)) != one:
                register(self._target, one, self._transactional_id)
                made.append(target)
        try:
            self.origins()
        except StartRefused:
            for target in made:
                unregister(self._target, target, self._transactional_id)
            raise

    def prepare(self, topics: Topics) -> list[str]:
        """Create the target topics, or make them as the source topics are; gives notes."""
        notes: list[str] = []
        for name, facts in topics.items():
            notes += self._prepare(name, len(facts.latest))
        return notes

    def _prepare(self, name: str, count: int) -> list[str]:
        target_name = self._options.prefix + name
        configs, retention = own_configs(self._source, name), retention_of(self._source, name)
        target = find_target(self._target, target_name)
        if target is None:
            _, note = create_copy(self._target, target_name, count, configs, retention)
            return [note]
        if target.partition_count < count:
            add_partitions(self._target, target_name, count)
            target = replace(target, partition_count=count)
        notes = check_target(self._target, target, count, retention)
        if not self._options.copies_configs:
            return notes
        there = own_configs(self._target, target_name)
        changed = {key: value for key, value in configs.items() if there.get(key) != value}
        if not changed:
            return notes
        set_configs(self._target, target_name, changed)
        notes = check_target(self._target, target, count, retention)
        return [f"set {shown_configs(changed)} of topic {target_name}", *notes]
