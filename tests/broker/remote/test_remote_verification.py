"""Verification by transaction coordinators on other brokers: batches, replaced questions, and each
way in which there is no answer.
"""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.remote.remote_verification import PURPOSE, RemoteCoordinators
from kbroker.broker.transaction_gate import Verdicts
from kbroker.coordinator.transaction.producer import Producer
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import AddPartitionsToTxnResponse
from kbroker.server.network.memory_pool import MemoryPool
from tests.broker.peers import Image, Peers, Sent

E = ErrorCode
P0, P1, Q0 = TopicPartition("p", 0), TopicPartition("p", 1), TopicPartition("q", 0)
PRODUCER = Producer(7, 3)
HERE, THERE, NOWHERE, UNKNOWN = 0, 1, 2, 3
"""Partitions of `__transaction_state`; a transactional id begins with its partition."""


class World:
    def __init__(self) -> None:
        self.peers = Peers()
        peers: Any = self.peers
        image: Any = Image(__transaction_state=[1, 2, -1])
        self.memory = MemoryPool()
        self.remote = RemoteCoordinators(
            1, peers, lambda: image, lambda name: int(name[0]), self.memory
        )

    def ask(
        self,
        *partitions: TopicPartition,
        name: str = "1 tx",
        epoch: int = 3,
        adds: bool = False,
    ) -> Deferred[Verdicts]:
        asked = self.remote.ask(name, Producer(7, epoch), partitions, adds=adds)
        assert asked is not None
        return asked


def asked(sent: Sent) -> list[tuple[str, int, int, bool, dict[str, list[int]]]]:
    return [
        (
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            each.verify_only,
            {topic.name: topic.partitions for topic in each.topics},
        )
        for each in sent.request.transactions
    ]


def answer(sent: Sent, errors: dict[str, dict[TopicPartition, int]]) -> None:
    kind = AddPartitionsToTxnResponse
    sent.response.resolve(
        kind(
            results_by_transaction=[
                kind.AddPartitionsToTxnResult(
                    transactional_id=name,
                    topic_results=[
                        kind.AddPartitionsToTxnTopicResult(
                            name=partition.topic,
                            results_by_partition=[
                                kind.AddPartitionsToTxnPartitionResult(
                                    partition_index=partition.partition,
                                    partition_error_code=error,
                                )
                            ],
                        )
                        for partition, error in found.items()
                    ],
                )
                for name, found in errors.items()
            ]
        )
    )


def test_the_coordinator_of_this_broker_is_not_asked_over_the_wire() -> None:
    world = World()
    assert world.remote.ask(f"{HERE} tx", PRODUCER, [P0], adds=True) is None
    assert not world.peers.sent


@pytest.mark.parametrize("partition", [NOWHERE, UNKNOWN])
def test_without_a_coordinator_the_producer_tries_again(partition: int) -> None:
    verdicts = World().ask(P0, P1, name=f"{partition} tx")
    assert verdicts.value == dict.fromkeys((P0, P1), E.COORDINATOR_NOT_AVAILABLE)


@pytest.mark.parametrize("adds", [True, False])
def test_a_question_and_its_answer(adds: bool) -> None:
    world = World()
    verdicts = world.ask(Q0, P1, P0, adds=adds)
    (sent,) = world.peers.take()
    assert (sent.broker_id, sent.purpose) == (2, PURPOSE)
    assert asked(sent) == [("1 tx", 7, 3, not adds, {"p": [0, 1], "q": [0]})]
    errors = {P0: E.NONE, P1: E.TRANSACTION_ABORTABLE, Q0: E.PRODUCER_FENCED}
    answer(sent, {"1 tx": dict(errors)})
    assert verdicts.value == errors


def test_partitions_beside_one_that_the_coordinator_does_not_know_yet_are_asked_for_again() -> None:
    world = World()
    verdicts = world.ask(P0, P1)
    (sent,) = world.peers.take()
    answer(sent, {"1 tx": {P0: E.UNKNOWN_TOPIC_OR_PARTITION, P1: E.OPERATION_NOT_ATTEMPTED}})
    assert verdicts.value == {P0: E.UNKNOWN_TOPIC_OR_PARTITION, P1: E.NETWORK_EXCEPTION}


def test_questions_of_several_transactions_share_a_request() -> None:
    world = World()
    first = world.ask(P0, name="1 a")
    others = {name: world.ask(P1, name=name, adds=name == "1 c") for name in ("1 b", "1 c", "1 d")}
    (sent,) = world.peers.take()
    answer(sent, {"1 a": {P0: E.NONE}})
    assert first.value == {P0: E.NONE}
    (sent,) = world.peers.take()
    assert [(name, verify) for name, _, _, verify, _ in asked(sent)] == [
        ("1 b", True),
        ("1 c", False),
        ("1 d", True),
    ]
    answer(sent, {"1 c": {P1: E.CONCURRENT_TRANSACTIONS}, "1 b": {P1: E.NONE}, "1 d": {P0: E.NONE}})
    assert {name: verdicts.value for name, verdicts in others.items()} == {
        "1 b": {P1: E.NONE},
        "1 c": {P1: E.CONCURRENT_TRANSACTIONS},
        "1 d": {P1: E.NETWORK_EXCEPTION},
    }, "a partition without an answer is asked for again"


@pytest.mark.parametrize(
    ("epoch", "later_epoch", "told", "later_told"),
    [
        pytest.param(3, 3, E.NETWORK_EXCEPTION, None, id="sent again"),
        pytest.param(3, 4, E.INVALID_PRODUCER_EPOCH, None, id="fenced by the later one"),
        pytest.param(4, 3, None, E.INVALID_PRODUCER_EPOCH, id="the later one is fenced"),
    ],
)
def test_one_question_of_a_transactional_id_waits(
    epoch: int, later_epoch: int, told: ErrorCode | None, later_told: ErrorCode | None
) -> None:
    world = World()
    world.ask(P0, name="1 other")
    earlier = world.ask(P0, epoch=epoch)
    later = world.ask(P0, epoch=later_epoch)
    for verdicts, error in ((earlier, told), (later, later_told)):
        assert verdicts.done == (error is not None)
        if error is not None:
            assert verdicts.value == {P0: error}
    first, *none = world.peers.take()
    assert not none
    first.fail()
    (sent,) = world.peers.take()
    assert [each[2] for each in asked(sent)] == [max(epoch, later_epoch)]
    answer(sent, {"1 tx": {P0: E.NONE}})
    assert (earlier if told is None else later).value == {P0: E.NONE}


def test_a_question_in_flight_is_not_replaced() -> None:
    world = World()
    first, second = world.ask(P0), world.ask(P1)
    (sent,) = world.peers.take()
    answer(sent, {"1 tx": {P0: E.NONE}})
    (sent,) = world.peers.take()
    answer(sent, {"1 tx": {P1: E.NONE}})
    assert (first.value, second.value) == ({P0: E.NONE}, {P1: E.NONE})


def test_a_question_without_room_is_answered_and_the_one_before_it_stays() -> None:
    world = World()
    in_flight, waiting = world.ask(P0, name="1 other"), world.ask(P0)
    world.memory.charge(world.memory.limit)
    refused, again = world.ask(P1, name="1 third"), world.ask(P1, epoch=4)
    assert refused.value == again.value == {P1: E.NETWORK_EXCEPTION}
    world.memory.release(world.memory.limit)
    later = world.ask(P1, name="1 third")
    world.peers.take()[0].fail()
    (sent,) = world.peers.take()
    assert [each[0] for each in asked(sent)] == ["1 tx", "1 third"]
    answer(sent, {"1 tx": {P0: E.NONE}, "1 third": {P1: E.NONE}})
    assert in_flight.done and (waiting.value, later.value) == ({P0: E.NONE}, {P1: E.NONE})
    assert world.memory.used == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (E.NETWORK_EXCEPTION, E.NETWORK_EXCEPTION),
        (E.REQUEST_TIMED_OUT, E.NETWORK_EXCEPTION),
        (E.BROKER_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
        (E.UNSUPPORTED_VERSION, E.NONE),
    ],
)
def test_a_request_without_a_response(error: ErrorCode, told: ErrorCode) -> None:
    world = World()
    verdicts = world.ask(P0, P1)
    world.peers.sent[0].fail(error)
    assert verdicts.value == dict.fromkeys((P0, P1), told)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (int(E.CLUSTER_AUTHORIZATION_FAILED), E.INVALID_TXN_STATE),
        (int(E.COORDINATOR_LOAD_IN_PROGRESS), E.COORDINATOR_LOAD_IN_PROGRESS),
        (999, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_the_whole_request(code: int, told: ErrorCode) -> None:
    world = World()
    verdicts = world.ask(P0)
    world.peers.sent[0].response.resolve(AddPartitionsToTxnResponse(error_code=code))
    assert verdicts.value == {P0: told}
