"""A source cut into slices: ranges of offsets that become visible together, in the order in which
they are written, and when each one is due. Pure.

Within a partition a slice begins where the last one ended, so the order of a partition is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

SLICE_S: Final = 5.0
"""The time that a slice covers when records are written at a rate or a speed."""

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*s)?")
_SPEED: Final = re.compile(r"(\d+(?:\.\d+)?)\s*x?", re.IGNORECASE)

Offsets = Mapping[int, int]
"""By partition."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The offsets [starts, ends) by partition. due_s: when it may be written, in seconds after the
    first slice of the run.
    """

    starts: dict[int, int]
    ends: dict[int, int]
    due_s: float = 0.0

    @property
    def offset_count(self) -> int:
        """Offsets in the slice: at least as many as records."""
        return sum(self.ends[partition] - start for partition, start in self.starts.items())


@dataclass(frozen=True, slots=True)
class TimedEnd:
    """The end (exclusive) of a partition's records within one period of time. period: their
    number, which never goes back within a partition.
    """

    period: int
    partition: int
    end: int


def parse_rate(text: str) -> float:
    """`1000` or `1000/s` to records per second. Raises ValueError."""
    return _positive(_RATE, text, "write records per second, such as 1000")


def parse_speed(text: str) -> float:
    """`10x` or `0.5x` to a factor. Raises ValueError."""
    return _positive(_SPEED, text, "write a factor such as 10x")


def _positive(pattern: re.Pattern[str], text: str, advice: str) -> float:
    match = pattern.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(advice)
    return float(match[1])


def counted_slices(
    starts: Offsets, ends: Offsets, most: int, rate: float | None = None
) -> Iterator[Slice]:
    """Slices of at most `most` offsets, in which all partitions advance in proportion. rate: at
    most so many records per second.
    """
    if rate is not None:
        most = min(most, max(int(rate * SLICE_S), 1))
    lengths = {p: max(ends[p] - start, 0) for p, start in starts.items()}
    total = sum(lengths.values())
    number = -(-total // max(most, 1))
    reached = dict(starts)
    written = 0
    for index in range(number):
        following = {p: starts[p] + length * (index + 1) // number for p, length in lengths.items()}
        due_s = written / rate if rate is not None else 0.0
        slice_ = Slice(dict(reached), following, due_s)
        written += slice_.offset_count
        reached = following
        yield slice_


def timed_slices(
    starts: Offsets, ends: Offsets, most: int, periods: Iterable[TimedEnd]
) -> Iterator[Slice]:
    """Slices by the periods of the records, each due SLICE_S after the one before it; one of more
    than `most` offsets is cut further. What follows the last record of a partition (markers of
    transactions) is in the last slice.
    """
    ordered = sorted(periods, key=lambda one: (one.period, one.partition))
    reached = dict(starts)
    first = ordered[0].period if ordered else 0
    last = ordered[-1].period if ordered else 0
    for period, group in groupby(ordered, key=lambda one: one.period):
        following = {**reached, **{one.partition: one.end for one in group}}
        if period == last:
            following = {**following, **ends}
        for part in counted_slices(reached, following, most):
            yield Slice(part.starts, part.ends, (period - first) * SLICE_S)
        reached = following
