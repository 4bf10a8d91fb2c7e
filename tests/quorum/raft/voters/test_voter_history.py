"""Voter sets by offset: each step of Kafka's VoterSetHistory, and roll-back."""

from __future__ import annotations

import pytest

from kbroker.model import InvariantError
from kbroker.quorum.raft.voters.voter_history import History, VoterHistory
from kbroker.quorum.raft.voters.voter_set import VoterSet
from tests.quorum.raft.decisions import Case, cases, expected_rows, rows, voter_set


def carry_out(history: VoterHistory, step: Case) -> tuple[str | None, VoterSet | None]:
    """(exception, answer) of one step."""
    match step["do"]:
        case "addAt":
            try:
                history.add(step["offset"], voter_set(step["voters"]))
            except InvariantError:
                return "refused", None
        case "valueAtOrBefore":
            return None, history.value_at(step["offset"])
        case "truncateNewEntries":
            history.truncate_new(step["endOffset"])
        case "truncateOldEntries":
            history.truncate_old(step["startOffset"])
        case unknown:
            raise AssertionError(unknown)
    return None, None


def test_each_step_of_kafkas_voter_set_history() -> None:
    lines = cases("raft-voter-history")
    assert len(lines) == 200
    for number, case in lines:
        history = VoterHistory(voter_set(case["staticVoters"]))
        for index, step in enumerate(case["steps"]):
            refused, answer = carry_out(history, step)
            where = f"raft-voter-history line {number} step {index}: {step}"
            assert (refused is not None) == ("exception" in step), where
            assert rows(answer) == expected_rows(step.get("answer")), where
            assert rows(history.last) == expected_rows(step["lastValue"]), where
            assert history.last_offset == step["lastVoterSetOffset"], where


def test_a_history_goes_back_to_the_value_before() -> None:
    history: History[str] = History()
    for offset, value in ((-1, "a"), (4, "b"), (9, "c")):
        history.add(offset, value)
    assert history.last == (9, "c")
    history.truncate_new(9)
    assert history.last == (4, "b")
    history.truncate_old(20)
    assert history.value_at(3) is None
    history.clear()
    assert history.last is None


@pytest.mark.parametrize("offset", [-2, 3, 4])
def test_offsets_ascend(offset: int) -> None:
    history: History[str] = History()
    history.add(4, "a")
    with pytest.raises(InvariantError, match="after those at"):
        history.add(offset, "b")
