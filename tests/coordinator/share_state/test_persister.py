"""Retriable errors of the share coordinator lead to further attempts."""

from __future__ import annotations

from typing import cast

import pytest

from kbroker.coordinator.share_state.persister import TRIES, RetryingSharePersister
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.model import ZERO_UUID
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import SharePlace, StateFound
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
