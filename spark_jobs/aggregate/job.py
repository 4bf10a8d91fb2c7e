"""`aggregate`: totals of a topic to a topic, written exactly once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..errors import JobError, first_cause
from ..progress import Reporter
from ..stateful.job import StatefulReport, describe_stateful_start, run_stateful
from .options import AggregateOptions
from .rule import AggregateRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNNING_CONFIGS: Final = {"cleanup.policy": "compact"}
"""Of a topic of running totals, of which the newest counts."""

SOURCE_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>, time_ms long"
)


def describe_check(options: AggregateOptions) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    return describe_stateful_start(options.stateful, _rule(options).text)


def aggregate(
    spark: SparkSession,
    options: AggregateOptions,
    *,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> StatefulReport:
    """Run the job. Raises as `run_stateful` does, and JobError for expressions that Spark does not
    understand.
    """
    rule = _rule(options)
    check_expressions(spark, rule)
    configs = RUNNING_CONFIGS if options.window_ms is None else {}
    return run_stateful(spark, options.stateful, rule, configs, reporter=reporter, stop=stop)


def check_expressions(spark: SparkSession, rule: AggregateRule) -> None:
    """Raises JobError unless Spark understands groups, totals and schema."""
    from ..stateful.batches import Step
    from ..stateful.watermarks import NO_WATERMARK

    try:
        empty = spark.createDataFrame([], SOURCE_SCHEMA)
        step = Step(0, empty, None, NO_WATERMARK, NO_WATERMARK)
        _ = rule.results(step, rule.rows(step)).schema
    except Exception as error:  # AnalysisException, ParseException; under Connect other classes
        raise JobError(f"{rule.text}: {first_cause(error)}") from error


def _rule(options: AggregateOptions) -> AggregateRule:
    return AggregateRule(options.groups, options.measures, options.schema, options.window_ms)
