"""The leader's view of its replicas: each step of Kafka's LeaderState, and what it must not do."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.model import InvariantError
from kbroker.quorum.raft.states.leader_state import MAX_OBSERVERS, LeaderState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterSet
from tests.quorum.raft.decisions import Case, cases, directory_id, replica_key


def voters_of(case: Case, ids: list[int]) -> VoterSet:
    return VoterSet(Voter(each, directory_id(case["directories"][str(each)])) for each in ids)


def outcome(state: LeaderState, moved: bool, now_ms: int) -> dict[str, Any]:
    deadline_ms = state.check_quorum_deadline()
    return {
        "hwMoved": moved,
        "highWatermark": state.high_watermark,
        "checkQuorumMs": None if deadline_ms is None else max(deadline_ms - now_ms, 0),
        "voterStates": [
            {
                "id": voter.key.id,
                "endOffset": voter.end_offset,
                "lastFetchTimestamp": voter.last_fetch_ms,
                "lastCaughtUpTimestamp": voter.last_caught_up_ms,
            }
            for voter in state.voters
        ],
        "beginQuorumTo": [key.id for key in state.to_begin_epoch(now_ms)],
    }


def test_each_step_of_kafkas_leader_state() -> None:
    lines = cases("raft-high-watermarks")
    assert len(lines) == 800
    for number, case in lines:
        voters = voters_of(case, case["voters"])
        local = ReplicaKey(case["localId"], directory_id(case["directories"]["1"]))
        state = LeaderState(
            local,
            voters,
            epoch_start_offset=case["epochStartOffset"],
            fetch_timeout_ms=case["fetchTimeoutMs"],
            now_ms=case["startMs"],
        )
        for index, step in enumerate(case["steps"]):
            now_ms = step["nowMs"]
            match step["do"]:
                case "local":
                    moved = state.local_end(step["endOffset"], voters)
                case "voters":
                    voters = voters_of(case, step["voters"])
                    moved = state.local_end(step["endOffset"], voters)
                case "fetch":
                    key = replica_key(step["replicaKey"])
                    moved = state.fetched(key, step["fetchOffset"], now_ms)
                case unknown:
                    raise AssertionError(unknown)
            found = outcome(state, moved, now_ms)
            where = f"raft-high-watermarks line {number} step {index}: {step}"
            assert found == {name: step[name] for name in found}, where
        successors = [key.id for key in state.successors()]
        assert successors == case["preferredSuccessors"], f"raft-high-watermarks line {number}"


def leader(*voter_ids: int) -> LeaderState:
    voters = VoterSet(Voter(each, bytes([each]) * 16) for each in voter_ids)
    local = ReplicaKey(1, bytes([1]) * 16)
    return LeaderState(local, voters, epoch_start_offset=10, fetch_timeout_ms=2000, now_ms=0)


def test_observers_that_went_away_are_forgotten() -> None:
    state = leader(1, 2)
    for number in range(100):
        state.fetched(ReplicaKey(50 + number), 5, now_ms=number)
    assert len(state.observers(1000)) == 100
    state.fetched(ReplicaKey(7), 5, now_ms=300_050)
    assert [each.key.id for each in state.observers(300_050)] == [7, *range(101, 150)]


def test_a_client_with_many_ids_costs_bounded_memory() -> None:
    state = leader(2, 3)  # it is no voter, and so one of the observers itself
    state.local_end(20, state.voter_set)
    for number in range(2 * MAX_OBSERVERS):
        state.fetched(ReplicaKey(4), 5, now_ms=number)
        state.fetched(ReplicaKey(50 + number), 5, now_ms=number)
    kept = [each.key.id for each in state.observers(2 * MAX_OBSERVERS)]
    assert len(kept) == MAX_OBSERVERS
    assert kept[:2] == [1, 4] and kept[-1] == 49 + 2 * MAX_OBSERVERS


def test_a_leader_is_no_contact_of_its_own() -> None:
    state = leader(1, 2, 3)
    state.contact(ReplicaKey(1, bytes([1]) * 16), 500)
    assert state.check_quorum_deadline() == 3000
    state.contact(ReplicaKey(2, bytes([2]) * 16), 500)
    assert state.check_quorum_deadline() == 3500


def test_a_log_that_gets_shorter_breaks_an_invariant() -> None:
    state = leader(1, 2)
    state.local_end(20, state.voter_set)
    with pytest.raises(InvariantError, match="ends at 19"):
        state.local_end(19, state.voter_set)


def test_a_wrong_directory_is_no_voter() -> None:
    state = leader(1, 2, 3)
    state.local_end(20, state.voter_set)
    assert not state.fetched(ReplicaKey(2, b"x" * 16), 20, now_ms=1)
    assert state.high_watermark is None
    assert state.fetched(ReplicaKey(2, bytes([2]) * 16), 20, now_ms=1)
    assert state.high_watermark == 20
