"""Expiry of transactions and transactional ids: open transactions past their timeout, unused ids
past transactional.id.expiration.ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import AT_REST, TransactionState


def timed_out(transactions: Iterable[Transaction], wall_ms: int) -> Iterator[Transaction]:
    """Open transactions that are older than their producer's timeout."""
    for transaction in transactions:
        if (
            transaction.state is TransactionState.ONGOING
            and transaction.start_ms + transaction.timeout_ms < wall_ms
        ):
            yield transaction


def expired(
    transactions: Iterable[Transaction], wall_ms: int, expiration_ms: int
) -> Iterator[Transaction]:
    """Ids without an open transaction that were not used for expiration_ms."""
    for transaction in transactions:
        if transaction.state in AT_REST and wall_ms - transaction.last_update_ms >= expiration_ms:
            yield transaction
