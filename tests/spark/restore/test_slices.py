"""A source cut into slices: every offset once, in order, when it is due."""

from __future__ import annotations

import random

import pytest

from spark_jobs.restore.slices import (
    SLICE_S,
    Slice,
    TimedEnd,
    counted_slices,
    parse_rate,
    parse_speed,
    timed_slices,
)


def check_chain(slices: list[Slice], starts: dict[int, int], ends: dict[int, int]) -> None:
    """Each slice begins where the one before it ended, and the last one ends at the end."""
    reached = starts
    for each in slices:
        assert each.starts == reached
        assert all(each.ends[p] >= start for p, start in each.starts.items())
        reached = each.ends
    assert reached == {p: max(end, starts[p]) for p, end in ends.items()}


def test_random_sources_are_cut_whole() -> None:
    dice = random.Random(5)
    for _ in range(200):
        starts = {p: dice.randrange(50) for p in range(dice.randrange(1, 5))}
        ends = {p: start + dice.randrange(40) for p, start in starts.items()}
        most = dice.randrange(1, 30)
        slices = list(counted_slices(starts, ends, most))
        if slices:
            check_chain(slices, starts, ends)
        assert sum(each.offset_count for each in slices) == sum(ends.values()) - sum(
            starts.values()
        )
        # Rounding moves at most one offset for each partition.
        assert all(each.offset_count <= most + len(starts) for each in slices)


def test_partitions_advance_together() -> None:
    first, second = counted_slices({0: 0, 1: 0}, {0: 100, 1: 10}, 55)
    assert (first.ends, second.ends) == ({0: 50, 1: 5}, {0: 100, 1: 10})


def test_a_rate_says_when_a_slice_is_due() -> None:
    slices = list(counted_slices({0: 0}, {0: 5000}, 1_000_000, rate=200))
    assert [each.offset_count for each in slices] == [1000] * 5
    assert [each.due_s for each in slices] == [0, 5, 10, 15, 20]
    (slow, *_) = counted_slices({0: 0}, {0: 3}, 1_000_000, rate=0.01)
    assert slow.offset_count == 1


def test_nothing_to_write_has_no_slices() -> None:
    assert list(counted_slices({0: 7}, {0: 7}, 10)) == []
    assert list(counted_slices({0: 7}, {0: 3}, 10)) == []
    assert list(timed_slices({0: 7}, {0: 9}, 10, [])) == []


def test_periods() -> None:
    """A period without records is waited for, one with many is cut, the end is in the last."""
    periods = [TimedEnd(12, 1, 8), TimedEnd(10, 0, 4), TimedEnd(10, 1, 2), TimedEnd(12, 0, 30)]
    slices = list(timed_slices({0: 0, 1: 0}, {0: 33, 1: 8}, 20, periods))
    check_chain(slices, {0: 0, 1: 0}, {0: 33, 1: 8})
    assert slices[0] == Slice({0: 0, 1: 0}, {0: 4, 1: 2}, 0)
    assert [each.due_s for each in slices[1:]] == [2 * SLICE_S, 2 * SLICE_S]
    assert all(each.offset_count <= 22 for each in slices)


@pytest.mark.parametrize(("text", "rate"), [("1000", 1000), ("0.5", 0.5), ("20/s", 20)])
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(("text", "speed"), [("10x", 10), ("0.5X", 0.5), ("2", 2)])
def test_speeds(text: str, speed: float) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1/m"])
def test_what_is_no_rate_and_no_speed(text: str) -> None:
    with pytest.raises(ValueError, match="records per second"):
        parse_rate(text)
    with pytest.raises(ValueError, match="a factor"):
        parse_speed(text)
