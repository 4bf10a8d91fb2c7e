"""The state machine of a classic group: Kafka's names, and the transitions from each state."""

from __future__ import annotations

from kbroker.coordinator.group.classic.state import MAY_REBALANCE, TRANSITIONS, GroupState

S = GroupState


def test_the_names_are_kafkas() -> None:
    assert [state.value for state in GroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]


def test_a_generation_is_made_in_order() -> None:
    """No member gets an assignment before all were told to join."""
    assert [state for state in S if S.STABLE in TRANSITIONS[state]] == [S.COMPLETING_REBALANCE]
    before = [state for state in S if S.COMPLETING_REBALANCE in TRANSITIONS[state]]
    assert before == [S.PREPARING_REBALANCE]
    assert [state for state in S if S.EMPTY in TRANSITIONS[state]] == [S.PREPARING_REBALANCE]


def test_every_state_but_two_may_begin_a_rebalance() -> None:
    assert set(S) - MAY_REBALANCE == {S.PREPARING_REBALANCE, S.DEAD}


def test_the_end_is_reached_from_everywhere_and_final() -> None:
    assert set(TRANSITIONS) == set(S)
    assert TRANSITIONS[S.DEAD] == frozenset()
    assert all(S.DEAD in TRANSITIONS[state] for state in S if state is not S.DEAD)
