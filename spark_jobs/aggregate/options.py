"""The options of `aggregate`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import JobError
from ..options import Option
from ..stateful.options import STATEFUL_OPTIONS, StatefulOptions, stateful_options
from ..stateful.watermarks import parse_duration
from .measures import Group, Measure, parse_groups, parse_measures

JOB: Final = "aggregate"
DEFAULT_GROUPS: Final = "key"
DEFAULT_MEASURES: Final = "count=count(*)"

AGGREGATE_OPTIONS: Final = (
    *STATEFUL_OPTIONS,
    Option(
        "groupBy",
        "comma separated: key (default), value.field, name=expression of Spark SQL; none for all",
        "COLUMNS",
        check=parse_groups,
    ),
    Option(
        "aggregates",
        "comma separated: name=function(expression), function count, sum, min, max or avg "
        "(default: count=count(*))",
        "TOTALS",
        check=parse_measures,
    ),
    Option("schema", "value is JSON with these fields: 'country string, amount double'", "DDL"),
    Option(
        "window",
        "totals of each '5 minutes' of record time, written once when it is over (default: "
        "running totals, written whenever they change)",
        "TIME",
        check=parse_duration,
    ),
)


@dataclass(frozen=True)
class AggregateOptions:
    """What is read and written, by which groups. window_ms: None for running totals. schema: DDL of
    JSON values, empty where `value` is a string.
    """

    stateful: StatefulOptions
    groups: tuple[Group, ...] = (Group("key", "key"),)
    measures: tuple[Measure, ...] = (Measure("count", "count", "1"),)
    schema: str = ""
    window_ms: int | None = None


def aggregate_options(values: Mapping[str, str]) -> AggregateOptions:
    """Of a job's collected values. Raises JobError."""
    stateful = stateful_options(values, JOB)
    grouped = values.get("groupBy", DEFAULT_GROUPS)
    groups = () if grouped == "none" else parse_groups(grouped)
    measures = parse_measures(values.get("aggregates", DEFAULT_MEASURES))
    twice = {group.name.lower() for group in groups} & {one.name.lower() for one in measures}
    if twice:
        raise JobError(f"{twice.pop()} is a group and a total: give one of them another name")
    window = values.get("window")
    if (window is None) != (stateful.delay_ms is None):
        raise JobError(
            "--window and --delayThreshold belong together: windows end by the watermark, and "
            "running totals have no late records"
        )
    return AggregateOptions(
        stateful,
        groups,
        measures,
        values.get("schema", ""),
        None if window is None else parse_duration(window),
    )
