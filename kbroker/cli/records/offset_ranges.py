"""Where reading begins and ends: `beginning`, `end`, an offset, a time, or two of them as n..m."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.cli.console.moments import moment_ms
from kbroker.cli.console.output import note
from kbroker.cli.console.partitions import offsets_at

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition

RANGE_EPILOG: Final = """
--offset is beginning, end, an offset, -5 (so many before the end), +5 (so many after the
beginning), or @TIME: 2026-01-31T12:00:00 (UTC), ms since 1970, or -15m, -2h, -1d for a time before
now. Two of them with .. between are a range: the second is where reading ends, and is not read.
"""


class Point(Enum):
    """What an offset is counted from."""

    OFFSET = "offset"
    BEGINNING = "beginning"
    END = "end"
    TIME = "time"


class Bound(NamedTuple):
    """One end of a range. number: an offset, how far from the beginning or (negative) from the
    end, or a time in ms.
    """

    point: Point
    number: int = 0


class OffsetRange(NamedTuple):
    """Reading begins at start and ends before stop; None for no end."""

    start: Bound
    stop: Bound | None = None


BEGINNING: Final = Bound(Point.BEGINNING)
END: Final = Bound(Point.END)


def parse_range(text: str, now_ms: int) -> OffsetRange:
    """An --offset. Raises ValueError, which says what can be written."""
    first, dots, last = text.partition("..")
    start = BEGINNING if dots and not first else _parse_bound(first, now_ms)
    stop = _parse_bound(last, now_ms) if last else None
    if stop is not None and start.point is stop.point and start.number > stop.number:
        raise ValueError(f"{text!r} ends before it begins")
    return OffsetRange(start, stop)


def _parse_bound(text: str, now_ms: int) -> Bound:
    if text in ("beginning", "start", "earliest"):
        return BEGINNING
    if text in ("end", "latest"):
        return END
    if text.startswith("@"):
        return Bound(Point.TIME, moment_ms(text[1:], now_ms))
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
        raise ValueError(
            f"{text!r} is no offset: write beginning, end, a number, -5, +5, @TIME or n..m"
        )
    if text[0] == "-":
        return Bound(Point.END, -int(digits))
    if text[0] == "+":
        return Bound(Point.BEGINNING, int(digits))
    return Bound(Point.OFFSET, int(digits))


class Limits(NamedTuple):
    """The offsets at which one partition begins and ends; end is exclusive."""

    start: int
    end: int


async def partition_limits(
    client: Client, places: Sequence[TopicPartition], isolation_level: int
) -> dict[TopicPartition, Limits]:
    """Where partitions begin and end now; for read_committed the end is the last stable offset."""
    from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    starts = await offsets_at(client, places, EARLIEST_TIMESTAMP, isolation_level)
    ends = await offsets_at(client, places, LATEST_TIMESTAMP, isolation_level)
    return {place: Limits(starts[place], ends[place]) for place in places}


async def resolve(
    client: Client,
    bound: Bound,
    limits: Mapping[TopicPartition, Limits],
    isolation_level: int,
    *,
    is_start: bool,
) -> dict[TopicPartition, int]:
    """An offset per partition, kept between its beginning and its end; where reading ends, a number
    may lie beyond the end. is_start: a note says where an offset lies outside of a partition.
    """
    times: Mapping[TopicPartition, int] = {}
    if bound.point is Point.TIME:
        times = await offsets_at(client, limits, bound.number, isolation_level)
    offsets: dict[TopicPartition, int] = {}
    for place, (start, end) in limits.items():
        match bound.point:
            case Point.BEGINNING:
                offset = start + bound.number
            case Point.END:
                offset = end + bound.number
            case Point.TIME:
                offset = times[place] if times[place] >= 0 else end
            case Point.OFFSET:
                offset = bound.number
                if is_start and offset > end:
                    note(f"{place} ends at {end}; reading from there, not from {offset}")
                elif is_start and offset < start:
                    note(f"{place} begins at {start}; reading from there, not from {offset}")
        last = end if is_start or bound.point is not Point.OFFSET else max(offset, end)
        offsets[place] = min(max(offset, start), last)
    return offsets
