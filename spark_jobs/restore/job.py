"""`restore` and `replay`: an archive, or a range of a topic, to a topic. Partition, order, time,
key, value and headers of a record stay as they are.

Offsets stay too if the target is empty and the source has a record at every offset from 0 on:
`kept`. Otherwise each slice is a transaction of the exactly-once sink, and `__spark_offsets` gets
the offset map. Either way the target's cluster says how far the copy is, and a run goes on there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kbroker.client.cluster import LATEST_TIMESTAMP, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..arrow_map import map_in_arrow
from ..cluster import Subscription, look
from ..copying.opening import BATCH_IS_OPEN, LOOK_S
from ..copying.targets import RESTORED_CONFIGS, check_target, create_target, find_target
from ..errors import JobError, StartRefused, first_cause
from ..exactly_once.check import newest_token
from ..exactly_once.driver import QueryDriver, QuerySettings, TaskReport
from ..exactly_once.errors import Failure, SinkError, sink_error
from ..exactly_once.frames import Layout, arranged
from ..exactly_once.grant import Grant
from ..exactly_once.tasks import REPORT_SCHEMA, WriteTask, reports_of
from ..exactly_once.tokens import Token
from ..exactly_once.topics import MAP_TOPIC, TargetTopic
from ..kafka_source import DEFAULT_RECORDS, FEWEST_RECORDS, arrow_batches
from ..progress import BatchProgress, Reporter
from ..session import check_kafka_source, ship
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.offsets import list_offsets
from .kept import KeepTask, KeptGrant, ends_foreign, new_producer_id
from .options import EARLIEST, RestoreOptions
from .plan import Found, Plan, decide
from .report import CopyReport
from .slices import Slice, counted_slices, timed_slices
from .sources import Source, periods_of, refuse_itself, source_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS: Final = 4
RETRY_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A copy that may begin. notes: lines for the user."""

    options: RestoreOptions
    source: Source
    target: TargetTopic
    plan: Plan
    notes: tuple[str, ...]


def describe_check(options: RestoreOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    source = _looked_at(options)
    address = ClusterAddress(options.bootstrap_servers, retry_timeout_s=LOOK_S)
    client = BlockingClient(address)
    try:
        target, notes = _target(options, source, client)
        token = newest_token(client, options.name)
        starts = _wanted_starts(options, source, None)
        plan = decide(_found(options, source, target, token, starts, client))
    except KafkaError as error:
        if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            return f"query {options.name}: {BATCH_IS_OPEN}"
        raise sink_error(error, f"checking query {options.name}") from error
    finally:
        client.close()
    left = sum(max(end - plan.positions[p], 0) for p, end in source.ends.items())
    says = [
        f"{counted(left, 'offset')} of {source.name} to write",
        f"topic {options.to_topic} {'is created' if target is None else 'exists'}",
    ]
    if options.since_ms is not None and token is None:
        says.append("those before --since are left out")
    elif plan.keeper_id is not None:
        says.append("offsets are kept")
    elif plan.may_keep:
        says.append("offsets are kept if the source has no gaps")
    else:
        says.append(f"with an offset map{f' ({plan.obstacle})' if plan.obstacle else ''}")
    return f"query {options.name}: {'; '.join((*says, *notes, *plan.notes))}"


def restore(
    spark: SparkSession,
    options: RestoreOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> CopyReport:
    """Run `restore` or `replay` to the end of what the source has now, or until `stop` is set; a
    batch that has begun ends first.

    Raises StartRefused if source, target and token do not fit together, JobError if a batch cannot
    be written; what was committed stays, and the next run goes on behind it.
    """
    source = _looked_at(options)
    client = BlockingClient(ClusterAddress(options.bootstrap_servers))
    ship(spark)
    check_kafka_source(spark)
    settings = QuerySettings(options.name, (options.to_topic,), map_topic=MAP_TOPIC)
    driver = QueryDriver(client, settings)
    try:
        opened, kept = _opened(spark, options, source, client, driver)
        write = (
            _kept_write(opened, client, kept) if kept is not None else _mapped_write(opened, driver)
        )
        run = _Run(opened, write, kept is not None, reporter or Reporter("none"))
        with arrow_batches(spark, source.record_bytes):
            return run.to_end(spark, stop if stop is not None else threading.Event())
    except JobError:
        raise
    except KafkaError as error:
        raise sink_error(error, f"{options.job} to {options.to_topic}") from error
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"{options.job} stopped: {first_cause(error)}") from error
    finally:
        client.close()


def _looked_at(options: RestoreOptions) -> Source:
    """The source, once both clusters were found to answer. Raises JobError."""
    source = source_of(options)
    look(options.bootstrap_servers, Subscription(), "PLAINTEXT")
    return source


def _count(source: Source) -> int:
    """Partitions that a target needs. An archive may lack some."""
    return max(source.ends) + 1


def _target(
    options: RestoreOptions, source: Source, client: BlockingClient
) -> tuple[TargetTopic | None, list[str]]:
    """The target if it exists, with notes. Raises JobError or StartRefused if the source cannot be
    copied to it.
    """
    target = find_target(client, options.to_topic)
    if target is None:
        return None, []
    refuse_itself(source, client, target.name)
    return target, check_target(client, target, _count(source))


def _opened(
    spark: SparkSession,
    options: RestoreOptions,
    source: Source,
    client: BlockingClient,
    driver: QueryDriver,
) -> tuple[Opened, int | None]:
    """The start carried out: the target made, and the producer id that keeps offsets, None for an
    offset map.
    """
    token = driver.newest_token()
    starts = _wanted_starts(options, source, spark if token is None else None)
    target, notes = _target(options, source, client)
    plan = decide(_found(options, source, target, token, starts, client))
    is_kept = plan.keeper_id is not None
    if plan.may_keep:
        is_kept = source.is_whole(spark)
        if not is_kept and options.offsets == "keep":
            raise StartRefused(
                f"offsets cannot be kept: {source.name} has offsets without a record. --offsets "
                "map writes an offset map"
            )
    if target is None:
        count = _count(source)
        target = create_target(client, options.to_topic, count, RESTORED_CONFIGS)
        notes.append(
            f"created topic {target.name} with {counted(count, 'partition')} and retention.ms=-1"
        )
    opened = Opened(options, source, target, plan, (*notes, *plan.notes))
    if not is_kept:
        return opened, None
    if plan.keeper_id is not None:
        return opened, plan.keeper_id
    return opened, _keeper(options, source, client)


def _keeper(options: RestoreOptions, source: Source, client: BlockingClient) -> int:
    """A producer id that the first token of the copy names, so that every run has the same one."""
    keeper_id = new_producer_id(client)
    # Without the target's partitions: a marker would take an offset in each.
    settings = QuerySettings(options.name, ())
    driver = QueryDriver(client, settings)
    driver.write_batch(0, lambda grant: [], query_id=source.identity, keeper_id=keeper_id)
    token = driver.newest_token()
    if token is None or token.keeper_id is None:
        raise JobError(f"the token of query {options.name} is lost: was its topic changed?")
    return token.keeper_id


def _wanted_starts(
    options: RestoreOptions, source: Source, spark: SparkSession | None
) -> dict[int, int]:
    """Where a first run begins. spark: None where the time of records does not matter, or cannot be
    looked at (of an archive).
    """
    starts = dict(source.firsts)
    given = (options.starting or {}).get(source.topic, {})
    for partition, offset in given.items():
        if partition not in starts:
            raise JobError(f"--startingOffsets: {source.topic} has no partition {partition}")
        if offset >= 0:
            starts[partition] = min(offset, source.ends[partition])
        elif offset != EARLIEST:
            starts[partition] = source.ends[partition]
    if options.since_ms is not None and spark is not None:
        starts |= source.starts_since(spark, options.since_ms)
    return starts


def _found(
    options: RestoreOptions,
    source: Source,
    target: TargetTopic | None,
    token: Token | None,
    starts: Mapping[int, int],
    client: BlockingClient,
) -> Found:
    target_ends: dict[int, int] = {}
    if target is not None:
        places = [TopicPartition(target.name, index) for index in range(target.partition_count)]
        latest = dict.fromkeys(places, LATEST_TIMESTAMP)
        found = client.retry(partial(list_offsets, client, latest))
        target_ends = {place.partition: end for place, end in found.items()}
    foreign: frozenset[int] = frozenset()
    if token is not None and token.keeper_id is not None:
        foreign = frozenset(
            partition
            for partition, end in target_ends.items()
            if partition in source.ends
            and ends_foreign(
                client, TopicPartition(options.to_topic, partition), end, token.keeper_id
            )
        )
    return Found(
        query_name=options.name,
        source=source.name,
        source_topic=source.topic,
        source_id=source.identity,
        starts=starts,
        ends=source.ends,
        firsts=source.firsts,
        target_topic=options.to_topic,
        target_ends=target_ends,
        token=token,
        foreign=foreign,
        wanted=options.offsets,
        fail_on_data_loss=options.fail_on_data_loss,
    )


Write = Callable[["DataFrame", Slice, int], int]
"""Writes the records of a slice as a batch of that id; gives their number."""


def _layout(opened: Opened) -> Layout:
    return Layout(
        opened.target.name,
        opened.source.arrangement,
        ("offset",) if opened.source.arrangement == "shuffle" else (),
        has_offsets=True,
    )


def _mapped_write(opened: Opened, driver: QueryDriver) -> Write:
    """A transaction of the sink for each slice."""
    layout = _layout(opened)

    def write(frame: DataFrame, slice_: Slice, batch_id: int) -> int:
        def tasks(grant: Grant) -> Sequence[TaskReport]:
            counts = {topic.name: topic.partition_count for topic in grant.topics.values()}
            written = map_in_arrow(
                arranged(frame, layout, counts), WriteTask(grant, layout.topic), REPORT_SCHEMA
            )
            return reports_of(written.collect())

        source = opened.source
        report = driver.write_batch(
            batch_id,
            tasks,
            query_id=source.identity,
            end_offsets={source.topic: slice_.ends},
        )
        return report.records

    return write


class _Again(Exception):
    """The slice is to be written again."""


def _keep(rows: DataFrame, grant: KeptGrant, batch_id: int) -> int:
    """One attempt; gives the records that it has written. Raises _Again or SinkError."""
    try:
        reports = reports_of(map_in_arrow(rows, KeepTask(grant), REPORT_SCHEMA).collect())
    except Exception as error:  # Spark's, Java's and the frame's have no common base
        raise _Again(first_cause(error)) from error
    failures = {one.failure: one.message for one in reports if one.failure is not None}
    restart = failures.pop(Failure.RESTART, None)
    if failures:
        raise SinkError(f"batch {batch_id} cannot be written: {min(failures.values())}")
    if restart is not None:
        raise _Again(restart)
    return sum(count for one in reports for count in one.records.values())


def _kept_write(opened: Opened, client: BlockingClient, keeper_id: int) -> Write:
    """Each record at its own offset; a failed attempt is repeated."""
    layout = _layout(opened)
    grant = KeptGrant(client.address, opened.target, keeper_id)

    def write(frame: DataFrame, slice_: Slice, batch_id: int) -> int:
        rows = arranged(frame, layout, {opened.target.name: opened.target.partition_count})
        last = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(RETRY_PAUSE_S)
            try:
                return _keep(rows, grant, batch_id)
            except _Again as again:
                last = str(again)
        raise SinkError(f"batch {batch_id} failed {ATTEMPTS} times; the last time: {last}")

    return write


class _Run:
    """The slices of one run, one after the other."""

    def __init__(self, opened: Opened, write: Write, is_kept: bool, reporter: Reporter) -> None:
        self._opened = opened
        self._write = write
        self._is_kept = is_kept
        self._reporter = reporter
        self._reached = dict(opened.plan.positions)
        self._rows = 0
        self._batches = 0

    def to_end(self, spark: SparkSession, stop: threading.Event) -> CopyReport:
        """Write slices until the last, or until `stop` is set between two."""
        opened = self._opened
        batch_id = opened.plan.batch_id
        began_s = time.monotonic()
        is_whole = True
        for slice_ in self._slices(spark):
            wait_s = began_s + slice_.due_s - time.monotonic()
            if stop.wait(wait_s) if wait_s > 0 else stop.is_set():
                is_whole = False
                break
            batch_id += self._write_slice(spark, slice_, batch_id)
            self._reached |= slice_.ends
        self._reporter.end()
        return CopyReport(
            opened.options.job,
            opened.source.name,
            opened.target.name,
            self._rows,
            self._batches,
            self._reached,
            self._is_kept,
            is_whole,
            opened.notes,
        )

    def _slices(self, spark: SparkSession) -> Iterator[Slice]:
        options, source = self._opened.options, self._opened.source
        starts, ends = dict(self._reached), dict(source.ends)
        most = slice_limit(options, source.record_bytes)
        if options.speed is None:
            return counted_slices(starts, ends, most, options.rate)
        rows = source.frame(spark, starts, ends)
        periods = [] if rows is None else periods_of(rows, options.speed)
        return timed_slices(starts, ends, most, periods)

    def _write_slice(self, spark: SparkSession, slice_: Slice, batch_id: int) -> int:
        """Returns the number of batches: 0 for a slice without records."""
        began_s = time.monotonic()
        frame = self._opened.source.frame(spark, slice_.starts, slice_.ends)
        if frame is None:
            return 0
        records = self._write(frame, slice_, batch_id)
        self._rows += records
        self._batches += 1
        seconds = time.monotonic() - began_s
        source = self._opened.source
        lag = sum(max(end - slice_.ends[p], 0) for p, end in source.ends.items())
        rate = records / seconds if seconds else 0.0
        end = {source.topic: dict(slice_.ends)}
        batch = BatchProgress(batch_id, records, rate, lag, int(seconds * 1000), end)
        self._reporter.show(self._opened.options.name, batch, 0)
        return 1


def slice_limit(options: RestoreOptions, record_bytes: float | None) -> int:
    """Offsets of a slice: as given, else as many as have about max_bytes where they are stored."""
    if options.max_offsets is not None:
        return options.max_offsets
    if record_bytes is None:
        return DEFAULT_RECORDS
    return max(FEWEST_RECORDS, int(options.max_bytes / record_bytes))
