"""How far groups have read: which partitions have a lag, and what is said of those without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kbroker.coordinator.group.share.offset_descriptions import (
    EndsFound,
    OffsetDescriptions,
    WantedTopic,
)
from kbroker.model import ZERO_UUID, TopicIdPartition, TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import StateSummary
from tests.coordinator.group.share.shares import FakeEnds

E = ErrorCode
TOPIC = bytes(15) + b"\x07"
P0 = TopicPartition("t", 0)


class Summaries:
    """The part of a `GroupStatePersister` that is asked. asked: places."""

    def __init__(self, *summaries: StateSummary) -> None:
        self.found = {(TOPIC, index): each for index, each in enumerate(summaries)}
        self.asked: list[TopicIdPartition] = []

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        assert group_id == "g"
        self.asked += places
        return Deferred.of({place: self.found[place] for place in places})


def rows(outcome: Deferred[Any]) -> list[tuple[int, int, int, int, int, str | None]]:
    return [
        (
            each.partition_index,
            each.start_offset,
            each.leader_epoch,
            each.lag,
            each.error_code,
            each.error_message,
        )
        for topic in outcome.value.topics
        for each in topic.partitions
    ]


def describe(summary: StateSummary, end_error: ErrorCode = E.NONE) -> tuple[Any, FakeEnds]:
    ends = FakeEnds()
    ends.errors[P0] = end_error
    persister: Any = Summaries(summary)
    wanted = [WantedTopic("t", TOPIC, [0])]
    (row,) = rows(OffsetDescriptions(persister, ends).describe("g", wanted))
    return row, ends


def test_the_lag_is_what_is_not_delivered_yet() -> None:
    row, ends = describe(StateSummary(E.NONE, 40, 5, 10))
    assert row == (0, 40, 5, 50, E.NONE, None)
    assert ends.asked == [P0]


@pytest.mark.parametrize(
    ("summary", "row"),
    [
        pytest.param(StateSummary(E.NONE, -1, 0, -1), (0, -1, 0, -1, 0, None), id="not read yet"),
        pytest.param(StateSummary(E.NONE, 40, 5, -1), (0, 40, 5, -1, 0, None), id="an old state"),
        pytest.param(
            StateSummary(E.COORDINATOR_NOT_AVAILABLE, 40, 5, 10),
            (0, -1, 0, -1, E.COORDINATOR_NOT_AVAILABLE, None),
            id="no coordinator",
        ),
    ],
)
def test_without_a_lag_no_end_is_asked_for(summary: StateSummary, row: Any) -> None:
    found, ends = describe(summary)
    assert found == row
    assert not ends.asked


@pytest.mark.parametrize("error", [E.LEADER_NOT_AVAILABLE, E.NETWORK_EXCEPTION])
def test_a_partition_whose_end_is_not_found_has_the_error_and_nothing_else(
    error: ErrorCode,
) -> None:
    row, _ = describe(StateSummary(E.NONE, 40, 5, 10), error)
    assert row == (0, 0, 0, -1, error, error.name)


def test_topics_that_are_not_known_have_no_state() -> None:
    ends = FakeEnds()
    persister: Any = Summaries(StateSummary(E.NONE, 40, 5, 10))
    descriptions = OffsetDescriptions(persister, ends)
    nothing = descriptions.describe("g", [WantedTopic("gone", ZERO_UUID, [3])])
    assert rows(nothing) == [(3, -1, 0, -1, 0, None)]
    assert not persister.asked
    wanted = [WantedTopic("gone", ZERO_UUID, [3]), WantedTopic("t", TOPIC, [0, 0])]
    both = descriptions.describe("g", wanted)
    assert rows(both) == [(3, -1, 0, -1, 0, None), *[(0, 40, 5, 50, 0, None)] * 2]
    assert ends.asked == [P0], "once"
    assert [(topic.topic_name, topic.topic_id) for topic in both.value.topics] == [
        ("gone", ZERO_UUID),
        ("t", TOPIC),
    ]


def test_the_description_waits_for_the_leaders() -> None:
    answer: Deferred[EndsFound] = Deferred()

    class Slow(FakeEnds):
        def latest(self, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
            return answer

    persister: Any = Summaries(StateSummary(E.NONE, 40, 5, 10))
    described = OffsetDescriptions(persister, Slow()).describe("g", [WantedTopic("t", TOPIC, [0])])
    assert not described.done
    answer.resolve(FakeEnds().latest([P0]).value)
    assert rows(described) == [(0, 40, 5, 50, 0, None)]
