"""The options of `dedupe`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from ..options import Option
from ..stateful.options import STATEFUL_OPTIONS, StatefulOptions, stateful_options
from .ids import parse_by

JOB: Final = "dedupe"
WithoutId = Literal["fail", "keep"]

DEDUPE_OPTIONS: Final = (
    *STATEFUL_OPTIONS,
    Option(
        "by",
        "the id: key (default), value, header:NAME, or json:$.path of a field of the value",
        "ID",
        check=parse_by,
    ),
    Option(
        "withoutId",
        "records without an id: end the job (fail, default), or write all of them (keep)",
        choices=get_args(WithoutId),
    ),
)


@dataclass(frozen=True)
class DedupeOptions:
    """What is read and written, by which id. without_id: what becomes of records without one."""

    stateful: StatefulOptions
    by: str = "key"
    without_id: WithoutId = "fail"


def dedupe_options(values: Mapping[str, str]) -> DedupeOptions:
    """Of a job's collected values. Raises JobError."""
    return DedupeOptions(
        stateful_options(values, JOB),
        values.get("by", "key"),
        cast("WithoutId", values.get("withoutId", "fail")),
    )
