"""AlterPartition as one broker sends it: one request in flight, one proposal per partition."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import AlterPartitionRequest, AlterPartitionResponse
from kbroker.replication.leaders.isr import IsrProposal
from kbroker.replication.leaders.isr_changes import RETRY_MS, IsrChanges, IsrChangeSender
from tests.sim.timers import SimTimers

NODE_ID = 1
BROKER_EPOCH = 40
ONE: Uuid = bytes(15) + b"\x01"
TWO: Uuid = bytes(15) + b"\x02"


class Owner:
    """An `isr.ProposalOwner` that keeps its answers. retries: submits again after an error."""

    def __init__(self, changes: IsrChanges, *, retries: bool = False) -> None:
        self.changes = changes
        self.retries = retries
        self.committed: list[tuple[IsrProposal, list[int], int, int]] = []
        self.refused: list[ErrorCode] = []

    def isr_committed(
        self,
        proposal: IsrProposal,
        isr: Sequence[int],
        *,
        leader_epoch: int,
        partition_epoch: int,
        now_ms: int,
    ) -> bool:
        self.committed.append((proposal, list(isr), leader_epoch, partition_epoch))
        return False

    def isr_refused(self, proposal: IsrProposal, error: ErrorCode) -> None:
        self.refused.append(error)
        if self.retries:
            assert self.changes.submit(self, proposal)


def proposal(index: int = 0, *, topic_id: Uuid = ONE) -> IsrProposal:
    return IsrProposal(
        TopicPartition("t", index),
        topic_id,
        ((NODE_ID, -1), (2, 50)),
        leader_epoch=3,
        partition_epoch=7,
        added=2,
    )


def answer(
    request: AlterPartitionRequest, error: ErrorCode = ErrorCode.NONE, *, top: int = 0
) -> AlterPartitionResponse:
    """The same answer for every partition of a request."""
    return AlterPartitionResponse(
        error_code=top,
        topics=[
            AlterPartitionResponse.TopicData(
                topic_id=topic.topic_id,
                partitions=[
                    AlterPartitionResponse.PartitionData(
                        partition_index=each.partition_index,
                        error_code=int(error),
                        leader_id=NODE_ID,
                        leader_epoch=each.leader_epoch,
                        isr=[NODE_ID, 2],
                        partition_epoch=each.partition_epoch + 1,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def sent(changes: IsrChanges, now_ms: int = 0) -> AlterPartitionRequest:
    request = changes.request(BROKER_EPOCH, now_ms)
    assert request is not None
    return request


def indexes(request: AlterPartitionRequest) -> list[tuple[Uuid, int]]:
    return [
        (topic.topic_id, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]


def test_a_request_carries_all_proposals_and_the_own_epoch() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    for made in (proposal(0), proposal(3), proposal(0, topic_id=TWO)):
        assert changes.submit(owner, made)
    request = sent(changes)
    assert (request.broker_id, request.broker_epoch) == (NODE_ID, BROKER_EPOCH)
    assert indexes(request) == [(ONE, 0), (ONE, 3), (TWO, 0)]
    asked = request.topics[0].partitions[0]
    assert (asked.leader_epoch, asked.partition_epoch) == (3, 7)
    assert asked.leader_recovery_state == 0
    assert [(each.broker_id, each.broker_epoch) for each in asked.new_isr_with_epochs] == [
        (NODE_ID, BROKER_EPOCH),
        (2, 50),
    ]
    changes.answered(answer(request), 0)
    assert [each[1:] for each in owner.committed] == [([NODE_ID, 2], 3, 8)] * 3
    assert not changes.is_waiting


def test_one_request_is_in_flight() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    changes.submit(owner, proposal(0))
    first = sent(changes)
    assert changes.is_waiting
    assert changes.submit(owner, proposal(1))
    assert changes.request(BROKER_EPOCH, 0) is None
    assert changes.delay_ms(0) is None
    changes.answered(answer(first), 0)
    assert changes.delay_ms(0) == 0
    assert indexes(sent(changes)) == [(ONE, 1)]


def test_a_partition_has_one_proposal_at_a_time() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    assert changes.submit(owner, proposal())
    assert not changes.submit(owner, proposal())
    request = sent(changes)
    assert not changes.submit(owner, proposal())
    changes.answered(answer(request), 0)
    assert changes.submit(owner, proposal())


def test_an_error_of_the_request_sends_the_same_again_after_a_pause() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    changes.submit(owner, proposal())
    request = sent(changes)
    changes.answered(answer(request, top=int(ErrorCode.STALE_BROKER_EPOCH)), 10)
    assert not owner.committed and not owner.refused
    assert changes.request(BROKER_EPOCH, 10) is None
    assert changes.delay_ms(10) == RETRY_MS
    again = changes.request(BROKER_EPOCH + 1, 10 + RETRY_MS)
    assert again is not None and again.broker_epoch == BROKER_EPOCH + 1
    assert indexes(again) == [(ONE, 0)]


def test_an_owner_that_tries_again_does_not_ask_without_pause() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes, retries=True)
    changes.submit(owner, proposal())
    changes.answered(answer(sent(changes), ErrorCode.NOT_CONTROLLER), 10)
    assert owner.refused == [ErrorCode.NOT_CONTROLLER]
    assert changes.delay_ms(10) == RETRY_MS
    assert indexes(sent(changes, 10 + RETRY_MS)) == [(ONE, 0)]


def test_a_proposal_that_the_answer_lacks_is_sent_again() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    changes.submit(owner, proposal(0))
    changes.submit(owner, proposal(1))
    response = answer(sent(changes))
    del response.topics[0].partitions[0]
    changes.answered(response, 0)
    assert len(owner.committed) == 1
    assert indexes(sent(changes, RETRY_MS)) == [(ONE, 0)]


def test_answers_to_what_was_not_asked_are_ignored() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    changes.submit(owner, proposal(0))
    request = sent(changes)
    request.topics[0].partitions[0].partition_index = 9
    changes.answered(answer(request), 0)
    assert not owner.committed
    assert indexes(sent(changes, RETRY_MS)) == [(ONE, 0)]


def test_the_loop_sends_once_per_turn_and_again_after_a_failure() -> None:
    timers = SimTimers()
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    requests: list[tuple[AlterPartitionRequest, Deferred[AlterPartitionResponse]]] = []

    def send(request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        requests.append((request, Deferred()))
        return requests[-1][1]

    sender = IsrChangeSender(changes, send, timers, broker_epoch=lambda: BROKER_EPOCH)
    changes.submit(owner, proposal(0))
    changes.submit(owner, proposal(1))
    assert not requests
    timers.advance(0)
    assert [indexes(each) for each, _ in requests] == [[(ONE, 0), (ONE, 1)]]
    requests[0][1].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    timers.advance(RETRY_MS - 1)
    assert len(requests) == 1
    timers.advance(1)
    assert indexes(requests[1][0]) == [(ONE, 0), (ONE, 1)]
    changes.submit(owner, proposal(2))
    timers.advance(RETRY_MS)
    assert len(requests) == 2
    requests[1][1].resolve(answer(requests[1][0]))
    timers.advance(0)
    assert len(owner.committed) == 2
    assert indexes(requests[2][0]) == [(ONE, 2)]
    sender.close()
    requests[2][1].fail(KafkaError(ErrorCode.NETWORK_EXCEPTION))
    timers.advance(RETRY_MS)
    assert len(requests) == 3, "closed"


def test_answers_are_counted() -> None:
    changes = IsrChanges(NODE_ID)
    owner = Owner(changes)
    shrinking = proposal(1)
    shrinking.added = None
    changes.submit(owner, proposal(0))
    changes.submit(owner, shrinking)
    changes.answered(answer(sent(changes), top=int(ErrorCode.STALE_BROKER_EPOCH)), 0)
    updates = changes.updates
    assert (updates.expands, updates.shrinks, updates.failed) == (0, 0, 0), "sent again"
    changes.answered(answer(sent(changes, RETRY_MS)), RETRY_MS)
    assert (updates.expands, updates.shrinks, updates.failed) == (1, 1, 0)
    changes.submit(owner, proposal(0))
    refusal = answer(sent(changes, RETRY_MS), ErrorCode.INVALID_UPDATE_VERSION)
    changes.answered(refusal, RETRY_MS)
    assert (updates.expands, updates.shrinks, updates.failed) == (1, 1, 1)
