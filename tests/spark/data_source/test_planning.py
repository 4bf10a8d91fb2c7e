"""Where reads begin and end, and what was lost."""

from __future__ import annotations

import itertools

import pytest

from spark_jobs.cluster import TopicFacts, Topics
from spark_jobs.data_source.options import EARLIEST, LATEST
from spark_jobs.data_source.planning import (
    Range,
    limited,
    losses,
    nearest,
    next_end,
    ranges,
    resolved,
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


def test_the_nearest_offsets() -> None:
    assert nearest(LATEST, TOPICS, "s") == (LATEST, [])
    there = {"t": {0: 10, 1: 20}, "u": {0: 5}}
    assert nearest(there, TOPICS, "s") == (there, [])
    relative = {"t": {0: EARLIEST, 1: LATEST, 2: 7}}
    assert nearest(relative, TOPICS, "s") == (relative, [])
    assert nearest({"t": {0: 9, 1: 21}}, TOPICS, "s") == (
        {"t": {0: 10, 1: 20}},
        [
            "s: t-0 has the offsets 10 to 110: 10 is taken instead of 9",
            "s: t-1 has the offsets 0 to 20: 20 is taken instead of 21",
        ],
    )


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


@pytest.mark.parametrize(
    ("position", "ids", "end"),
    [
        pytest.param({"t": {0: 50, 1: 5}}, {"t": "id"}, {0: 110, 1: 20}, id="the rest"),
        pytest.param({"t": {0: 50, 1: 5}}, {}, {0: 110, 1: 20}, id="no id is known"),
        pytest.param({"t": {0: 4, 1: 5}}, {}, {0: 110, 1: 20}, id="what is deleted is left out"),
        pytest.param({"t": {0: 50}}, {"t": "id"}, {0: 110, 1: 0}, id="a new partition"),
        pytest.param({}, {}, {0: 10, 1: 0}, id="a new topic"),
        pytest.param({"t": {0: 50, 1: 5}}, {"t": "old"}, {0: 10, 1: 0}, id="created again"),
        pytest.param({"t": {0: 111, 1: 5}}, {"t": "id"}, {0: 10, 1: 20}, id="the end is lost"),
        pytest.param({"t": {0: 50, 1: 5, 2: 9}}, {}, {0: 110, 1: 20}, id="a partition is gone"),
    ],
)
def test_the_end_of_a_batch(
    position: dict[str, dict[int, int]], ids: dict[str, str], end: dict[int, int]
) -> None:
    """What is read anew has its first offset as the end, so that the next batch begins there."""
    assert next_end(position, TOPICS, ids, 1000) == {"t": end}


def test_what_is_read_anew_is_read_whole() -> None:
    position = {"t": {0: 500, 1: 5}}
    found = []
    for _ in range(20):
        end = next_end(position, TOPICS, {"t": "id"}, 30)
        found += ranges(position, end, TOPICS)
        position = end
    first = [each for each in found if each.partition == 0]
    assert first[0].start == 10 and first[-1].end == 110
    assert all(one.end == two.start for one, two in itertools.pairwise(first))


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
    assert list(losses(start, end, TOPICS, ids)) == ([] if why is None else [why])


def test_each_loss_is_told() -> None:
    start, end = {"u": {0: 0}, "t": {0: 4, 1: 0}}, {"u": {0: 1}, "t": {0: 20, 1: 21}}
    assert [why.partition(" ")[0] for why in losses(start, end, TOPICS, {})] == [
        "topic",
        "6",
        "t-1",
    ]


def test_ranges_have_only_what_exists() -> None:
    start = {"t": {0: 0, 1: 5, 2: 0}, "u": {0: 0}}
    end = {"t": {0: 200, 1: 5, 2: 9}, "u": {0: 1}}
    assert ranges(start, end, TOPICS) == [Range("t", 0, 10, 110)]
