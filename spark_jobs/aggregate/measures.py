"""Groups and totals out of their texts: `value.country`, `total=sum(value.amount)`. Pure.

A total is kept in parts that can be added to those of another batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAMED: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(.+)", re.DOTALL)
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_CALL: Final = re.compile(r"(count|sum|min|max|avg)\((.+)\)", re.DOTALL)

RESERVED: Final = frozenset({"window_start", "window_end", "last_ms", "changed", "record_time_ms"})
"""Columns of the state and of results."""

_MERGES: Final = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class Group:
    """A part of a group's key. expression: of Spark SQL."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Part:
    """A column of the state. function: of a batch's records; merge: of the parts of batches."""

    column: str
    function: str

    @property
    def merge(self) -> str:
        """What adds two of them."""
        return _MERGES[self.function]


@dataclass(frozen=True, slots=True)
class Measure:
    """A total. function: count, sum, min, max or avg, of a Spark SQL expression."""

    name: str
    function: str
    expression: str

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is kept of it: an average as sum and count."""
        functions = ("sum", "count") if self.function == "avg" else (self.function,)
        return tuple(Part(f"{self.name}__{function}", function) for function in functions)

    @property
    def result(self) -> str:
        """Of its parts, as Spark SQL."""
        if self.function == "avg":
            return f"try_divide(`{self.name}__sum`, `{self.name}__count`)"
        return f"`{self.name}__{self.function}`"


def parse_groups(text: str) -> tuple[Group, ...]:
    """`key, value.country, day=date(timestamp)`; empty for none. Raises ValueError."""
    groups = []
    for item in split(text):
        named = _NAMED.fullmatch(item)
        if named is not None:
            groups.append(Group(named[1], named[2].strip()))
        elif is_path(item):
            groups.append(Group(item.rpartition(".")[2], item))
        else:
            raise ValueError(f"{item}: give it a name, as in name={item}")
    _check_names([group.name for group in groups])
    return tuple(groups)


def parse_measures(text: str) -> tuple[Measure, ...]:
    """`orders=count(*), total=sum(value.amount)`. Raises ValueError."""
    measures = []
    for item in split(text):
        named = _NAMED.fullmatch(item)
        call = _CALL.fullmatch(named[2].strip()) if named is not None else None
        if named is None or call is None:
            raise ValueError(
                f"{item}: write name=function(expression) with count, sum, min, max or avg"
            )
        expression = "1" if call[2].strip() == "*" else call[2].strip()
        measures.append(Measure(named[1], call[1], expression))
    if not measures:
        raise ValueError("write at least one, such as orders=count(*)")
    _check_names([measure.name for measure in measures])
    return tuple(measures)


def is_path(expression: str) -> bool:
    """Whether it only names a column, or a field of one."""
    return _PATH.fullmatch(expression) is not None


def split(text: str) -> list[str]:
    """The parts between commas that are in no brackets and no quotes. Raises ValueError for
    brackets or quotes that do not match.
    """
    items, depth, start, quote = [], 0, 0, ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "()[]":
            depth += 1 if character in "([" else -1
            if depth < 0:
                break
        elif character == "," and not depth:
            items.append(text[start:position])
            start = position + 1
    if depth or quote:
        raise ValueError(f"{text}: brackets or quotes do not match")
    return [item.strip() for item in (*items, text[start:]) if item.strip()]


def _check_names(names: list[str]) -> None:
    for name in names:
        if name.lower() in RESERVED:
            raise ValueError(f"{name} has a meaning of its own: choose another name")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("two have the same name: write one as name=...")
