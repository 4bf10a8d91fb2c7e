"""What the errors of a write mean: for the state, and for the client."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.coordinator_log import (
    NOTHING_WRITTEN,
    client_error,
    commit_error,
    is_in_log,
)
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode

E = ErrorCode


@pytest.mark.parametrize("error", list(ErrorCode))
def test_only_what_may_be_committed_counts_as_written(error: ErrorCode) -> None:
    expected = error in (E.NONE, E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert is_in_log(Deferred.of(error)) is expected
    assert not (expected and error in NOTHING_WRITTEN)


def test_a_write_whose_outcome_is_awaited_is_in_the_log() -> None:
    assert is_in_log(Deferred())


@pytest.mark.parametrize(
    ("error", "told", "told_of_offsets"),
    [
        (E.NONE, E.NONE, E.NONE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, *[E.COORDINATOR_NOT_AVAILABLE] * 2),
        (E.NOT_ENOUGH_REPLICAS, *[E.COORDINATOR_NOT_AVAILABLE] * 2),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, *[E.COORDINATOR_NOT_AVAILABLE] * 2),
        (E.REQUEST_TIMED_OUT, *[E.COORDINATOR_NOT_AVAILABLE] * 2),
        (E.NOT_LEADER_OR_FOLLOWER, *[E.NOT_COORDINATOR] * 2),
        (E.KAFKA_STORAGE_ERROR, *[E.NOT_COORDINATOR] * 2),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR, E.INVALID_COMMIT_OFFSET_SIZE),
        (E.RECORD_LIST_TOO_LARGE, E.UNKNOWN_SERVER_ERROR, E.INVALID_COMMIT_OFFSET_SIZE),
        (E.COORDINATOR_LOAD_IN_PROGRESS, *[E.COORDINATOR_LOAD_IN_PROGRESS] * 2),
        (E.INVALID_PRODUCER_EPOCH, *[E.INVALID_PRODUCER_EPOCH] * 2),
    ],
)
def test_errors_of_clients(error: ErrorCode, told: ErrorCode, told_of_offsets: ErrorCode) -> None:
    assert client_error(error) is told
    assert commit_error(error) is told_of_offsets
