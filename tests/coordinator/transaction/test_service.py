"""The transaction coordinator's core: every illegal transition and stale epoch, the tables of ends,
retries after lost answers, timeouts, expiry, and what is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import ENDING, TransactionState
from kbroker.model import TopicPartition
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.coordinator.transaction.world import OUT, Client, TransactionWorld

S = TransactionState
E = ErrorCode


def test_a_transaction_of_each_version() -> None:
    for version in (0, 2):
        world = TransactionWorld()
        client = Client(world, version=version)
        assert client.init() is E.NONE
        assert client.add(OUT) is E.NONE
        assert world.state("tx") is S.ONGOING
        epoch = client.epoch
        assert client.end(commit=True) is E.NONE
        assert world.state("tx") is S.COMPLETE_COMMIT
        marker_epoch = epoch + 1 if version == 2 else epoch
        assert world.markers == [(OUT, client.producer_id, marker_epoch, True)]
        assert client.epoch == marker_epoch
        assert client.add(OUT) is E.NONE
        assert client.end(commit=False) is E.NONE
        assert world.state("tx") is S.COMPLETE_ABORT
        assert world.replayed().transactions.keys() == {"tx"}


ONGOING_STATES = [state for state in S if state not in (S.DEAD, S.PREPARE_EPOCH_FENCE)]
V1_ENDS: dict[tuple[TransactionState, bool], ErrorCode] = {
    (S.EMPTY, True): E.INVALID_TXN_STATE,
    (S.EMPTY, False): E.INVALID_TXN_STATE,
    (S.ONGOING, True): E.NONE,
    (S.ONGOING, False): E.NONE,
    (S.PREPARE_COMMIT, True): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_COMMIT, False): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_ABORT, True): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_ABORT, False): E.CONCURRENT_TRANSACTIONS,
    (S.COMPLETE_COMMIT, True): E.NONE,
    (S.COMPLETE_COMMIT, False): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, True): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, False): E.NONE,
}
V2_FIRST_ENDS = {
    (S.EMPTY, True): E.INVALID_TXN_STATE,
    (S.EMPTY, False): E.NONE,
    (S.ONGOING, True): E.NONE,
    (S.ONGOING, False): E.NONE,
    (S.PREPARE_COMMIT, True): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_COMMIT, False): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_ABORT, True): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_ABORT, False): E.CONCURRENT_TRANSACTIONS,
    (S.COMPLETE_COMMIT, True): E.INVALID_TXN_STATE,
    (S.COMPLETE_COMMIT, False): E.NONE,
    (S.COMPLETE_ABORT, True): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, False): E.NONE,
}
V2_RETRIED_ENDS = {
    (S.EMPTY, True): E.PRODUCER_FENCED,
    (S.EMPTY, False): E.PRODUCER_FENCED,
    (S.ONGOING, True): E.PRODUCER_FENCED,
    (S.ONGOING, False): E.PRODUCER_FENCED,
    (S.PREPARE_COMMIT, True): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_COMMIT, False): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_ABORT, True): E.CONCURRENT_TRANSACTIONS,
    (S.PREPARE_ABORT, False): E.CONCURRENT_TRANSACTIONS,
    (S.COMPLETE_COMMIT, True): E.NONE,
    (S.COMPLETE_COMMIT, False): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, True): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, False): E.NONE,
}


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("state", ONGOING_STATES, ids=lambda state: state.shown)
@pytest.mark.parametrize(
    ("version", "epoch", "table"),
    [
        pytest.param(0, 5, V1_ENDS, id="v1"),
        pytest.param(2, 5, V2_FIRST_ENDS, id="v2"),
        pytest.param(2, 4, V2_RETRIED_ENDS, id="v2 again"),
    ],
)
def test_every_end_in_every_state(
    version: int, epoch: int, table: Any, state: TransactionState, commit: bool
) -> None:
    world = TransactionWorld()
    world.marker_error = E.NOT_LEADER_OR_FOLLOWER
    world.put(Transaction("tx", 7, 5, 60_000, state, frozenset({OUT}), client_version=version))
    before = world.shard().transactions["tx"]
    client = Client(world, version=version, producer_id=7, epoch=epoch)
    assert client.end(commit=commit) is table[state, commit]
    if table[state, commit] is not E.NONE or (version == 2 and epoch == 4):
        assert world.shard().transactions["tx"] == before


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", ONGOING_STATES, ids=lambda state: state.shown)
@pytest.mark.parametrize(
    ("producer", "error"),
    [
        pytest.param(Producer(7, 3), E.PRODUCER_FENCED, id="older epoch"),
        pytest.param(Producer(7, 6), E.PRODUCER_FENCED, id="epoch of the future"),
        pytest.param(Producer(8, 5), E.INVALID_PRODUCER_ID_MAPPING, id="other id"),
    ],
)
def test_strangers_change_nothing(
    version: int, state: TransactionState, producer: Producer, error: ErrorCode
) -> None:
    world = TransactionWorld()
    world.marker_error = E.NOT_LEADER_OR_FOLLOWER
    world.put(Transaction("tx", 7, 5, 60_000, state, frozenset({OUT}), client_version=version))
    before = world.shard().transactions["tx"]
    client = Client(world, version=version, producer_id=producer[0], epoch=producer[1])
    busy = E.CONCURRENT_TRANSACTIONS if state in ENDING else error  # as Apache Kafka 4.3.1 answers
    for commit in (True, False):
        assert client.end(commit=commit) is (busy if version == 2 else error)
    assert client.add(TopicPartition("other", 0)) is busy
    assert client.verify(OUT) is error
    assert world.shard().transactions["tx"] == before


def test_a_producer_that_was_told_its_new_id_waits_for_the_end() -> None:
    """Its id changes with the Complete record: until then it is not taken for a stranger."""
    world = TransactionWorld()
    world.marker_error = E.NOT_LEADER_OR_FOLLOWER
    world.put(Transaction("tx", 7, 32766, 60_000, S.ONGOING, frozenset({OUT}), client_version=2))
    client = Client(world, version=2, producer_id=7, epoch=32766)
    assert client.end(commit=True) is E.NONE
    assert (client.producer_id, client.epoch) == (world.last_producer_id, 0)
    assert client.add(OUT) is E.CONCURRENT_TRANSACTIONS
    assert client.end(commit=False) is E.CONCURRENT_TRANSACTIONS
    assert client.init(keep=True) is E.CONCURRENT_TRANSACTIONS
    world.marker_error = E.NONE
    world.timers.advance(10_000)
    assert client.add(OUT) is E.NONE


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (S.EMPTY, E.NONE),
        (S.ONGOING, E.NONE),
        (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, E.NONE),
        (S.COMPLETE_ABORT, E.NONE),
    ],
)
def test_partitions_are_added_in_every_state(state: TransactionState, error: ErrorCode) -> None:
    world = TransactionWorld()
    world.marker_error = E.NOT_LEADER_OR_FOLLOWER
    world.put(Transaction("tx", 7, 5, 60_000, state, frozenset({TopicPartition("out", 9)})))
    client = Client(world, producer_id=7, epoch=5)
    assert client.add(OUT) is error
    if error is E.NONE:
        assert client.verify(OUT) is E.NONE
        assert client.verify(TopicPartition("other", 0)) is E.TRANSACTION_ABORTABLE


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (S.EMPTY, E.NONE),
        (S.ONGOING, E.CONCURRENT_TRANSACTIONS),  # and is aborted
        (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, E.NONE),
        (S.COMPLETE_ABORT, E.NONE),
    ],
)
def test_a_new_producer_in_every_state(state: TransactionState, error: ErrorCode) -> None:
    world = TransactionWorld()
    world.marker_error = E.NOT_LEADER_OR_FOLLOWER
    world.put(Transaction("tx", 7, 5, 60_000, state, frozenset({OUT})))
    client = Client(world)
    assert client.init() is error
    if error is E.NONE:
        assert (client.producer_id, client.epoch) == (7, 6)
    if state is S.ONGOING:
        assert world.state("tx") is S.PREPARE_ABORT
        world.marker_error = E.NONE
        world.timers.advance(10_000)
        assert world.markers == [(OUT, 7, 6, False)]
        assert client.init() is E.NONE
        assert (client.producer_id, client.epoch) == (7, 7)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_out_of_range(timeout_ms: int) -> None:
    assert Client(TransactionWorld()).init(timeout_ms=timeout_ms) is E.INVALID_TRANSACTION_TIMEOUT


def test_an_id_that_was_never_initialised() -> None:
    world = TransactionWorld()
    client = Client(world, producer_id=1, epoch=0)
    assert client.add(OUT) is E.INVALID_PRODUCER_ID_MAPPING
    assert client.verify(OUT) is E.INVALID_PRODUCER_ID_MAPPING
    for version in (0, 2):
        client.version = version
        assert client.end(commit=True) is E.INVALID_PRODUCER_ID_MAPPING


def test_markers_are_tried_until_every_partition_has_one() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    client.add(OUT)
    client.add(TopicPartition("out", 1))
    world.marker_error = E.NOT_LEADER_OR_FOLLOWER
    assert client.end(commit=True) is E.NONE  # it is decided
    world.timers.advance(60_000)
    assert world.state("tx") is S.PREPARE_COMMIT
    assert client.add(OUT) is E.CONCURRENT_TRANSACTIONS
    world.marker_error = E.NONE
    world.timers.advance(5_000)
    assert world.state("tx") is S.COMPLETE_COMMIT
    assert sorted(marker[0].partition for marker in world.markers) == [0, 1]


@pytest.mark.parametrize("error", [E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_PRODUCER_EPOCH])
def test_partitions_with_nothing_to_end_hold_nothing_up(error: ErrorCode) -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    client.add(OUT)
    world.marker_error = error
    client.end(commit=True)
    assert world.state("tx") is S.COMPLETE_COMMIT


def test_a_coordinator_that_was_replaced_leaves_the_transaction_alone() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    client.add(OUT)
    world.marker_error = E.TRANSACTION_COORDINATOR_FENCED
    client.end(commit=True)
    world.marker_error = E.NONE
    world.timers.advance(60_000)
    assert world.state("tx") is S.PREPARE_COMMIT
    assert world.markers == []
    world.lead()  # its successor ends it
    assert world.state("tx") is S.COMPLETE_COMMIT


@pytest.mark.parametrize("said", [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_a_decision_that_may_be_in_the_log_is_not_called_failed(said: ErrorCode) -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    client.add(OUT)
    world.log.delayed = True
    waiter = client.ask_end(commit=True)
    world.log.commit(said)
    assert E(waiter.value.error_code) is E.COORDINATOR_NOT_AVAILABLE
    assert world.markers == []
    world.log.delayed = False
    world.timers.advance(1_000)
    assert world.state("tx") is S.COMPLETE_COMMIT
    assert client.end(commit=True) is E.NONE


def test_no_decision_while_a_record_is_uncommitted() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    world.log.delayed = True
    waiter = client.ask_add(OUT)
    assert client.end(commit=True) is E.CONCURRENT_TRANSACTIONS
    assert client.verify(OUT) is E.CONCURRENT_TRANSACTIONS
    assert Client(world).init() is E.CONCURRENT_TRANSACTIONS
    assert client.add(TopicPartition("out", 1)) is E.CONCURRENT_TRANSACTIONS
    world.log.commit()
    assert waiter.value is E.NONE


def test_what_is_described_and_verified_is_committed() -> None:
    """Also what a new coordinator finds in its log: it may still be lost."""
    world = TransactionWorld()
    client = Client(world)
    client.init()
    world.log.delayed = True
    added = client.ask_add(OUT)
    world.lead()
    assert added.value is E.NOT_COORDINATOR
    described, committed = world.coordinator.describe("tx")
    verified = world.coordinator.verify("tx", Producer(client.producer_id, client.epoch), [OUT])
    again = client.ask_add(OUT)
    assert described.transaction_state == "Ongoing"
    assert [committed.done, verified.done, again.done] == [False] * 3
    world.log.commit()
    assert (committed.value, verified.value, again.value) == (E.NONE, {OUT: E.NONE}, E.NONE)


def test_a_transaction_that_ends_while_its_verification_waits() -> None:
    """A batch that is appended after the transaction's marker would never be ended."""
    world = TransactionWorld()
    client, other = Client(world), Client(world, transactional_id="other")
    assert (client.init(), client.add(OUT), other.init()) == (E.NONE,) * 3
    world.log.delayed = True
    other.ask_add(OUT)
    verified = world.coordinator.verify("tx", Producer(client.producer_id, client.epoch), [OUT])
    client.ask_end(commit=True)
    assert not verified.done
    world.log.commit()
    assert verified.value == {OUT: E.CONCURRENT_TRANSACTIONS}


def test_an_answer_does_not_wait_for_ever() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    world.log.delayed = True
    added = client.ask_add(OUT)
    world.timers.advance(29_000)
    assert not added.done
    world.timers.advance(1_000)
    assert added.value is E.COORDINATOR_NOT_AVAILABLE
    _, committed = world.coordinator.describe("tx")
    world.timers.advance(30_000)
    assert committed.value is E.COORDINATOR_NOT_AVAILABLE


def test_unloading_answers_everybody_who_waits() -> None:
    world = TransactionWorld()
    client = Client(world)
    client.init()
    client.add(OUT)
    world.log.delayed = True
    waiter = client.ask_end(commit=True)
    world.resign()
    assert E(waiter.value.error_code) is E.NOT_COORDINATOR
    world.log.delayed = False
    world.log.commit()
    world.lead()
    assert world.state("tx") is S.COMPLETE_COMMIT  # the decided end is completed
    assert client.end(commit=True) is E.NONE


def test_an_old_epochs_abort_does_not_end_the_newer_transaction() -> None:
    world = TransactionWorld()
    client = Client(world, version=2)
    client.init()
    client.add(OUT)
    late = Client(world, version=2, producer_id=client.producer_id, epoch=client.epoch)
    assert client.end(commit=True) is E.NONE
    client.add(OUT)
    assert late.end(commit=False) is E.PRODUCER_FENCED
    assert world.state("tx") is S.ONGOING


def test_producer_ids_to_list_are_read_once_for_all_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Filters(list[int]):
        reads = 0

        def __iter__(self) -> Iterator[int]:
            Filters.reads += 1
            return super().__iter__()

    world = TransactionWorld()
    Client(world).init()
    runtime = world.coordinator.runtime
    hosts = list(runtime.hosts()) * 3
    monkeypatch.setattr(type(runtime), "hosts", lambda _: iter(hosts))
    filters = Filters([1, 2])
    at_once(
        world.coordinator.list_transactions(ListTransactionsRequest(producer_id_filters=filters))
    )
    assert Filters.reads == 1


def test_tools_see_what_there_is() -> None:
    world = TransactionWorld()
    for name in ("a-1", "a-2", "b"):
        client = Client(world, transactional_id=name)
        client.init()
        if name != "b":
            client.add(OUT)

    def listed(**filters: Any) -> list[str]:
        response = at_once(world.coordinator.list_transactions(ListTransactionsRequest(**filters)))
        assert response.error_code == 0
        return sorted(found.transactional_id for found in response.transaction_states)

    assert listed() == ["a-1", "a-2", "b"]
    assert listed(state_filters=["Ongoing"]) == ["a-1", "a-2"]
    assert listed(state_filters=["Nonsense"]) == []
    assert listed(producer_id_filters=[client.producer_id]) == ["b"]
    assert listed(transactional_id_pattern="a-.*") == ["a-1", "a-2"]
    assert listed(duration_filter=1_000, state_filters=["Ongoing"]) == []
    world.timers.advance(2_000)
    assert listed(duration_filter=1_000, state_filters=["Ongoing"]) == ["a-1", "a-2"]
    unsound = ListTransactionsRequest(transactional_id_pattern="(")
    bad = at_once(world.coordinator.list_transactions(unsound))
    assert bad.error_code == E.INVALID_REGULAR_EXPRESSION
    states = [world.coordinator.describe(name)[0] for name in ("a-1", "none", "")]
    assert [E(found.error_code) for found in states] == [
        E.NONE,
        E.TRANSACTIONAL_ID_NOT_FOUND,
        E.INVALID_REQUEST,
    ]
    assert states[0].transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in states[0].topics] == [("out", [0])]


def test_without_leadership() -> None:
    world = TransactionWorld()
    world.resign()
    client = Client(world, producer_id=1, epoch=0)
    assert client.init() is E.NOT_COORDINATOR
    assert client.add(OUT) is E.NOT_COORDINATOR
    assert client.end(commit=True) is E.NOT_COORDINATOR
    assert client.verify(OUT) is E.NOT_COORDINATOR


def test_init_asks_for_one_producer_id_only() -> None:
    world = TransactionWorld()
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1_000)
    first = world.last_producer_id
    for _ in range(3):
        world.coordinator.init_producer_id(request)
    assert world.last_producer_id == first + 1
