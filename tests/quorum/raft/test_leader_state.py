"""The leader's view of its replicas: each step of Kafka's LeaderState, and what it must not do."""

from __future__ import annotations

from typing import Any

from kbroker.quorum.raft.leader_state import LeaderState
from kbroker.quorum.raft.voter_set import ReplicaKey, Voter, VoterSet
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
