"""Votes by state: each combination of Kafka's six EpochStates; the count of votes."""

from __future__ import annotations

import pytest

from kbroker.model import ZERO_UUID
from kbroker.quorum.raft.states.epoch_states import (
    Candidate,
    EpochElection,
    EpochState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
    can_grant_vote,
)
from kbroker.quorum.raft.states.leader_state import LeaderState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterSet
from tests.quorum.raft.decisions import Case, cases, replica_key

LOCAL = ReplicaKey(1, b"l" * 16)
VOTERS = VoterSet(Voter(each, ZERO_UUID) for each in (1, 2, 3))


def state_of(case: Case) -> EpochState:
    epoch, leader_id = case["epoch"], case["leaderId"]
    voted = None if case["votedKey"] is None else replica_key(case["votedKey"])
    match case["state"]:
        case "Unattached":
            return Unattached(epoch, leader_id, voted, 100)
        case "Prospective":
            return Prospective(epoch, leader_id, (), voted, EpochElection(VOTERS), 100)
        case "Candidate":
            return Candidate(epoch, LOCAL, EpochElection(VOTERS), 100)
        case "Follower":
            return Follower(epoch, leader_id, (), voted, 100, case["hasFetchedFromLeader"])
        case "Resigned":
            return Resigned(epoch, 1, 100)
        case "Leader":
            state = LeaderState(
                LOCAL, VOTERS, epoch_start_offset=0, fetch_timeout_ms=2000, now_ms=0
            )
            return Leader(epoch, 1, state)
        case unknown:
            raise AssertionError(unknown)


def test_each_vote_of_kafkas_states() -> None:
    lines = cases("raft-votes")
    assert len(lines) == 848
    for number, case in lines:
        granted = can_grant_vote(
            state_of(case),
            replica_key(case["replicaKey"]),
            is_log_up_to_date=case["isLogUpToDate"],
            is_pre_vote=case["isPreVote"],
        )
        assert granted == case["granted"], f"raft-votes line {number}: {case}"


@pytest.mark.parametrize(
    ("answers", "granted", "rejected"),
    [
        ({}, False, False),
        ({1: True}, False, False),
        ({1: True, 2: True}, True, False),
        ({1: True, 2: False}, False, False),
        ({1: True, 2: False, 3: False}, False, True),
        ({2: False, 3: False}, False, True),
        ({1: True, 9: True}, False, False),
    ],
)
def test_votes_are_counted_by_voter(
    answers: dict[int, bool], granted: bool, rejected: bool
) -> None:
    election = EpochElection(VOTERS)
    for voter_id, answer in answers.items():
        election.record(voter_id, granted=answer)
    assert (election.is_granted, election.is_rejected) == (granted, rejected)
    assert election.unrecorded == tuple(each for each in (1, 2, 3) if each not in answers)


def test_a_later_answer_of_a_voter_replaces_its_first() -> None:
    election = EpochElection(VOTERS)
    election.record(1, granted=True)
    election.record(2, granted=False)
    election.record(2, granted=True)
    assert election.granting == (1, 2)
