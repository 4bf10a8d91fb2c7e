"""Retriable errors of the share coordinator lead to further attempts; calls about many partitions
are begun in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from kbroker.coordinator.share_state.persister import (
    TRIES,
    RetryingGroupStatePersister,
    RetryingSharePersister,
)
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.model import ZERO_UUID, TopicIdPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateSummary
from kbroker.replication.time_slices import FairSlices
from tests.replication.test_time_slices import Ticks, Turns
from tests.server.garbage import found_by_collector
from tests.sim.timers import SimTimers

KEY = SharePlace("g", (ZERO_UUID, 0))


class Coordinator:
    """Answers with these errors, one after the other."""

    def __init__(self, *errors: ErrorCode) -> None:
        self.errors = list(errors)
        self.asked = 0

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        self.asked += 1
        return Deferred.of(StateFound(self.errors.pop(0)))


def persister(
    coordinator: Coordinator, timers: SimTimers, topic: ErrorCode | None = ErrorCode.NONE
) -> RetryingSharePersister:
    """topic: None where the states' topic cannot be made."""

    def ensure_topic() -> Deferred[ErrorCode]:
        if topic is None:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR)
        return Deferred.of(topic)

    return RetryingSharePersister(cast(ShareCoordinator, coordinator), timers, ensure_topic)


@pytest.mark.parametrize("topic", [ErrorCode.NONE, None])
def test_a_passing_error_is_no_answer(topic: ErrorCode | None) -> None:
    timers = SimTimers()
    coordinator = Coordinator(ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
    found = persister(coordinator, timers, topic).read(KEY, 0)
    assert not found.done
    timers.advance(60_000)
    assert found.value.error == ErrorCode.NONE and coordinator.asked == 2


def test_after_so_many_tries_it_is_the_answer_and_no_cycle_is_left() -> None:
    timers = SimTimers()
    coordinator = Coordinator(*[ErrorCode.NOT_COORDINATOR] * TRIES)
    with found_by_collector() as left:
        found = persister(coordinator, timers).read(KEY, 0)
        timers.advance(60_000)
        assert found.value.error == ErrorCode.NOT_COORDINATOR and coordinator.asked == TRIES
        del found
    assert not left


MANY = 100
PLACES = [(ZERO_UUID, index) for index in range(MANY)]
SLICE = 10
"""How many calls fit into a slice of the tests, at most."""

FAILING = 7
"""The partition whose state has an error."""


class LocalStates:
    """The coordinator of this broker: each call is answered at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> Deferred[ErrorCode]:
        self.asked.append((key.place, state_epoch, start_offset))
        return Deferred.of(error_of(key))

    def delete(self, key: SharePlace) -> Deferred[ErrorCode]:
        self.asked.append((key.place,))
        return Deferred.of(error_of(key))

    def summarize(self, key: SharePlace) -> Deferred[StateSummary]:
        self.asked.append((key.place,))
        return Deferred.of(StateSummary(error_of(key), start_offset=key.place[1]))


def error_of(key: SharePlace) -> ErrorCode:
    return ErrorCode.FENCED_STATE_EPOCH if key.place[1] == FAILING else ErrorCode.NONE


class Many:
    """Calls about many partitions."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.states = LocalStates()
        self.reset: list[TopicIdPartition] = []
        self.slices = FairSlices(self.turns, seconds=SLICE / 1000, clock=Ticks())
        self.persister = RetryingGroupStatePersister(
            cast(ShareCoordinator, self.states),
            self.turns,
            lambda: Deferred.of(ErrorCode.NONE),
            on_reset=lambda key: self.reset.append(key.place),
            slices=self.slices,
        )

    def initialize(self) -> Deferred[Mapping[TopicIdPartition, Any]]:
        return self.persister.initialize("g", 3, {place: place[1] for place in PLACES})

    def delete(self) -> Deferred[Mapping[TopicIdPartition, Any]]:
        return self.persister.delete("g", PLACES)

    def summarize(self) -> Deferred[Mapping[TopicIdPartition, Any]]:
        return self.persister.summarize("g", PLACES)


Call = Callable[[Many], Deferred[Mapping[TopicIdPartition, Any]]]


@pytest.mark.parametrize(
    ("call", "asked", "result"),
    [
        pytest.param(
            Many.initialize,
            lambda place: (place, 3, place[1]),
            lambda place: error_of(SharePlace("g", place)),
            id="initialize",
        ),
        pytest.param(
            Many.delete,
            lambda place: (place,),
            lambda place: error_of(SharePlace("g", place)),
            id="delete",
        ),
        pytest.param(
            Many.summarize,
            lambda place: (place,),
            lambda place: StateSummary(error_of(SharePlace("g", place)), start_offset=place[1]),
            id="summarize",
        ),
    ],
)
def test_calls_about_many_partitions_are_begun_in_slices(
    call: Call, asked: Callable[[TopicIdPartition], Any], result: Callable[[TopicIdPartition], Any]
) -> None:
    many = Many()
    answer = call(many)
    former = 0
    while not answer.done:
        assert former < len(many.states.asked) <= former + SLICE
        former = len(many.states.asked)
        many.turns.turn()
    assert many.states.asked == [asked(place) for place in PLACES]
    assert list(answer.value.items()) == [(place, result(place)) for place in PLACES]
    is_read = call is Many.summarize
    assert many.reset == [place for place in PLACES if not is_read and place[1] != FAILING]


def test_few_partitions_and_none_need_no_further_turn() -> None:
    many = Many()
    assert many.persister.delete("g", PLACES[:2]).value == dict.fromkeys(PLACES[:2], ErrorCode.NONE)
    assert many.persister.delete("g", []).value == {}


def test_calls_that_are_not_begun_when_the_broker_stops_fail() -> None:
    many = Many()
    answer = many.delete()
    many.slices.close()
    assert answer.error is not None and answer.error.code is ErrorCode.BROKER_NOT_AVAILABLE
