"""Expiry of transactions and transactional ids: open transactions past their timeout, unused ids
past transactional.id.expiration.ms. Both are looked for in turns of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import Results
from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import AT_REST, TransactionState

IDS_PER_TURN: Final = 2_000
"""How many transactional ids are checked in one turn of the loop."""
DUE_PER_TURN: Final = 100
"""How many of them are acted on."""
DUE_CHARACTERS_PER_TURN: Final = 16_384
"""About how long their ids are together: the tombstones of a turn are one batch, which must not
exceed max.message.bytes, and an id may have 32,767 bytes.
"""
TURN_MS: Final = 1
"""The time between two turns."""


class PeriodicCheck:
    """Looks for due ids among all ids of a shard, in turns; the next pass starts interval_ms after
    the last one ended. transactions: all of them; changed by replay. in_flight: ids with an
    uncommitted record, which are left to the next pass. act: decides on the due ids of one turn,
    given a list that is not empty.
    """

    __slots__ = (
        "_act",
        "_deadline",
        "_deadlines",
        "_in_flight",
        "_interval_ms",
        "_is_due",
        "_left",
        "_transactions",
    )

    def __init__(
        self,
        transactions: Mapping[str, Transaction],
        in_flight: Collection[str],
        deadlines: Deadlines,
        interval_ms: int,
        *,
        is_due: Callable[[Transaction], bool],
        act: Callable[[list[Transaction]], Results],
    ) -> None:
        self._transactions = transactions
        self._in_flight = in_flight
        self._deadlines = deadlines
        self._interval_ms = interval_ms
        self._is_due = is_due
        self._act = act
        self._deadline = Deadline(self._on_deadline)
        self._left: list[str] = []
        """The ids that this pass has not visited, which it does from the last to the first."""

    def arm(self, now_ms: int) -> None:
        """Schedule the next pass, unless a turn is scheduled."""
        if self._deadline.at_ms is None:
            self._deadlines.set(self._deadline, now_ms + self._interval_ms)

    def _on_deadline(self, now_ms: int) -> Results:
        if not self._left:
            self._left = list(self._transactions)
        due = self._advance()
        if self._left:
            self._deadlines.set(self._deadline, now_ms + TURN_MS)
        elif self._transactions:
            self.arm(now_ms)
        return self._act(due) if due else []

    def _advance(self) -> list[Transaction]:
        """The due ids of one turn, as they are now."""
        due: list[Transaction] = []
        visited = characters = 0
        while (
            self._left
            and visited < IDS_PER_TURN
            and len(due) < DUE_PER_TURN
            and characters < DUE_CHARACTERS_PER_TURN
        ):
            visited += 1
            transactional_id = self._left.pop()
            transaction = self._transactions.get(transactional_id)
            if transaction is None or transactional_id in self._in_flight:
                continue
            if self._is_due(transaction):
                due.append(transaction)
                characters += len(transactional_id)
        return due


def has_timed_out(transaction: Transaction, wall_ms: int) -> bool:
    """Whether it is open and older than its producer's timeout."""
    return (
        transaction.state is TransactionState.ONGOING
        and transaction.start_ms + transaction.timeout_ms < wall_ms
    )


def has_expired(transaction: Transaction, wall_ms: int, expiration_ms: int) -> bool:
    """Whether the id has no open transaction and was not used for expiration_ms."""
    return transaction.state in AT_REST and wall_ms - transaction.last_update_ms >= expiration_ms
