"""The states of a transactional id: Kafka's numbers and names, and the transitions between them."""

from __future__ import annotations

from kbroker.coordinator.transaction.state import (
    AT_REST,
    ENDING,
    STATE_BY_NAME,
    TRANSITIONS,
    TransactionState,
)

S = TransactionState


def test_numbers_and_names_are_kafkas() -> None:
    assert [(state.value, state.shown) for state in TransactionState] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]
    assert all(STATE_BY_NAME[state.shown] is state for state in TransactionState)
    assert len(STATE_BY_NAME) == len(TransactionState)


def test_a_decided_end_is_never_turned() -> None:
    assert TRANSITIONS[S.PREPARE_COMMIT] == {S.PREPARE_COMMIT, S.COMPLETE_COMMIT}
    assert TRANSITIONS[S.PREPARE_ABORT] == {S.PREPARE_ABORT, S.COMPLETE_ABORT}


def test_a_transaction_that_is_open_ends_before_another_begins() -> None:
    assert not TRANSITIONS[S.ONGOING] & (AT_REST | {S.DEAD})
    assert S.ONGOING not in TRANSITIONS[S.PREPARE_COMMIT] | TRANSITIONS[S.PREPARE_ABORT]


def test_states_at_rest_and_ending() -> None:
    assert not AT_REST & ENDING
    for state in AT_REST:
        assert TRANSITIONS[state] >= {S.ONGOING, S.DEAD}
        assert S.PREPARE_COMMIT not in TRANSITIONS[state], "there is nothing to commit"
    assert TRANSITIONS[S.DEAD] == frozenset()
    assert set(TRANSITIONS) == set(TransactionState)


def test_transitions_cover_every_state() -> None:
    assert set(TRANSITIONS) == set(S)
    assert [state.shown for state in S][:4] == ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort"]
