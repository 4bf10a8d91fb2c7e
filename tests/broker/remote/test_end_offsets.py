"""Where the end of a partition is found: here, at its leader, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.broker.remote.end_offsets import RoutedEndOffsets
from kbroker.coordinator.group.share.offset_descriptions import EndOffset, EndsFound
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from tests.broker.peers import Image

E = ErrorCode
HERE, THERE, ELSEWHERE, NOWHERE, UNKNOWN = (TopicPartition("p", index) for index in range(5))
LED = EndOffset(E.NONE, 10)


class Others:
    """Leaders at other brokers, which answer when told to."""

    def __init__(self) -> None:
        self.asked: dict[int, list[TopicPartition]] = {}
        self.answers: dict[int, Deferred[EndsFound]] = {}

    def ask(self, leader_id: int, partitions: Sequence[TopicPartition]) -> Deferred[EndsFound]:
        self.asked[leader_id] = list(partitions)
        self.answers[leader_id] = Deferred()
        return self.answers[leader_id]


def routed(others: Others | None) -> RoutedEndOffsets:
    image: Any = Image(p=[1, 2, 3, -1])
    return RoutedEndOffsets(1, lambda: image, lambda partition: LED, others)


def test_what_leads_here_is_not_asked_for() -> None:
    others = Others()
    found = routed(others).latest([HERE, NOWHERE, UNKNOWN])
    nobody = EndOffset(E.LEADER_NOT_AVAILABLE, -1)
    assert found.value == {HERE: LED, NOWHERE: nobody, UNKNOWN: nobody}
    assert not others.asked


def test_the_leaders_elsewhere_are_asked_and_waited_for() -> None:
    others = Others()
    more = TopicPartition("p", 1)
    found = routed(others).latest([HERE, THERE, ELSEWHERE, more])
    assert others.asked == {2: [THERE, more], 3: [ELSEWHERE]}
    others.answers[3].resolve({ELSEWHERE: EndOffset(E.NOT_LEADER_OR_FOLLOWER, -1)})
    assert not found.done
    others.answers[2].resolve({THERE: EndOffset(E.NONE, 7)})
    assert found.value == {
        HERE: LED,
        THERE: EndOffset(E.NONE, 7),
        ELSEWHERE: EndOffset(E.NOT_LEADER_OR_FOLLOWER, -1),
    }


def test_a_broker_without_others_asks_itself() -> None:
    assert routed(None).latest([HERE, THERE]).value == {HERE: LED, THERE: LED}
