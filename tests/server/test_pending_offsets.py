"""Offsets in transactions over the wire: share groups refuse them, and topics that go take them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest, ListGroupsRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call

E = ErrorCode
PASSING = (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.CONCURRENT_TRANSACTIONS)
TRIES = 2_000


class Wire:
    """One connection, and a producer with a transactional id."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        for key_type in (0, 1):
            find = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
            self.until(lambda answer: answer.coordinators[0].error_code == E.NONE, find, 4)
        init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        answer = self.until(lambda answer: answer.error_code not in PASSING, init, 4)
        self.producer = {
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }

    def until(self, is_done: Callable[[Any], bool], request: Message, version: int) -> Any:
        for _ in range(TRIES):
            answer = call(self.connection, request, version)
            if is_done(answer):
                return answer
        raise AssertionError(answer)

    def commit(self, offset: int) -> ErrorCode:
        """TxnOffsetCommit of the group `g`, which makes its partition part of the transaction."""
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name="events", partitions=[partition]
                )
            ],
            **self.producer,
        )
        answer = self.until(
            lambda answer: answer.topics[0].partitions[0].error_code not in PASSING, request, 5
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self) -> None:
        request = EndTxnRequest(transactional_id="t", committed=True, **self.producer)
        answer = self.until(lambda answer: answer.error_code not in PASSING, request, 5)
        assert answer.error_code == E.NONE

    def fetch(self) -> int:
        """The committed offset, once no transaction is open."""
        wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="events", partition_indexes=[0])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[wanted])],
            require_stable=True,
        )
        answer = self.until(
            lambda answer: answer.groups[0].topics[0].partitions[0].error_code == E.NONE, request, 8
        )
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    def groups(self) -> list[tuple[str, str]]:
        answer: Any = call(self.connection, ListGroupsRequest(), 5)
        return [(group.group_id, group.group_type) for group in answer.groups]

    def create(self) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name="events", num_partitions=1, replication_factor=1
        )
        answer: Any = call(self.connection, CreateTopicsRequest(topics=[topic]), 7)
        assert answer.topics[0].error_code == E.NONE


@pytest.fixture
def wire() -> Iterator[Wire]:
    overrides = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with EmbeddedBroker(overrides) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            wire = Wire(connection)
            wire.create()
            yield wire


def test_the_pending_offset_of_a_topic_does_not_pass_to_its_successor(wire: Wire) -> None:
    assert wire.commit(100) is E.NONE
    delete: Any = call(wire.connection, DeleteTopicsRequest(topic_names=["events"]), 5)
    assert delete.responses[0].error_code == E.NONE
    wire.create()
    wire.end()
    assert wire.fetch() == -1


def test_a_share_group_refuses_offsets_and_is_listed_once(wire: Wire) -> None:
    join = ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["events"]
    )
    joined: Any = call(wire.connection, join, 1)
    assert joined.error_code == E.NONE
    assert wire.commit(100) is E.GROUP_ID_NOT_FOUND
    wire.end()
    assert wire.fetch() == -1
    assert wire.groups() == [("g", "share")]
    again = ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=joined.member_epoch
    )
    answered: Any = call(wire.connection, again, 1)
    assert answered.error_code == E.NONE
