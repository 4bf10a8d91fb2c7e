"""Which partitions a transactional batch may enter, asked of a real coordinator; and the words in
which each version of a client is told why not.
"""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.transaction_gate import (
    PartitionGate,
    commit_error_of,
    produce_error_of,
    produce_message_of,
)
from kbroker.coordinator.transaction.ends import Producer
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from tests.coordinator.transaction.world import Client, TransactionWorld

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
E = ErrorCode


class Replicas:
    """Of the replica manager: in which partitions a producer has its transaction open."""

    def __init__(self) -> None:
        self.open: set[tuple[TopicPartition, int, int]] = set()

    def has_open_transaction(
        self, topic_partition: TopicPartition, producer_id: int, producer_epoch: int
    ) -> bool:
        return (topic_partition, producer_id, producer_epoch) in self.open


class World:
    def __init__(self, version: int) -> None:
        self.transactions = TransactionWorld()
        self.replicas = Replicas()
        self.client = Client(self.transactions, version=version)
        assert self.client.init() is E.NONE
        self.verifies = True
        replicas: Any = self.replicas
        self.gate = PartitionGate(
            replicas, self.transactions.coordinator, verifies=lambda: self.verifies
        )

    def ask(self, *partitions: TopicPartition, adds: bool) -> Any:
        client = self.client
        producer = Producer(client.producer_id, client.epoch)
        return self.gate.ask("tx", producer, partitions, adds=adds)

    def open_in(self, partition: TopicPartition) -> None:
        self.replicas.open.add((partition, self.client.producer_id, self.client.epoch))


def test_the_coordinator_is_asked_of_partitions_without_an_open_transaction() -> None:
    world = World(0)
    assert world.client.add(P0) is E.NONE
    assert world.ask(P0, P1, adds=False).value == {P0: E.NONE, P1: E.TRANSACTION_ABORTABLE}
    world.open_in(P1)
    assert world.ask(P0, P1, adds=False).value == {P0: E.NONE}
    world.open_in(P0)
    assert world.ask(P0, P1, adds=False).value == {}


def test_a_transaction_of_another_epoch_is_not_the_producers() -> None:
    world = World(0)
    world.replicas.open.add((P0, world.client.producer_id, world.client.epoch + 1))
    assert world.ask(P0, adds=False).value == {P0: E.TRANSACTION_ABORTABLE}


def test_without_verification_nothing_is_asked() -> None:
    world = World(0)
    world.verifies = False
    assert world.ask(P0, adds=False).value == {}
    assert world.transactions.state("tx") is TransactionState.EMPTY


@pytest.mark.parametrize("verifies", [True, False])
def test_the_broker_adds_the_partitions_of_a_newer_client(verifies: bool) -> None:
    world = World(2)
    world.verifies = verifies
    world.open_in(P1)
    answer = world.ask(P0, P1, P2, adds=True)
    assert (answer.value) == {P0: E.NONE, P2: E.NONE}
    assert world.transactions.state("tx") is TransactionState.ONGOING
    assert world.client.verify(P2) is E.NONE
    assert world.client.verify(P1) is E.TRANSACTION_ABORTABLE, "it was added by nobody"


def test_the_answer_waits_for_the_record_of_the_added_partitions() -> None:
    world = World(2)
    world.transactions.log.delayed = True
    answer = world.ask(P0, P1, adds=True)
    assert isinstance(answer, Deferred) and not answer.done
    world.transactions.log.commit()
    assert answer.value == {P0: E.NONE, P1: E.NONE}


def test_partitions_that_were_added_are_verified_before_they_are_written_to() -> None:
    """The transaction can end between the commit of the record and the answer."""
    world = World(2)
    added: Deferred[ErrorCode] = Deferred()
    coordinator: Any = world.transactions.coordinator

    class Slow:
        def add_partitions(self, *_: object, **__: object) -> Deferred[ErrorCode]:
            return added

        def verify(self, *arguments: Any) -> Deferred[dict[TopicPartition, ErrorCode]]:
            verified: Deferred[dict[TopicPartition, ErrorCode]] = coordinator.verify(*arguments)
            return verified

    slow: Any = Slow()
    replicas: Any = world.replicas
    gate = PartitionGate(replicas, slow, verifies=lambda: True)
    producer = Producer(world.client.producer_id, world.client.epoch)
    answer = gate.ask("tx", producer, [P0], adds=True)
    added.resolve(E.NONE)
    assert isinstance(answer, Deferred)
    assert answer.value == {P0: E.TRANSACTION_ABORTABLE}


def test_the_coordinators_refusal_holds_for_all_partitions() -> None:
    world = World(2)
    world.client.epoch -= 1
    answer = world.ask(P0, P1, adds=True)
    found = answer.value
    assert found == dict.fromkeys((P0, P1), E.PRODUCER_FENCED)
    world.transactions.resign()
    answer = world.ask(P0, adds=True)
    found = answer.value
    assert found == {P0: E.NOT_COORDINATOR}


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (E.NONE, 12, E.NONE),
        (E.INVALID_TXN_STATE, 12, E.INVALID_TXN_STATE),
        *(
            (error, version, E.NOT_ENOUGH_REPLICAS)
            for error in (
                E.NETWORK_EXCEPTION,
                E.COORDINATOR_LOAD_IN_PROGRESS,
                E.COORDINATOR_NOT_AVAILABLE,
                E.NOT_COORDINATOR,
            )
            for version in (3, 12)
        ),
        (E.CONCURRENT_TRANSACTIONS, 11, E.NOT_ENOUGH_REPLICAS),
        (E.CONCURRENT_TRANSACTIONS, 12, E.CONCURRENT_TRANSACTIONS),
        (E.PRODUCER_FENCED, 12, E.INVALID_PRODUCER_EPOCH),
        (E.TRANSACTION_ABORTABLE, 10, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, 11, E.TRANSACTION_ABORTABLE),
    ],
)
def test_errors_of_produce(error: ErrorCode, version: int, told: ErrorCode) -> None:
    assert produce_error_of(error, version) is told


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (E.NONE, 5, E.NONE),
        *(
            (error, version, E.COORDINATOR_NOT_AVAILABLE)
            for error in (
                E.NETWORK_EXCEPTION,
                E.COORDINATOR_LOAD_IN_PROGRESS,
                E.COORDINATOR_NOT_AVAILABLE,
                E.NOT_COORDINATOR,
            )
            for version in (0, 5)
        ),
        (E.CONCURRENT_TRANSACTIONS, 4, E.COORDINATOR_NOT_AVAILABLE),
        (E.CONCURRENT_TRANSACTIONS, 5, E.CONCURRENT_TRANSACTIONS),
        (E.PRODUCER_FENCED, 5, E.INVALID_PRODUCER_EPOCH),
        (E.TRANSACTION_ABORTABLE, 3, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, 4, E.TRANSACTION_ABORTABLE),
    ],
)
def test_errors_of_txn_offset_commit(error: ErrorCode, version: int, told: ErrorCode) -> None:
    assert commit_error_of(error, version) is told


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (E.INVALID_TXN_STATE, "not part of"),
        (E.NOT_ENOUGH_REPLICAS, "coordinator is busy"),
        (E.INVALID_PRODUCER_EPOCH, None),
        (E.NONE, None),
    ],
)
def test_a_message_where_the_errors_name_would_mislead(error: ErrorCode, words: str | None) -> None:
    message = produce_message_of(error)
    assert (message is None) == (words is None)
    assert message is None or (words is not None and words in message)
