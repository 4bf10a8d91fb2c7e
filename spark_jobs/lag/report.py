"""What `lag` prints: a table of 80 columns for each query, or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

WIDTH: Final = 80
HEADER: Final = ("topic", "partition", "offset", "end", "lag", "behind")
SHORTEST_TOPIC: Final = 9
_GAP: Final = "  "
_UNITS: Final = (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("d", 86_400, None))


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """offset: the next one to read, None if the query has not read the partition. end: of the log,
    exclusive. seconds_behind: the age of the first record that is not read; 0 if all are, None if
    it cannot be read.
    """

    topic: str
    partition: int
    offset: int | None
    end: int
    lag: int
    seconds_behind: float | None


@dataclass(frozen=True, slots=True)
class QueryLag:
    """One query, by its checkpoint or by its group; see `queries.Position`."""

    kind: Literal["checkpoint", "group"]
    name: str
    query_id: str
    batch_id: int | None
    partitions: tuple[PartitionLag, ...]
    notes: tuple[str, ...] = ()

    @property
    def lag(self) -> int | None:
        """The sum over the partitions; None without one, which is no sign that all is read."""
        return sum(each.lag for each in self.partitions) if self.partitions else None

    @property
    def seconds_behind(self) -> float | None:
        """Of the partition furthest behind; None if that is not known."""
        known = [each.seconds_behind for each in self.partitions]
        return (
            None
            if None in known or not known
            else max((each for each in known if each), default=0.0)
        )


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of several queries."""

    queries: Sequence[QueryLag]

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "queries": [
                {
                    "kind": query.kind,
                    "name": query.name,
                    "query_id": query.query_id,
                    "batch_id": query.batch_id,
                    "lag": query.lag,
                    "seconds_behind": query.seconds_behind,
                    "partitions": [
                        {
                            "topic": each.topic,
                            "partition": each.partition,
                            "offset": each.offset,
                            "end": each.end,
                            "lag": each.lag,
                            "seconds_behind": each.seconds_behind,
                        }
                        for each in query.partitions
                    ],
                    "notes": list(query.notes),
                }
                for query in self.queries
            ]
        }

    def to_text(self) -> str:
        """A table for each query, with a total where it has several partitions, and its notes."""
        return "\n\n".join("\n".join(_lines(query)) for query in self.queries)


def age(seconds: float | None) -> str:
    """`12 s`, `3 min`, `5 h`, `2 d`; `?` if it is not known."""
    if seconds is None:
        return "?"
    for unit, size, limit in _UNITS:
        if limit is None or seconds < limit * size:
            return f"{seconds / size:.0f} {unit}"
    raise AssertionError(seconds)


def shortened(name: str, width: int) -> str:
    """A name that has at most so many characters, its middle left out."""
    if len(name) <= width:
        return name
    kept = width - 1
    return f"{name[: kept - kept // 2]}…{name[len(name) - kept // 2 :]}"


def _lines(query: QueryLag) -> list[str]:
    batch = "" if query.batch_id is None or query.batch_id < 0 else f", batch {query.batch_id}"
    lines = [f"{query.kind} {query.name}{batch}"]
    rows = [
        (
            each.topic,
            str(each.partition),
            "-" if each.offset is None else str(each.offset),
            str(each.end),
            str(each.lag),
            age(each.seconds_behind),
        )
        for each in query.partitions
    ]
    if len(rows) > 1:
        rows.append(("total", "", "", "", str(query.lag), age(query.seconds_behind)))
    if rows:
        lines += _table([HEADER, *rows])
    for note in query.notes:
        lines += textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="  ")
    return lines


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    others = sum(widths[1:]) + len(_GAP) * (len(HEADER) - 1)
    topic_width = min(widths[0], max(WIDTH - others, SHORTEST_TOPIC))
    return [
        _GAP.join(
            (
                shortened(topic, topic_width).ljust(topic_width),
                *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)),
            )
        )
        for topic, *cells in rows
    ]
