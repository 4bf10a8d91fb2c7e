"""EndTxn: its outcomes as tables by state (a new end, a retry of the last one, or an error) and the
state after it (KIP-98, KIP-890). `completion` continues after the Prepare record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import LAST_CLIENT_EPOCH, NO_PRODUCER_ID, Transaction
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.protocol.errors import ErrorCode, KafkaError

EndDecision = tuple[ErrorCode, bool]
"""The error; without one, whether the end is new: otherwise the request is a retry of the
last end.
"""
_NEW: Final[EndDecision] = (ErrorCode.NONE, True)
_AGAIN: Final[EndDecision] = (ErrorCode.NONE, False)
_WRONG: Final[EndDecision] = (ErrorCode.INVALID_TXN_STATE, False)
_BUSY: Final[EndDecision] = (ErrorCode.CONCURRENT_TRANSACTIONS, False)
_FENCED: Final[EndDecision] = (ErrorCode.PRODUCER_FENCED, False)
_OTHER_ID: Final[EndDecision] = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, False)

_S = TransactionState
END_V1: Final[Mapping[TransactionState, Mapping[bool, EndDecision]]] = {
    _S.EMPTY: {True: _WRONG, False: _WRONG},
    _S.ONGOING: {True: _NEW, False: _NEW},
    _S.COMPLETE_COMMIT: {True: _AGAIN, False: _WRONG},
    _S.COMPLETE_ABORT: {True: _WRONG, False: _AGAIN},
    _S.DEAD: {True: _WRONG, False: _WRONG},
    _S.PREPARE_EPOCH_FENCE: {True: _FENCED, False: _FENCED},
}
"""The decision on an EndTxn of the current epoch before transaction.version 2, by state and by
whether it is a commit. The states of an end in progress are missing, since the id is busy then.
"""
END_V2_FIRST: Final[Mapping[TransactionState, Mapping[bool, EndDecision]]] = {
    **{state: {True: _FENCED, False: _FENCED} for state in TransactionState},
    _S.EMPTY: {True: _WRONG, False: _NEW},
    _S.ONGOING: {True: _NEW, False: _NEW},
    _S.COMPLETE_COMMIT: {True: _WRONG, False: _NEW},
    _S.COMPLETE_ABORT: {True: _WRONG, False: _NEW},
}
"""As above for transaction.version 2 and the current epoch, which a retry never has."""
END_V2_RETRY: Final[Mapping[TransactionState, Mapping[bool, EndDecision]]] = {
    **{state: {True: _FENCED, False: _FENCED} for state in TransactionState},
    _S.COMPLETE_COMMIT: {True: _AGAIN, False: _WRONG},
    _S.COMPLETE_ABORT: {True: _WRONG, False: _AGAIN},
}
"""As above with the epoch before the last EndTxn raised it: the client did not get its response."""


def decide_end_v1(
    current: Transaction, producer: Producer, *, commit: bool, is_busy: bool
) -> EndDecision:
    """EndTxn before v5."""
    error = check_producer(current, producer)
    if error is not ErrorCode.NONE:
        return error, False
    return _BUSY if is_busy else END_V1[current.state][commit]


def decide_end_v2(
    current: Transaction, producer: Producer, *, commit: bool, is_busy: bool
) -> EndDecision:
    """EndTxn from v5 on."""
    if is_busy:  # its outcome is the producer's new epoch, possibly a new id
        return _BUSY
    got_new_id = (
        current.previous_producer_id == producer.producer_id
        and producer.producer_id != current.producer_id
        and producer.producer_epoch == LAST_CLIENT_EPOCH
        and current.producer_epoch == 0
    )
    if producer.producer_id != current.producer_id and not got_new_id:
        return _OTHER_ID
    if got_new_id or producer.producer_epoch + 1 == current.producer_epoch <= LAST_CLIENT_EPOCH:
        return END_V2_RETRY[current.state][commit]
    if producer.producer_epoch != current.producer_epoch:
        return _FENCED
    return END_V2_FIRST[current.state][commit]


def check_producer(current: Transaction, producer: Producer) -> ErrorCode:
    """Whether this is the current producer of the transactional id, with its current epoch."""
    if producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def prepared(
    current: Transaction,
    *,
    commit: bool,
    client_version: int,
    wall_ms: int,
    new_producer_id: int | None,
) -> Transaction:
    """The state after a new end. client_version: the client's transaction.version; from 2 on the
    epoch rises. new_producer_id: for an id whose epochs are exhausted. Raises
    KafkaError(CONCURRENT_TRANSACTIONS) if an id is needed and missing.
    """
    after = current._replace(
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        start_ms=current.start_ms if current.state is TransactionState.ONGOING else wall_ms,
        last_update_ms=wall_ms,
        previous_producer_id=current.producer_id,
        client_version=client_version,
    )
    if client_version < 2:
        return after
    next_id = NO_PRODUCER_ID
    if current.is_epoch_exhausted:
        if new_producer_id is None:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        next_id = new_producer_id
    return after._replace(
        producer_epoch=current.next_epoch,
        last_producer_epoch=current.producer_epoch,
        next_producer_id=next_id,
    )
