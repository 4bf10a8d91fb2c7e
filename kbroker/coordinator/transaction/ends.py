"""The outcomes of EndTxn as tables by state: a new end, a retry of the last one, or an error
(KIP-98, KIP-890). The shard that writes the end is in `transactions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kbroker.coordinator.transaction.records import LAST_CLIENT_EPOCH, Transaction
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.protocol.errors import ErrorCode


class Producer(NamedTuple):
    """Who says it: producer id and epoch."""

    producer_id: int
    producer_epoch: int


EndDecision = tuple[ErrorCode, bool]
"""The error, and without one whether there is something to end (else it is a retry of what was
done).
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
"""State, whether it is a commit: what an EndTxn of the present epoch comes to, before
transaction.version 2. While an end is under way nothing is decided.
"""
END_V2_FIRST: Final[Mapping[TransactionState, Mapping[bool, EndDecision]]] = {
    **{state: {True: _FENCED, False: _FENCED} for state in TransactionState},
    _S.EMPTY: {True: _WRONG, False: _NEW},
    _S.ONGOING: {True: _NEW, False: _NEW},
    _S.COMPLETE_COMMIT: {True: _WRONG, False: _NEW},
    _S.COMPLETE_ABORT: {True: _WRONG, False: _NEW},
}
"""The same for transaction.version 2 and the present epoch, which a retry never has."""
END_V2_RETRY: Final[Mapping[TransactionState, Mapping[bool, EndDecision]]] = {
    **{state: {True: _FENCED, False: _FENCED} for state in TransactionState},
    _S.COMPLETE_COMMIT: {True: _AGAIN, False: _WRONG},
    _S.COMPLETE_ABORT: {True: _WRONG, False: _AGAIN},
}
"""And with the epoch that the last EndTxn raised: its answer was lost."""


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
    if is_busy:  # its outcome is the producer's new epoch, perhaps its new id
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
    """Whether it is the present producer of the transactional id, with its present epoch."""
    if producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE
