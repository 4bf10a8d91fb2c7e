"""EndTxn by state, epoch and version: an end, a retry of the last one, or an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.coordinator.transaction.ends import (
    check_producer,
    decide_end_v1,
    decide_end_v2,
    prepared,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
)
from kbroker.coordinator.transaction.state import AT_REST, ENDING, TransactionState
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError

S, E = TransactionState, ErrorCode
ID, EPOCH = 7, 5
ME = Producer(ID, EPOCH)
PARTITIONS = frozenset({TopicPartition("t", 0)})


def transaction(state: TransactionState = S.ONGOING, **options: int) -> Transaction:
    values = {"producer_id": ID, "producer_epoch": EPOCH, "timeout_ms": 1000, **options}
    return Transaction(
        "tx", state=state, partitions=PARTITIONS if state is S.ONGOING else frozenset(), **values
    )


NEW, AGAIN = (E.NONE, True), (E.NONE, False)


def wrong(error: ErrorCode) -> tuple[ErrorCode, bool]:
    return error, False


@pytest.mark.parametrize("decide", [decide_end_v1, decide_end_v2])
@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_ends(
    decide: Callable[..., tuple[ErrorCode, bool]], commit: bool
) -> None:
    assert decide(transaction(), ME, commit=commit, is_busy=False) == NEW
    busy = decide(transaction(), ME, commit=commit, is_busy=True)
    assert busy == wrong(E.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize(
    ("state", "commit", "decision"),
    [
        (S.EMPTY, True, wrong(E.INVALID_TXN_STATE)),
        (S.EMPTY, False, wrong(E.INVALID_TXN_STATE)),
        (S.COMPLETE_COMMIT, True, AGAIN),
        (S.COMPLETE_COMMIT, False, wrong(E.INVALID_TXN_STATE)),
        (S.COMPLETE_ABORT, True, wrong(E.INVALID_TXN_STATE)),
        (S.COMPLETE_ABORT, False, AGAIN),
        (S.DEAD, False, wrong(E.INVALID_TXN_STATE)),
    ],
)
def test_version_1_without_an_open_transaction(
    state: TransactionState, commit: bool, decision: tuple[ErrorCode, bool]
) -> None:
    assert decide_end_v1(transaction(state), ME, commit=commit, is_busy=False) == decision


@pytest.mark.parametrize("state", sorted(AT_REST))
def test_version_2_may_abort_without_a_transaction_and_not_commit(state: TransactionState) -> None:
    current = transaction(state)
    assert decide_end_v2(current, ME, commit=False, is_busy=False) == NEW
    assert decide_end_v2(current, ME, commit=True, is_busy=False) == wrong(E.INVALID_TXN_STATE)


@pytest.mark.parametrize(
    ("state", "commit", "decision"),
    [
        (S.COMPLETE_COMMIT, True, AGAIN),
        (S.COMPLETE_COMMIT, False, wrong(E.INVALID_TXN_STATE)),
        (S.COMPLETE_ABORT, False, AGAIN),
        (S.COMPLETE_ABORT, True, wrong(E.INVALID_TXN_STATE)),
        (S.ONGOING, True, wrong(E.PRODUCER_FENCED)),
        (S.EMPTY, False, wrong(E.PRODUCER_FENCED)),
    ],
)
def test_version_2_with_the_epoch_before_is_a_retry(
    state: TransactionState, commit: bool, decision: tuple[ErrorCode, bool]
) -> None:
    before = Producer(ID, EPOCH - 1)
    assert decide_end_v2(transaction(state), before, commit=commit, is_busy=False) == decision


def test_version_2_whose_end_gave_a_new_producer_id() -> None:
    current = transaction(S.COMPLETE_COMMIT, producer_epoch=0, previous_producer_id=6)
    for producer, decision in (
        (Producer(6, LAST_CLIENT_EPOCH), AGAIN),
        (Producer(6, LAST_CLIENT_EPOCH - 1), wrong(E.INVALID_PRODUCER_ID_MAPPING)),
        (Producer(5, LAST_CLIENT_EPOCH), wrong(E.INVALID_PRODUCER_ID_MAPPING)),
    ):
        assert decide_end_v2(current, producer, commit=True, is_busy=False) == decision
    later = transaction(S.COMPLETE_COMMIT, producer_epoch=1, previous_producer_id=6)
    found = decide_end_v2(later, Producer(6, LAST_CLIENT_EPOCH), commit=True, is_busy=False)
    assert found == wrong(E.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (ME, E.NONE),
        (Producer(ID, EPOCH - 1), E.PRODUCER_FENCED),
        (Producer(ID, EPOCH + 1), E.PRODUCER_FENCED),
        (Producer(ID + 1, EPOCH), E.INVALID_PRODUCER_ID_MAPPING),
        (Producer(ID + 1, EPOCH - 1), E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_who_may_end(producer: Producer, error: ErrorCode) -> None:
    current = transaction()
    assert check_producer(current, producer) is error
    if error:
        assert decide_end_v1(current, producer, commit=True, is_busy=True) == wrong(error)
    if producer.producer_epoch != EPOCH - 1 and error:
        assert decide_end_v2(current, producer, commit=True, is_busy=False) == wrong(error)


def end(current: Transaction, *, version: int, new_id: int | None = None) -> Transaction:
    return prepared(
        current, commit=True, client_version=version, wall_ms=99, new_producer_id=new_id
    )


def test_the_state_before_the_markers() -> None:
    after = end(transaction(start_ms=50), version=0)
    assert (after.state, after.start_ms, after.last_update_ms) == (S.PREPARE_COMMIT, 50, 99)
    assert (after.producer_epoch, after.partitions) == (EPOCH, PARTITIONS)
    assert after.previous_producer_id == ID
    aborted = prepared(
        transaction(S.EMPTY), commit=False, client_version=2, wall_ms=99, new_producer_id=None
    )
    assert (aborted.state, aborted.start_ms) == (S.PREPARE_ABORT, 99)
    assert aborted.state in ENDING


def test_version_2_raises_the_epoch() -> None:
    after = end(transaction(), version=2)
    assert (after.producer_epoch, after.last_producer_epoch) == (EPOCH + 1, EPOCH)
    assert (after.client_version, after.next_producer_id) == (2, NO_PRODUCER_ID)


def test_the_last_epoch_needs_a_new_producer_id() -> None:
    current = transaction(producer_epoch=LAST_CLIENT_EPOCH)
    with pytest.raises(KafkaError) as caught:
        end(current, version=2)
    assert caught.value.code is E.CONCURRENT_TRANSACTIONS
    after = end(current, version=2, new_id=8)
    assert (after.producer_id, after.next_producer_id) == (ID, 8)
    assert after.producer_epoch == LAST_CLIENT_EPOCH + 1
    assert end(current, version=0).producer_epoch == LAST_CLIENT_EPOCH, "version 1 raises none"
    assert end(transaction(producer_epoch=LAST_CLIENT_EPOCH - 1), version=2, new_id=8) == end(
        transaction(producer_epoch=LAST_CLIENT_EPOCH - 1), version=2
    )
