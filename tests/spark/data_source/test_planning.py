"""Where reads begin and end, and what was lost."""

from __future__ import annotations

import pytest

from spark_jobs.cluster import TopicFacts, Topics
from spark_jobs.data_source.options import EARLIEST, LATEST
from spark_jobs.data_source.planning import (
    Range,
    limited,
    lost,
    ranges,
    resolved,
    with_new_partitions,
)
from spark_jobs.errors import JobError

TOPICS: Topics = {"t": TopicFacts("id", {0: 10, 1: 0}, {0: 110, 1: 20})}


def test_earliest_latest_and_offsets() -> None:
    assert resolved(EARLIEST, TOPICS, "s") == {"t": {0: 10, 1: 0}}
    assert resolved(LATEST, TOPICS, "s") == {"t": {0: 110, 1: 20}}
    mixed = resolved({"t": {0: LATEST, 1: 7}}, TOPICS, "s")
    assert mixed == {"t": {0: 110, 1: 7}}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"t": {0: 10}}, "does not name t-1"),
        ({"t": {0: 10, 1: 0, 2: 0}}, "names t-2, which is not read"),
        ({"t": {0: 10, 1: 0}, "u": {0: 0}}, "names u-0, which is not read"),
        ({"t": {0: 9, 1: 0}}, "t-0 has the offsets 10 to 110, not 9"),
        ({"t": {0: 10, 1: 21}}, "t-1 has the offsets 0 to 20, not 21"),
    ],
)
def test_offsets_that_are_not_there(wanted: dict[str, dict[int, int]], why: str) -> None:
    with pytest.raises(JobError, match=why):
        resolved(wanted, TOPICS, "startingOffsets")


def test_a_limit_is_shared_by_what_is_left() -> None:
    start = {"t": {0: 10, 1: 0}}
    assert limited(start, TOPICS, 1000) == {"t": {0: 110, 1: 20}}
    assert limited(start, TOPICS, 60) == {"t": {0: 60, 1: 10}}
    assert limited(start, TOPICS, 1) == {"t": {0: 11, 1: 1}}
    assert limited({"t": {0: 110, 1: 20}}, TOPICS, 1) == {"t": {0: 110, 1: 20}}


def test_limits_reach_the_end() -> None:
    position = {"t": {0: 10, 1: 0}}
    for _ in range(100):
        before, position = position, limited(position, TOPICS, 7)
        size = sum(position["t"].values()) - sum(before["t"].values())
        assert 0 < size <= 8 or position == before
    assert position == {"t": {0: 110, 1: 20}}


def test_new_partitions_begin_at_their_first_offset() -> None:
    assert with_new_partitions({"t": {0: 50}}, TOPICS) == {"t": {0: 50, 1: 0}}
    assert with_new_partitions({}, TOPICS) == {"t": {0: 10, 1: 0}}


@pytest.mark.parametrize(
    ("start", "end", "ids", "why"),
    [
        ({"t": {0: 10, 1: 0}}, {"t": {0: 110, 1: 20}}, {"t": "id"}, None),
        ({"t": {0: 10, 1: 0}}, {"t": {0: 110, 1: 20}}, {"t": ""}, None),
        ({"u": {0: 0}}, {"u": {0: 1}}, {}, "topic u does not exist any more"),
        ({"t": {0: 10}}, {"t": {0: 11}}, {"t": "old"}, "topic t was deleted and created again"),
        ({"t": {2: 0}}, {"t": {2: 1}}, {}, "topic t has no partition 2 any more"),
        (
            {"t": {1: 0}},
            {"t": {1: 21}},
            {},
            "t-1 ends at offset 20, before 21: the topic was created again or lost its end",
        ),
        (
            {"t": {0: 4}},
            {"t": {0: 20}},
            {},
            "6 offsets of t-0 from 4 on were deleted unread: the log starts at 10",
        ),
        (
            {"t": {0: 9}},
            {"t": {0: 9}},
            {},
            "1 offset of t-0 from 9 on was deleted unread: the log starts at 10",
        ),
    ],
)
def test_what_is_lost(
    start: dict[str, dict[int, int]],
    end: dict[str, dict[int, int]],
    ids: dict[str, str],
    why: str | None,
) -> None:
    assert lost(start, end, TOPICS, ids) == why


def test_ranges_have_only_what_exists() -> None:
    start = {"t": {0: 0, 1: 5, 2: 0}, "u": {0: 0}}
    end = {"t": {0: 200, 1: 5, 2: 9}, "u": {0: 1}}
    assert ranges(start, end, TOPICS) == [Range("t", 0, 10, 110)]
