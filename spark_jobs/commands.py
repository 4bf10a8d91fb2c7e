"""The jobs that write records, as the command line runs them: what each is called, its options,
what its start would do, and the run. Their modules need kbroker's client and are imported when they
run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from .aggregate.options import AGGREGATE_OPTIONS, aggregate_options
from .dedupe.options import DEDUPE_OPTIONS, dedupe_options
from .dlq.options import DLQ_OPTIONS, dlq_options
from .lake.formats import LakeFormat
from .mirror.options import MIRROR_OPTIONS, mirror_options
from .options import Option
from .progress import Reporter
from .restore.options import REPLAY_OPTIONS, RESTORE_OPTIONS, replay_options, restore_options
from .table.options import TABLE_OPTIONS, table_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Values = Mapping[str, str]


class Report(Protocol):
    """What a run did. notes: lines for the user."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        ...

    def to_text(self) -> str:
        """The end of the run, as lines."""
        ...


Run = Callable[["SparkSession", Any, Reporter, threading.Event], Report]


@dataclass(frozen=True, slots=True)
class Command:
    """A job. parse: of collected values to the job's options; check: what a start would do;
    formats: those of the tables that it writes.
    """

    name: str
    help: str
    description: str
    options: Sequence[Option]
    parse: Callable[[Values], Any]
    check: Callable[[Any], str]
    run: Run
    formats: Callable[[Any], tuple[LakeFormat, ...]] = lambda options: ()


def _check_restore(options: Any) -> str:
    from .restore.job import describe_check

    return describe_check(options)


def _restore(
    spark: SparkSession, options: Any, reporter: Reporter, stop: threading.Event
) -> Report:
    from .restore.job import restore

    return restore(spark, options, reporter=reporter, stop=stop)


def _check_mirror(options: Any) -> str:
    from .mirror.job import describe_check

    return describe_check(options)


def _mirror(spark: SparkSession, options: Any, reporter: Reporter, stop: threading.Event) -> Report:
    from .mirror.job import mirror

    return mirror(spark, options, reporter=reporter, stop=stop)


def _check_dlq(options: Any) -> str:
    from .dlq.job import describe_check

    return describe_check(options)


def _dlq(spark: SparkSession, options: Any, reporter: Reporter, stop: threading.Event) -> Report:
    from .dlq.job import dlq

    return dlq(spark, options, reporter=reporter, stop=stop)


def _check_dedupe(options: Any) -> str:
    from .dedupe.job import describe_check

    return describe_check(options)


def _dedupe(spark: SparkSession, options: Any, reporter: Reporter, stop: threading.Event) -> Report:
    from .dedupe.job import dedupe

    return dedupe(spark, options, reporter=reporter, stop=stop)


def _check_aggregate(options: Any) -> str:
    from .aggregate.job import describe_check

    return describe_check(options)


def _aggregate(
    spark: SparkSession, options: Any, reporter: Reporter, stop: threading.Event
) -> Report:
    from .aggregate.job import aggregate

    return aggregate(spark, options, reporter=reporter, stop=stop)


def _check_table(options: Any) -> str:
    from .table.job import describe_check

    return describe_check(options)


def _table(spark: SparkSession, options: Any, reporter: Reporter, stop: threading.Event) -> Report:
    from .table.job import table

    return table(spark, options, reporter=reporter, stop=stop)


_SAME = "Partition, order, time, key, value and headers of each record stay as they are."

COMMANDS: Final = {
    command.name: command
    for command in (
        Command(
            "restore",
            "an archive to a topic, each record once",
            f"A topic of an archive to a topic, each record once. {_SAME} Its offset too, if the "
            "topic is empty and the archive has a record at every offset from 0 on; otherwise an "
            "offset map is written.",
            RESTORE_OPTIONS,
            restore_options,
            _check_restore,
            _restore,
        ),
        Command(
            "replay",
            "a range of a topic to a topic, each record once",
            f"A topic, or a range of it, to a topic, each record once. {_SAME} Its offset too, if "
            "the target is empty and the source has a record at every offset from 0 on; otherwise "
            "an offset map is written.",
            REPLAY_OPTIONS,
            replay_options,
            _check_restore,
            _restore,
        ),
        Command(
            "mirror",
            "topics to another cluster, each record once",
            f"Topics to topics of another cluster, or of another name, each record once. {_SAME} "
            "Configurations are copied, and translate moves consumer groups.",
            MIRROR_OPTIONS,
            mirror_options,
            _check_mirror,
            _mirror,
        ),
        Command(
            "dlq",
            "records that cannot be used to a topic of their own",
            "Records that can be used to one topic, the others to a dead letter topic with the "
            "headers of Kafka Connect's, in one transaction. `dlq retry` sends those round again.",
            DLQ_OPTIONS,
            lambda values: dlq_options(values, is_retry=False),
            _check_dlq,
            _dlq,
        ),
        Command(
            "dlq-retry",
            "dead letters round again (also: dlq retry)",
            "Dead letters to the topic of the records that can be used, without the headers that "
            "dlq added; those that still cannot be used to the end of the dead letters.",
            DLQ_OPTIONS,
            lambda values: dlq_options(values, is_retry=True),
            _check_dlq,
            _dlq,
        ),
        Command(
            "dedupe",
            "the first record of each id to a topic",
            "The first record of each id, by key, value, a header or a field, to a topic, each "
            "once. Ids are remembered until the watermark has passed them.",
            DEDUPE_OPTIONS,
            dedupe_options,
            _check_dedupe,
            _dedupe,
        ),
        Command(
            "aggregate",
            "totals by key or fields to a topic, in windows or running",
            "Totals of a topic by key or fields to a topic, exactly once: of each window when it "
            "is over, or running ones whenever they change. Late records are dropped and counted, "
            "or go to a topic of their own.",
            AGGREGATE_OPTIONS,
            aggregate_options,
            _check_aggregate,
            _aggregate,
        ),
        Command(
            "table",
            "the current row of each key to a table of Delta Lake or Iceberg",
            "The newest record of each key of a compacted topic, or of one of Debezium, as a row "
            "of a table. A tombstone deletes the row. Offsets decide, so what is read again "
            "changes nothing.",
            TABLE_OPTIONS,
            table_options,
            _check_table,
            _table,
            lambda options: (options.lake,),
        ),
    )
}
