"""WriteTxnMarkers in the words of another broker's transaction coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import WriteTxnMarkersRequest
from kbroker.server.handlers.transactions.transaction_tools import handle_write_markers
from tests.server.slices import Sliced

E = ErrorCode


class Markers:
    """Written with these outcomes, by partition."""

    def __init__(self, *outcomes: Deferred[ErrorCode]) -> None:
        self.outcomes = outcomes

    def write(
        self,
        partition: TopicPartition,
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[ErrorCode]:
        return self.outcomes[partition.partition]


def answered(*outcomes: Deferred[ErrorCode]) -> Any:
    kind = WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(
        name="__consumer_offsets", partition_indexes=list(range(len(outcomes)))
    )
    request = kind(markers=[kind.WritableTxnMarker(producer_id=1, topics=[topic])])
    world = Sliced(markers=Markers(*outcomes))
    context: Any = None
    outcome = handle_write_markers(world.services, context, request)
    for deferred in outcomes:
        if not deferred.done:
            deferred.resolve(E.NOT_COORDINATOR)
    return world.answer(outcome)


def errors(response: Any) -> list[int]:
    (topic,) = response.markers[0].topics
    return [partition.error_code for partition in topic.partitions]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (E.NONE, E.NONE),
        (E.NOT_COORDINATOR, E.NOT_LEADER_OR_FOLLOWER),
        (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_LEADER_OR_FOLLOWER),
        (E.COORDINATOR_NOT_AVAILABLE, E.NOT_LEADER_OR_FOLLOWER),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION),
        (E.TRANSACTION_COORDINATOR_FENCED, E.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_a_coordinator_of_groups_answers_as_a_leader(error: ErrorCode, told: ErrorCode) -> None:
    """Apache Kafka's transaction coordinator expects no other errors, and ends its thread."""
    assert errors(answered(Deferred.of(error))) == [told]


def test_so_it_does_later() -> None:
    assert errors(answered(Deferred(), Deferred.of(E.NONE))) == [E.NOT_LEADER_OR_FOLLOWER, E.NONE]
