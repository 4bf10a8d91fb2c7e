"""`archive`: topics to files of Parquet or a table, every record exactly once, for any reader.

A batch's files of Parquet are written hidden; a commit in the output names them and the offsets
they reach; then they are renamed to names made of their content. In a table a batch is one commit.
What was cut off is finished by the next start or written again by the same batch, whose offsets
Spark's checkpoint fixed. So a record is there once, and the output itself says how far it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cluster import ClusterView
from ..connect import JobFunction, job_function, take_tally
from ..errors import JobError, first_cause
from ..kafka_source import arrow_batches, read_stream, record_limit, starting_at
from ..lake.formats import check_format
from ..progress import Progress, Reporter, Totals
from ..running import run_query
from ..session import check_kafka_source, is_remote, ship
from ..topic_checks import counted
from .batches import ArchiveBatches, batches_of
from .layout import FileRange, check_name
from .opening import Opened, check_start, opened
from .options import ArchiveOptions
from .start import Plan
from .stores import Store, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

COLUMNS = (
    *("key", "value", "headers", "topic", "partition", "offset", "timestamp"),
    "timestampType",
)
"""Of the rows: binary, binary, array<struct<key string, value binary>>, string, int, long,
timestamp, int (0 CreateTime, 1 LogAppendTime).
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did. totals: of this run; archived: records in the whole output. dead: records of
    this run that could not be decoded, None where values stay bytes.
    """

    totals: Totals
    archived: int
    notes: tuple[str, ...] = ()
    dead: int | None = None

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "rows": self.totals.rows,
            "batches": self.totals.batches,
            "files": self.totals.files,
            "end_offsets": self.totals.end,
            "archived": self.archived,
            **({} if self.dead is None else {"dead": self.dead}),
        }

    def to_text(self, options: ArchiveOptions) -> str:
        """The line at the end of a run."""
        files = "" if options.lake else f" and {counted(self.totals.files, 'file')}"
        return (
            f"archived {counted(self.totals.rows, 'record')} of {options.subscription} to "
            f"{options.output} in {counted(self.totals.batches, 'batch')}{files}"
            f"{f'; {self.dead:,} could not be decoded' if self.dead else ''}"
        )


def describe_check(options: ArchiveOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    return describe_output(options, store_of(options))


def describe_output(options: ArchiveOptions, store: Store) -> str:
    """As `describe_check`, for a job that keeps such an output."""
    plan, view = check_start(options, store)
    _check_names(options, store, plan, view)
    options.decoding.check(*view.topics)
    names = sorted(view.topics)
    shown = ", ".join(names[:5]) + (" and more" if len(names) > 5 else "")
    topics = f"topics {shown}" if view.is_known else f"topics not checked: {view.unknown_because}"
    actions = {
        "begin": f"begins a new {options.job}",
        "continue": "goes on where it stopped",
        "resume": f"resumes from {options.resume_from}",
        "finish resume": "finishes the resume that was cut off",
    }
    return "; ".join((f"{options.output}: {actions[plan.action]}", topics, *plan.notes))


def _check_names(options: ArchiveOptions, store: Store, plan: Plan, view: ClusterView) -> None:
    """Raises JobError if a topic's name is too long for the names of files."""
    if options.lake is not None or "topic" in options.layout:
        return
    commit = store.newest()
    generations = commit.generations if commit is not None else {}
    for topic in sorted({*view.topics, *options.subscription.topics}):
        facts = view.topics.get(topic)
        ends = facts.latest if facts is not None else {}
        generation = generations.get(topic, 1) + (topic in plan.recreated)
        partition, offset = max(ends, default=0), max(ends.values(), default=0)
        content = FileRange(topic, partition, offset, offset, generation)
        check_name(options.layout, content, store.folder.longest_name)


def archive(
    spark: SparkSession,
    options: ArchiveOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> Summary:
    """Run the job: to the end of what there is now, or with a trigger until `stop` is set.

    Raises StartRefused if output, checkpoint and cluster do not fit together, JobError if the query
    failed; what was committed stays.
    """
    if options.lake is not None:
        check_format(spark, options.lake)
    return run_archive(spark, options, store_of(options, spark), reporter=reporter, stop=stop)


def run_archive(
    spark: SparkSession,
    options: ArchiveOptions,
    store: Store,
    *,
    reporter: Reporter | None,
    stop: threading.Event | None,
) -> Summary:
    """Run a job that keeps such an output. As `archive` otherwise."""
    if options.lake is None and "topic" not in options.layout:
        describe_output(options, store)  # before a resume changes the output
    stopping = stop if stop is not None else threading.Event()
    progress = Progress(options.query_name, reporter or Reporter("none"))
    with opened(options, store) as archive_:
        batches = _batches(archive_, progress, stopping.is_set)
        run_query(
            spark,
            lambda: start_archive(spark, archive_, batches),
            lambda: batches.failure,
            progress,
            query_name=options.query_name,
            job=options.job,
            stop=stopping,
        )
        take_tally(spark, batches, archive_.checkpoint)
        progress.totals.files = batches.files
        commit = store.newest()
        archived = store.count(commit) if commit is not None else 0
    dead = None if options.decoding.decode == "none" else batches.dead
    return Summary(progress.totals, archived, archive_.notes, dead)


def start_archive(spark: SparkSession, archive_: Opened, batches: JobFunction) -> StreamingQuery:
    """Start the query of an opened archive. Raises JobError."""
    options = archive_.options
    if archive_.store.has_python_tasks or is_remote(spark):  # Connect runs the batch function there
        ship(spark)
    try:
        check_kafka_source(spark)
        with arrow_batches(spark, archive_.view.record_bytes):
            writer = _writer(spark, archive_)
            return writer.foreachBatch(job_function(spark, batches, archive_.checkpoint)).start()
    except JobError:
        raise
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"{options.job} cannot start: {first_cause(error)}") from error


def _writer(spark: SparkSession, archive_: Opened) -> DataStreamWriter:
    options = archive_.options
    frame = read_stream(
        spark,
        options.bootstrap_servers,
        options.subscription,
        source_options_of(archive_),
        record_limit(options.source_options, options.max_bytes_per_trigger, archive_.view),
    )
    writer = (
        frame.select(*COLUMNS)
        .writeStream.queryName(options.query_name)
        .option("checkpointLocation", archive_.query.spark_uri)
    )
    if options.trigger is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=options.trigger)


def source_options_of(archive_: Opened) -> dict[str, str]:
    """The source's options; a query that resumes begins at its own offsets."""
    options, starting = archive_.options, archive_.identity.starting
    return starting_at(starting, options.source_options, options.subscription, archive_.view)


def _batches(
    archive_: Opened, progress: Progress, is_stopping: Callable[[], bool]
) -> ArchiveBatches:
    batches = batches_of(archive_)
    batches.is_stopping = is_stopping

    def show() -> None:
        progress.totals.files = batches.files

    batches.on_commit = show
    return batches
