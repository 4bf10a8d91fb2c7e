"""`table`: the newest record of each key as a row, a tombstone deletes it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..archive.job import describe_output, run_archive
from ..errors import StartRefused
from ..lake.formats import check_format
from ..progress import Reporter, Totals
from ..topic_checks import counted
from .options import TableOptions
from .store import TableStore, table_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TableReport:
    """What a run did. totals: of this run; applied: records that the table has seen in all."""

    options: TableOptions
    totals: Totals
    applied: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "rows": self.totals.rows,
            "batches": self.totals.batches,
            "end_offsets": self.totals.end,
            "applied": self.applied,
        }

    def to_text(self) -> str:
        """The line at the end of a run."""
        return (
            f"applied {counted(self.totals.rows, 'record')} of {self.options.topic} to "
            f"{self.options.output} in {counted(self.totals.batches, 'batch')}"
        )


def describe_check(options: TableOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    store = table_store(options, None)
    _check_rule(options, store)
    return describe_output(options.archive, store)


def table(
    spark: SparkSession,
    options: TableOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> TableReport:
    """Run the job: to the end of what there is now, or with a trigger until `stop` is set.

    Raises StartRefused if table, checkpoint and cluster do not fit together, JobError if the query
    failed; what was committed stays.
    """
    check_format(spark, options.lake)
    store = table_store(options, spark)
    store.values.columns(spark)  # before a batch finds a mistake in the schema
    _check_rule(options, store)
    summary = run_archive(spark, options.archive, store, reporter=reporter, stop=stop)
    return TableReport(options, summary.totals, summary.archived, summary.notes)


def _check_rule(options: TableOptions, store: TableStore) -> None:
    commit = store.newest()
    if commit is None or not commit.records:
        return
    if commit.layout != options.rule:
        raise StartRefused(
            f"{store.folder} was made with {' and '.join(commit.layout)}, and this is "
            f"{' and '.join(options.rule)}: give the options as they were, or another --output"
        )
