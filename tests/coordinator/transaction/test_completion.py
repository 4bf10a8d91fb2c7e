"""From a decided end to its last marker: which are missing, when they are retried, and the
remaining state.
"""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.result import Results
from kbroker.coordinator.transaction.completion import (
    FIRST_RETRY_MS,
    LAST_RETRY_MS,
    Completions,
    completed,
)
from kbroker.coordinator.transaction.records import NO_PRODUCER_ID, Transaction
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDING = Transaction(
    "tx",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=1000,
    state=TransactionState.PREPARE_COMMIT,
    partitions=frozenset({P0, P1}),
    start_ms=10,
    last_update_ms=20,
)


class World:
    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.retried: list[tuple[str, int]] = []
        self.completions = Completions(self.deadlines, self.on_retry)

    def on_retry(self, transactional_id: str, now_ms: int) -> Results:
        self.retried.append((transactional_id, now_ms))
        return []


def test_a_completion_is_made_once() -> None:
    world = World()
    assert world.completions.get("tx") is None
    made = world.completions.of(ENDING)
    assert made.remaining == {P0, P1} and not made.is_decided
    made.settle({P0: ErrorCode.NONE})
    assert world.completions.of(ENDING) is made is world.completions.get("tx")
    assert (len(world.completions), list(world.completions)) == (1, ["tx"])


@pytest.mark.parametrize(
    ("error", "is_done"),
    [
        (ErrorCode.NONE, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, True),
        (ErrorCode.UNSUPPORTED_VERSION, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.LEADER_NOT_AVAILABLE, False),
        (ErrorCode.NETWORK_EXCEPTION, False),
        (ErrorCode.REQUEST_TIMED_OUT, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS, False),
        (ErrorCode.KAFKA_STORAGE_ERROR, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_which_outcomes_need_no_further_marker(error: ErrorCode, is_done: bool) -> None:
    completion = World().completions.of(ENDING)
    completion.settle({P0: error, TopicPartition("other", 0): ErrorCode.NONE})
    assert completion.remaining == ({P1} if is_done else {P0, P1})
    assert completion.failed == (set() if is_done else {P0})


def test_the_interval_doubles_up_to_the_longest() -> None:
    world = World()
    completion = world.completions.of(ENDING)
    now_ms, waited = 0, []
    for _ in range(8):
        world.completions.retry_later(completion, now_ms)
        due_ms = world.deadlines.next_ms()
        assert due_ms is not None
        world.deadlines.fire(due_ms - 1)
        assert world.retried == []
        world.deadlines.fire(due_ms)
        assert world.retried == [("tx", due_ms)]
        world.retried.clear()
        waited.append(due_ms - now_ms)
        now_ms = due_ms
    assert waited == [100, 200, 400, 800, 1000, 1000, 1000, 1000]
    assert (waited[0], waited[-1]) == (FIRST_RETRY_MS, LAST_RETRY_MS)


def test_a_later_failure_does_not_postpone_the_next_try() -> None:
    world = World()
    completion = world.completions.of(ENDING)
    world.completions.retry_later(completion, 0)
    world.completions.retry_later(completion, FIRST_RETRY_MS - 1)
    assert world.deadlines.next_ms() == FIRST_RETRY_MS


def test_a_completion_that_is_forgotten_is_not_tried_again() -> None:
    world = World()
    world.completions.retry_later(world.completions.of(ENDING), 0)
    world.completions.forget("tx")
    world.completions.forget("tx")
    world.deadlines.fire(10_000)
    assert world.retried == [] and len(world.completions) == 0
    assert world.completions.of(ENDING).retry_ms == FIRST_RETRY_MS, "a later end begins anew"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ],
)
def test_the_state_after_the_last_marker(before: TransactionState, after: TransactionState) -> None:
    found = completed(ENDING._replace(state=before), 99)
    assert found == ENDING._replace(
        state=after,
        partitions=frozenset(),
        last_update_ms=99,
        previous_producer_id=7,
    )


def test_a_new_producer_id_begins_with_epoch_0() -> None:
    found = completed(ENDING._replace(next_producer_id=8), 99)
    assert (found.producer_id, found.producer_epoch) == (8, 0)
    assert (found.previous_producer_id, found.next_producer_id) == (7, NO_PRODUCER_ID)
