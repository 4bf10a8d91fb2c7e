"""What a benchmark found, with what it is held against: lines of one table."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One line. ratio: ours by the limit, both in the unit that `ours` and `limit` name."""

    what: str
    ours: str
    limit: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.what}: {self.ours}; {self.limit}; ratio {self.ratio:.2f}"


def machine() -> str:
    """Where figures come from; load says whether something else ran."""
    load = os.getloadavg()[0]
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {load:.1f}"
    )


def table(figures: Iterable[Figure]) -> str:
    """Markdown, columns of one width."""
    rows = [("", "kbroker", "held against", "ratio"), ("-", "-", "-", "-")]
    rows += [(f.what, f.ours, f.limit, f"{f.ratio:.2f}") for f in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for row in rows:
        cells = [
            "-" * width if cell == "-" else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
