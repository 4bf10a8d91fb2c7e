"""Which partitions a transactional batch may enter, asked of a real coordinator; and the words in
which each version of a client is told why not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.broker.transaction_gate import (
    AddRetries,
    Guard,
    PartitionGate,
    Verdicts,
    commit_error_of,
    produce_error_of,
    produce_message_of,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from tests.coordinator.transaction.world import Client, TransactionWorld

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
E = ErrorCode


RETRIES = AddRetries(backoff_ms=20, timeout_ms=100)


class Replicas:
    """Of the replica manager: in which partitions a producer has its transaction open, and how many
    markers were written to each.
    """

    def __init__(self) -> None:
        self.open: set[tuple[TopicPartition, int, int]] = set()
        self.markers: Counter[TopicPartition] = Counter()
        self.leader_epoch = 0
        self.resigned: set[TopicPartition] = set()

    def verification_guard(self, topic_partition: TopicPartition, producer_id: int) -> Guard:
        if topic_partition in self.resigned:
            return None
        return self.leader_epoch, self.markers[topic_partition]

    def has_open_transaction(
        self, topic_partition: TopicPartition, producer_id: int, producer_epoch: int
    ) -> bool:
        return (topic_partition, producer_id, producer_epoch) in self.open


class Others:
    """A coordinator on another broker, if it has an answer. asked: (partitions, adds)."""

    def __init__(self) -> None:
        self.answer: Deferred[Verdicts] | None = None
        self.asked: list[tuple[list[TopicPartition], bool]] = []

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts] | None:
        if self.answer is not None:
            self.asked.append((list(partitions), adds))
        return self.answer


class World:
    def __init__(self, version: int) -> None:
        self.transactions = TransactionWorld()
        self.replicas = Replicas()
        self.client = Client(self.transactions, version=version)
        assert self.client.init() is E.NONE
        self.verifies = True
        replicas: Any = self.replicas
        self.others = Others()
        self.gate = PartitionGate(
            replicas,
            self.transactions.coordinator,
            self.transactions.timers,
            verifies=lambda: self.verifies,
            retries=RETRIES,
            remote=self.others,
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


def test_a_marker_that_overtakes_the_record_of_the_added_partitions_keeps_the_batch_out() -> None:
    """The transaction can end between the commit of the record and the answer."""
    world = World(2)
    world.transactions.log.delayed = True
    answer = world.ask(P0, P1, adds=True)
    world.replicas.markers.update([P1])
    world.transactions.log.commit()
    assert answer.value == {P0: E.NONE, P1: E.INVALID_TXN_STATE}


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


def test_a_coordinator_elsewhere_is_asked_instead() -> None:
    world = World(2)
    world.others.answer = Deferred.of({P0: E.NONE, P1: E.TRANSACTION_ABORTABLE})
    assert world.ask(P0, P1, adds=False).value == {P0: E.NONE, P1: E.TRANSACTION_ABORTABLE}
    world.open_in(P1)
    world.others.answer = Deferred.of({P0: E.NONE})
    assert world.ask(P0, P1, adds=True).value == {P0: E.NONE}
    assert world.others.asked == [([P0, P1], False), ([P0], True)]
    assert world.transactions.state("tx") is TransactionState.EMPTY


@pytest.mark.parametrize("adds", [True, False])
def test_a_marker_that_overtakes_the_answer_keeps_the_batch_out(adds: bool) -> None:
    world = World(2)
    world.others.answer = answer = Deferred[Verdicts]()
    asked = world.ask(P0, P1, P2, adds=adds)
    world.replicas.markers.update([P1, P2])
    world.open_in(P2)  # and the next transaction has begun
    answer.resolve(dict.fromkeys((P0, P1, P2), E.NONE))
    assert asked.value == {P0: E.NONE, P1: E.INVALID_TXN_STATE, P2: E.NONE}


def test_after_a_change_of_leaders_the_coordinator_is_asked_again() -> None:
    """A marker may have been written by the leader between. Who leads no more refuses the batch."""
    world = World(2)
    world.others.answer = answer = Deferred[Verdicts]()
    world.replicas.resigned = {P2}
    asked = world.ask(P0, P1, P2, adds=True)
    world.replicas.leader_epoch, world.replicas.resigned = 2, {P1}
    answer.resolve(dict.fromkeys((P0, P1, P2), E.NONE))
    assert asked.value == {P0: E.NETWORK_EXCEPTION, P1: E.NONE, P2: E.NETWORK_EXCEPTION}


def test_partitions_are_added_again_while_the_last_transaction_ends() -> None:
    world = World(2)
    timers = world.transactions.timers
    world.others.answer = Deferred.of({P0: E.CONCURRENT_TRANSACTIONS})
    asked = world.ask(P0, adds=True)
    timers.advance(60)
    assert not asked.done and len(world.others.asked) == 4
    world.others.answer = Deferred.of({P0: E.NONE})
    timers.advance(20)
    assert asked.value == {P0: E.NONE}


def test_after_some_time_the_producer_has_to_try_again() -> None:
    world = World(2)
    world.others.answer = Deferred.of({P0: E.CONCURRENT_TRANSACTIONS})
    asked = world.ask(P0, adds=True)
    world.transactions.timers.advance(RETRIES.timeout_ms - 1)
    assert not asked.done
    world.transactions.timers.advance(RETRIES.backoff_ms)
    assert asked.value == {P0: E.CONCURRENT_TRANSACTIONS}


def test_a_producer_that_adds_partitions_itself_is_told_at_once() -> None:
    world = World(0)
    world.others.answer = Deferred.of({P0: E.CONCURRENT_TRANSACTIONS})
    assert world.ask(P0, adds=False).value == {P0: E.CONCURRENT_TRANSACTIONS}


def test_a_producers_questions_are_answered_in_order() -> None:
    """Only the first is asked: its batches open the transaction before the others are looked at."""
    world = World(2)
    world.others.answer = first = Deferred[Verdicts]()
    appended = []

    def append(number: int) -> None:
        appended.append(number)
        world.open_in(P0)

    for number in range(3):
        world.ask(P0, adds=True).on_done(lambda _, number=number: append(number))
    other = Producer(world.client.producer_id + 1, 0)
    assert not world.gate.ask("other", other, [P0], adds=True).done
    assert len(world.others.asked) == 2
    first.resolve({P0: E.NONE})
    assert appended == [0, 1, 2]
    assert len(world.others.asked) == 2


def test_a_question_that_waited_is_asked_if_the_one_before_it_failed() -> None:
    world = World(2)
    world.others.answer = first = Deferred[Verdicts]()
    asked = [world.ask(P0, adds=True) for _ in range(3)]
    world.others.answer = second = Deferred[Verdicts]()
    first.resolve({P0: E.NETWORK_EXCEPTION})
    assert asked[0].value == {P0: E.NETWORK_EXCEPTION}
    assert not asked[1].done and len(world.others.asked) == 2
    world.others.answer = Deferred.of({P0: E.NONE})
    second.resolve({P0: E.CONCURRENT_TRANSACTIONS})
    assert not asked[1].done and not asked[2].done, "it is asked again before the next one"
    world.transactions.timers.advance(20)
    assert asked[1].value == asked[2].value == {P0: E.NONE}
    assert world.ask(P0, adds=False).done


def test_a_batch_appended_later_enters_if_no_marker_has_come_before_it() -> None:
    world = World(2)
    producer = Producer(world.client.producer_id, world.client.epoch)
    checks = [world.gate.recheck(producer, each, adds=True) for each in (P0, P1, P2)]
    world.replicas.markers.update([P1, P2])
    world.open_in(P2)
    assert [check and check() for check in checks] == [E.NONE, E.INVALID_TXN_STATE, E.NONE]
    assert not world.others.asked


@pytest.mark.parametrize(("verifies", "adds"), [(True, False), (False, True)])
def test_batches_of_verified_producers_are_checked_again(verifies: bool, adds: bool) -> None:
    world = World(0)
    world.verifies = verifies
    assert world.gate.recheck(Producer(1, 0), P0, adds=adds) is not None


def test_batches_of_producers_that_are_not_verified_are_not_checked_again() -> None:
    world = World(0)
    world.verifies = False
    assert world.gate.recheck(Producer(1, 0), P0, adds=False) is None


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
