"""The fetch session as a follower keeps it: which requests are full, and which answers count."""

from __future__ import annotations

import pytest

from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.followers.follower_session import (
    FollowerSession,
    PartitionKey,
    Position,
    ReplicaFetchLimits,
)

ONE: Uuid = bytes(15) + b"\x01"
TWO: Uuid = bytes(15) + b"\x02"
START = Position(fetch_offset=0, leader_epoch=3, last_fetched_epoch=-1, log_start_offset=0)
LATER = Position(fetch_offset=9, leader_epoch=3, last_fetched_epoch=3, log_start_offset=1)
ID = 12


def full(session: FollowerSession, *keys: PartitionKey) -> FetchRequest | None:
    return session.full_request([(key, START) for key in keys], replica_id=2, broker_epoch=70)


def incremental(
    session: FollowerSession, changed: dict[PartitionKey, Position | None]
) -> FetchRequest | None:
    return session.incremental_request(changed.items(), replica_id=2, broker_epoch=70)


def response(*keys: PartitionKey, session_id: int = ID, error: int = 0) -> FetchResponse:
    return FetchResponse(
        error_code=error,
        session_id=session_id,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic_id=topic_id, partitions=[FetchResponse.PartitionData(partition_index=index)]
            )
            for topic_id, index in keys
        ],
    )


def begun(*keys: PartitionKey) -> FollowerSession:
    """A session whose first request was answered."""
    session = FollowerSession(ReplicaFetchLimits())
    full(session, *keys)
    assert session.answered(response(*keys))
    assert not session.is_full
    return session


def test_a_full_request_groups_by_topic_and_states_limits() -> None:
    session = FollowerSession(ReplicaFetchLimits(100, 2, 3_000, 400))
    assert full(session) is None
    request = full(session, (ONE, 0), (TWO, 5), (ONE, 3))
    assert request is not None
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (100, 2, 3_000)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 70)
    assert [
        (topic.topic_id, [each.partition for each in topic.partitions]) for topic in request.topics
    ] == [(ONE, [0, 3]), (TWO, [5])]
    partition = request.topics[0].partitions[0]
    assert (partition.current_leader_epoch, partition.partition_max_bytes) == (3, 400)


def test_an_incremental_request_names_what_changed() -> None:
    session = begun((ONE, 0), (ONE, 1), (TWO, 0))
    request = incremental(
        session, {(ONE, 0): LATER, (ONE, 1): START, (TWO, 0): None, (TWO, 8): None}
    )
    assert request is not None
    assert (request.session_id, request.session_epoch) == (ID, 1)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (partition.partition, partition.fetch_offset, partition.log_start_offset) == (0, 9, 1)
    (forgotten,) = request.forgotten_topics_data
    assert (forgotten.topic_id, forgotten.partitions) == (TWO, [0])
    assert session.answered(response())
    idle = incremental(session, {})
    assert idle is not None and not idle.topics and idle.session_epoch == 2


def test_without_partitions_nothing_is_asked() -> None:
    session = begun((ONE, 0))
    last = incremental(session, {(ONE, 0): None})
    assert last is not None and last.forgotten_topics_data
    assert session.answered(response())
    assert incremental(session, {}) is None


@pytest.mark.parametrize(
    ("answer", "counts", "session_id"),
    [
        pytest.param(response((ONE, 0)), False, 0, id="a partition is missing"),
        pytest.param(response((ONE, 0), (ONE, 1), (TWO, 0)), False, 0, id="one too many"),
        pytest.param(response((ONE, 0), (ONE, 1), session_id=0), True, 0, id="no session"),
        pytest.param(response(error=int(ErrorCode.UNKNOWN_SERVER_ERROR)), False, 0, id="error"),
    ],
)
def test_answers_to_a_full_request(answer: FetchResponse, counts: bool, session_id: int) -> None:
    session = FollowerSession(ReplicaFetchLimits())
    full(session, (ONE, 0), (ONE, 1))
    assert session.answered(answer) is counts
    assert session.is_full
    request = full(session, (ONE, 0))
    assert request is not None and (request.session_id, request.session_epoch) == (session_id, 0)


@pytest.mark.parametrize(
    ("answer", "counts", "session_id"),
    [
        pytest.param(response((TWO, 0)), False, ID, id="not of this session"),
        pytest.param(response((ONE, 0), session_id=0), True, 0, id="the leader ended it"),
        pytest.param(
            response(error=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)), False, 0, id="unknown"
        ),
        pytest.param(
            response(error=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH)), False, ID, id="epoch"
        ),
        pytest.param(
            response(error=int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)), False, ID, id="topic id"
        ),
    ],
)
def test_answers_that_end_a_session(answer: FetchResponse, counts: bool, session_id: int) -> None:
    """The next request is a full one; it names a session that the leader may still have."""
    session = begun((ONE, 0))
    incremental(session, {})
    assert session.answered(answer) is counts
    request = full(session, (ONE, 0))
    assert request is not None and (request.session_id, request.session_epoch) == (session_id, 0)


def test_a_request_without_an_answer_ends_the_session() -> None:
    session = begun((ONE, 0))
    incremental(session, {})
    session.failed()
    assert session.is_full
    request = full(session, (ONE, 0))
    assert request is not None and (request.session_id, request.session_epoch) == (ID, 0)
