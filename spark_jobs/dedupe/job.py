"""`dedupe`: a topic to a topic, of each id the first record, written exactly once.

The first record of an id is the one with the earliest time in the first batch that has the id.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..progress import Reporter
from ..stateful.job import StatefulReport, describe_stateful_start, run_stateful
from .options import DedupeOptions
from .rule import DedupeRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def describe_check(options: DedupeOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    return describe_stateful_start(options.stateful, _rule(options).text)


def dedupe(
    spark: SparkSession,
    options: DedupeOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> StatefulReport:
    """Run the job. Raises as `run_stateful` does."""
    return run_stateful(spark, options.stateful, _rule(options), {}, reporter=reporter, stop=stop)


def _rule(options: DedupeOptions) -> DedupeRule:
    return DedupeRule(options.by, options.without_id == "keep")
