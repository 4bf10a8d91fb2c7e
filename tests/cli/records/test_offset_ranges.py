"""What --offset can say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kbroker.cli.records.offset_ranges import (
    BEGINNING,
    END,
    Bound,
    Limits,
    OffsetRange,
    Point,
    parse_range,
    resolve,
)
from kbroker.model import TopicPartition

NOW_MS = 1_770_000_000_000


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("beginning", OffsetRange(BEGINNING)),
        ("end", OffsetRange(END)),
        ("5", OffsetRange(Bound(Point.OFFSET, 5))),
        ("-5", OffsetRange(Bound(Point.END, -5))),
        ("+5", OffsetRange(Bound(Point.BEGINNING, 5))),
        ("@1000", OffsetRange(Bound(Point.TIME, 1000))),
        ("@-1h", OffsetRange(Bound(Point.TIME, NOW_MS - 3_600_000))),
        ("5..9", OffsetRange(Bound(Point.OFFSET, 5), Bound(Point.OFFSET, 9))),
        ("..9", OffsetRange(BEGINNING, Bound(Point.OFFSET, 9))),
        ("5..", OffsetRange(Bound(Point.OFFSET, 5))),
        ("..", OffsetRange(BEGINNING)),
        ("beginning..end", OffsetRange(BEGINNING, END)),
        (
            "@2026-01-31T12:00:00.5..@-1d",
            OffsetRange(
                Bound(Point.TIME, 1_769_860_800_500), Bound(Point.TIME, NOW_MS - 86_400_000)
            ),
        ),
    ],
)
def test_ranges(text: str, parsed: OffsetRange) -> None:
    assert parse_range(text, NOW_MS) == parsed


@pytest.mark.parametrize("text", ["", "x", "1x", "--5", "5...9", "9" * 20, "\u0663"])
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(ValueError, match="is no offset: write beginning, end"):
        parse_range(text, NOW_MS)


@pytest.mark.parametrize("text", ["8..5", "-1..-2", "+3..beginning", "@-1h..@-2h"])
def test_what_ends_before_it_begins(text: str) -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        parse_range(text, NOW_MS)


def test_what_is_no_time() -> None:
    with pytest.raises(ValueError, match="is no time"):
        parse_range("@soon", NOW_MS)


PLACE = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("bound", "is_start", "offset"),
    [
        (BEGINNING, True, 10),
        (Bound(Point.BEGINNING, 3), True, 13),
        (END, True, 20),
        (Bound(Point.END, -4), True, 16),
        (Bound(Point.END, -40), True, 10),
        (Bound(Point.OFFSET, 12), True, 12),
        (Bound(Point.OFFSET, 2), True, 10),
        (Bound(Point.OFFSET, 99), True, 20),
        (Bound(Point.OFFSET, 99), False, 99),
        (Bound(Point.OFFSET, 2), False, 10),
    ],
)
def test_bounds_stay_within_the_partition(bound: Bound, is_start: bool, offset: int) -> None:
    """But reading may end at an offset that does not exist yet."""
    client: Any = None  # no time is looked up
    limits = {PLACE: Limits(10, 20)}
    found = asyncio.run(resolve(client, bound, limits, 0, is_start=is_start))
    assert found == {PLACE: offset}
