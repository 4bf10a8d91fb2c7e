"""The next producer id and epoch of a transactional id: InitProducerId and fencing (KIP-98,
KIP-360, KIP-588). EndTxn, which also raises the epoch under transaction.version 2, is in `ends`.

A client never gets epoch 32767: after the epoch before it the id gets a new producer id, as in
Kafka.
"""

from __future__ import annotations

from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
)
from kbroker.coordinator.transaction.state import ENDING, TransactionState
from kbroker.protocol.errors import ErrorCode, KafkaError


def needs_producer_id(current: Transaction | None) -> bool:
    """Whether the next InitProducerId or EndTxn of an id may need a new producer id. current: None
    if the id does not exist.
    """
    return current is None or (current.is_epoch_exhausted and current.state not in ENDING)


def check_expected(current: Transaction, expected: Producer | None) -> None:
    """Raises KafkaError(PRODUCER_FENCED) unless InitProducerId has no producer (expected is None),
    has the current producer, or is a retry of its last InitProducerId (KIP-360).
    """
    if expected is None:
        return
    if expected.producer_id == current.producer_id:
        is_known = expected.producer_epoch in (current.producer_epoch, current.last_producer_epoch)
    else:
        is_known = (
            expected.producer_id == current.previous_producer_id
            and expected.producer_epoch >= LAST_CLIENT_EPOCH
            and expected.producer_epoch == current.last_producer_epoch
        )
    if not is_known:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def initialized(
    current: Transaction,
    expected: Producer | None,
    *,
    timeout_ms: int,
    wall_ms: int,
    new_producer_id: int | None,
) -> Transaction:
    """The state after InitProducerId without an open transaction. new_producer_id: given if
    `needs_producer_id`. Raises KafkaError(CONCURRENT_TRANSACTIONS) if an id is needed and missing.
    """
    fresh = current._replace(
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        last_update_ms=wall_ms,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
    has_present_epoch = expected is None or expected.producer_epoch == current.producer_epoch
    has_fence_epoch = current.producer_epoch > LAST_CLIENT_EPOCH  # which no client has
    if has_fence_epoch or (current.is_epoch_exhausted and has_present_epoch):
        if new_producer_id is None:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return fresh._replace(
            producer_id=new_producer_id,
            producer_epoch=0,
            last_producer_epoch=(
                NO_PRODUCER_EPOCH if expected is None else expected.producer_epoch
            ),
        )
    if has_present_epoch:
        return fresh._replace(
            producer_epoch=current.producer_epoch + 1,
            last_producer_epoch=NO_PRODUCER_EPOCH if expected is None else current.producer_epoch,
        )
    # A retry, which gets the same response.
    return fresh._replace(previous_producer_id=current.previous_producer_id)


def fenced(current: Transaction, *, wall_ms: int, next_producer_id: int) -> Transaction:
    """The abort of an open transaction that fences its producer.

    last_producer_epoch allows that producer to request its new epoch, unless a successor was faster
    (KIP-588). next_producer_id: the producer id of the transactional id after the abort;
    NO_PRODUCER_ID: the same.
    """
    return current._replace(
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=current.next_epoch,
        last_producer_epoch=current.producer_epoch,
        last_update_ms=wall_ms,
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
    )
