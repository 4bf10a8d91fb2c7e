"""Requests that name very many transactions, or partitions of one: each gives the loop its turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kbroker.coordinator.transaction.service import LISTED_COST
from kbroker.metadata.patterns import CHARACTERS_PER_TURN
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from tests.coordinator.transaction.world import Client, TransactionWorld
from tests.replication.world import TOPIC
from tests.server.slices import MANY, Sliced, begin, in_slices


def test_markers() -> None:
    """Answered when the last one is committed."""
    kind = WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=list(range(100)))
    markers = [kind.WritableTxnMarker(producer_id=number, topics=[topic]) for number in range(5)]
    committed: Deferred[ErrorCode] = Deferred()
    written: list[TopicPartition] = []

    def write(partition: TopicPartition, *_: Any, **__: Any) -> Deferred[ErrorCode]:
        written.append(partition)
        return committed if partition.partition == 7 else Deferred.of(ErrorCode.NONE)

    sliced = Sliced(markers=SimpleNamespace(write=write))
    outcome = begin(sliced, ApiKey.WRITE_TXN_MARKERS, kind(markers=markers))
    assert isinstance(outcome, Deferred)
    assert len(written) < 200
    while sliced.turns.due:
        sliced.turns.turn()
    assert len(written) == 500
    assert not outcome.done
    committed.resolve(ErrorCode.NOT_ENOUGH_REPLICAS)
    response = sliced.answer(outcome)
    errors = [
        each.partition_index
        for answer in response.markers
        for each in answer.topics[0].partitions
        if each.error_code
    ]
    assert errors == [7] * 5


def test_a_marker_is_written_once_to_a_partition_named_again() -> None:
    """In one marker and in equal ones in a row; each name has its result all the same."""
    kind = WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0, 1, 1, 0] * MANY)
    commit, abort = (
        kind.WritableTxnMarker(producer_id=1, transaction_result=result, topics=[topic, topic])
        for result in (True, False)
    )
    committed: Deferred[ErrorCode] = Deferred()
    written: list[tuple[int, bool]] = []

    def write(partition: TopicPartition, *_: Any, commit: bool, **__: Any) -> Deferred[ErrorCode]:
        written.append((partition.partition, commit))
        return committed if partition.partition else Deferred.of(ErrorCode.INVALID_TXN_STATE)

    sliced = Sliced(markers=SimpleNamespace(write=write))
    request = kind(markers=[commit, commit, abort, commit])
    outcome = begin(sliced, ApiKey.WRITE_TXN_MARKERS, request)
    assert isinstance(outcome, Deferred)
    while sliced.turns.due:
        sliced.turns.turn()
    assert written == [(0, True), (1, True), (0, False), (1, False), (0, True), (1, True)]
    committed.resolve(ErrorCode.NONE)
    assert not outcome.done, "32,000 results are set in one turn"
    response = sliced.answer(outcome)
    assert len(response.markers) == 4
    wanted = [ErrorCode.INVALID_TXN_STATE, 0, 0, ErrorCode.INVALID_TXN_STATE] * MANY
    for answer in response.markers:
        for results in answer.topics:
            assert [each.error_code for each in results.partitions] == wanted


def test_described_transactions() -> None:
    described: list[str] = []

    def describe(name: str) -> tuple[object, Deferred[ErrorCode]]:
        described.append(name)
        found = DescribeTransactionsResponse.TransactionState(transactional_id=name)
        return found, Deferred.of(ErrorCode.NONE)

    sliced = Sliced(transactions=SimpleNamespace(describe=describe))
    names = [f"t{index}" for index in range(MANY)]
    request = DescribeTransactionsRequest(transactional_ids=[*names, *names])
    response = in_slices(sliced, ApiKey.DESCRIBE_TRANSACTIONS, request)
    assert [each.transactional_id for each in response.transaction_states] == names
    assert described == names


def test_described_transactions_that_may_still_be_lost() -> None:
    """Each is described once it is committed, or is an error."""
    outcomes: dict[str, Deferred[ErrorCode]] = {name: Deferred() for name in "abc"}

    def describe(name: str) -> tuple[object, Deferred[ErrorCode]]:
        found = DescribeTransactionsResponse.TransactionState(
            transactional_id=name, transaction_state="Ongoing"
        )
        return found, outcomes[name]

    sliced = Sliced(transactions=SimpleNamespace(describe=describe))
    request = DescribeTransactionsRequest(transactional_ids=list("abc"))
    outcome = begin(sliced, ApiKey.DESCRIBE_TRANSACTIONS, request)
    for name, error in zip("cba", (0, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0), strict=True):
        assert isinstance(outcome, Deferred) and not outcome.done
        outcomes[name].resolve(ErrorCode(error))
    response = sliced.answer(outcome)
    found = [
        (each.transactional_id, each.error_code, each.transaction_state)
        for each in response.transaction_states
    ]
    lost = ("b", ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert found == [("a", 0, "Ongoing"), lost, ("c", 0, "Ongoing")]


class FakeTransactions:
    """Every partition is added, or is part of the transaction."""

    def __init__(self) -> None:
        self.added: list[list[TopicPartition]] = []
        self.committed: Deferred[ErrorCode] = Deferred()

    def add_partitions(
        self, name: str, producer: object, partitions: list[TopicPartition], **_: int
    ) -> Deferred[ErrorCode]:
        self.added.append(partitions)
        return self.committed

    def verify(
        self, name: str, producer: object, partitions: list[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        self.added.append(partitions)
        return Deferred.of(dict.fromkeys(partitions, ErrorCode.NONE))


def test_partitions_of_a_transaction() -> None:
    """Answered as often as they are named, worked on once."""
    kind = AddPartitionsToTxnRequest
    indexes = list(range(MANY)) * 2
    topics = [kind.AddPartitionsToTxnTopic(name=TOPIC, partitions=indexes)]
    transactions = FakeTransactions()
    sliced = Sliced(transactions=transactions)
    outcome = begin(
        sliced,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        kind(v3_and_below_topics=topics),
        version=3,
    )
    assert isinstance(outcome, Deferred)
    while sliced.turns.due:
        sliced.turns.turn()
    assert [len(partitions) for partitions in transactions.added] == [MANY]
    assert not outcome.done
    transactions.committed.resolve(ErrorCode.CONCURRENT_TRANSACTIONS)
    (topic,) = sliced.answer(outcome).results_by_topic_v3_and_below
    assert [each.partition_index for each in topic.results_by_partition] == indexes
    assert {each.partition_error_code for each in topic.results_by_partition} == {
        ErrorCode.CONCURRENT_TRANSACTIONS
    }


def test_partitions_of_many_transactions() -> None:
    kind = AddPartitionsToTxnRequest
    asked = [
        kind.AddPartitionsToTxnTransaction(
            transactional_id=f"t{index}",
            verify_only=True,
            topics=[kind.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 0])],
        )
        for index in range(MANY)
    ]
    transactions = FakeTransactions()
    response = in_slices(
        Sliced(transactions=transactions), ApiKey.ADD_PARTITIONS_TO_TXN, kind(transactions=asked)
    )
    results = response.results_by_transaction
    assert [each.transactional_id for each in results] == [f"t{index}" for index in range(MANY)]
    assert transactions.added == [[TopicPartition(TOPIC, 0)]] * MANY
    assert len(results[0].topic_results[0].results_by_partition) == 2


def test_transactions_are_listed_in_steps() -> None:
    """A filter that is named again is looked up again, but an unknown one is answered once."""
    world = TransactionWorld()
    for number in range(3):
        Client(world, transactional_id=f"tx-{number}").init()
    sliced = Sliced(transactions=world.coordinator)
    filters = ["Nonsense", "Empty"] * (5 * MANY)
    request = ListTransactionsRequest(state_filters=filters)
    response = in_slices(sliced, ApiKey.LIST_TRANSACTIONS, request)
    assert response.unknown_state_filters == ["Nonsense"]
    assert [each.transactional_id for each in response.transaction_states] == [
        "tx-0",
        "tx-1",
        "tx-2",
    ]


def test_very_many_transactions_are_listed_in_steps() -> None:
    """They may change between two steps."""
    world = TransactionWorld()
    Client(world, transactional_id="tx").init()
    (host,) = (host for host in world.coordinator.runtime.hosts() if host.shard.transactions)
    transactions = host.shard.transactions
    count = 5 * CHARACTERS_PER_TURN // (LISTED_COST + len("tx-100000"))
    for number in range(100_000, 100_000 + count):
        transactions[f"tx-{number}"] = transactions["tx"]._replace(transactional_id=f"tx-{number}")
    steps = world.coordinator.list_transactions(ListTransactionsRequest())
    for _ in range(4):
        next(steps)
        del transactions[next(iter(transactions))]
    response = at_once(steps)
    assert len(response.transaction_states) == count + 1


def test_very_long_transactional_ids_are_listed_in_steps() -> None:
    """A pattern may take microseconds for each character of an id."""
    world = TransactionWorld()
    Client(world, transactional_id="tx").init()
    (host,) = (host for host in world.coordinator.runtime.hosts() if host.shard.transactions)
    transactions = host.shard.transactions
    for number in range(10):
        name = f"{number}" * CHARACTERS_PER_TURN
        transactions[name] = transactions["tx"]._replace(transactional_id=name)
    pauses = 0
    steps = world.coordinator.list_transactions(
        ListTransactionsRequest(transactional_id_pattern="t.*")
    )
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as end:
        assert [one.transactional_id for one in end.value.transaction_states] == ["tx"]
    assert pauses == 10
