"""Which transactions timed out, and which ids expired."""

from __future__ import annotations

import pytest

from kbroker.coordinator.transaction.expiry import expired, timed_out
from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import AT_REST, TransactionState

S = TransactionState
START_MS = 1_000


def transaction(state: TransactionState) -> Transaction:
    return Transaction("tx", 9, 0, 500, state, start_ms=START_MS, last_update_ms=START_MS)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize(("age_ms", "is_late"), [(500, False), (501, True)])
def test_an_open_transaction_times_out_after_its_producers_timeout(
    state: TransactionState, age_ms: int, is_late: bool
) -> None:
    one = transaction(state)
    found = list(timed_out([one], START_MS + age_ms))
    assert found == ([one] if is_late and state is S.ONGOING else [])


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize(("age_ms", "is_old"), [(6_999, False), (7_000, True)])
def test_an_id_without_an_open_transaction_expires(
    state: TransactionState, age_ms: int, is_old: bool
) -> None:
    one = transaction(state)
    found = list(expired([one], START_MS + age_ms, 7_000))
    assert found == ([one] if is_old and state in AT_REST else [])
