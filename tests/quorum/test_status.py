"""The status of a replica, in each state that Kafka's raft-metrics name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.quorum.raft.states.epoch_states import (
    Candidate,
    EpochElection,
    EpochState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from kbroker.quorum.raft.states.leader_state import LeaderState
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet
from kbroker.quorum.status import QuorumStatus, quorum_status

DIRECTORY = bytes(16)
LOCAL = ReplicaKey(1, DIRECTORY)
OTHER = ReplicaKey(2, DIRECTORY)


def quorum(state: EpochState, *, is_voter: bool, leader_id: int) -> QuorumState:
    """What the status reads of a QuorumState in that state."""
    values: dict[str, Any] = {
        "state": state,
        "is_voter": is_voter,
        "leader_id": leader_id,
        "epoch": state.epoch,
        "high_watermark": 17,
        "log": SimpleNamespace(end_offset=20, last_epoch=4),
        "voters": SimpleNamespace(ids=(1, 2, 3)),
    }
    return cast(QuorumState, SimpleNamespace(**values))


def voters() -> VoterSet:
    return cast(VoterSet, SimpleNamespace(ids=(1, 2, 3)))


STATES = [
    (Unattached(5, -1, None, None), True, -1, "unattached", -1),
    (Unattached(5, -1, OTHER, None), True, -1, "unattached", 2),
    (Prospective(5, -1, (), None, EpochElection(voters()), 0), True, -1, "prospective", -1),
    (Candidate(5, LOCAL, EpochElection(voters()), 0), True, -1, "candidate", 1),
    (Follower(5, 2, (), None, 0), True, 2, "follower", -1),
    (Follower(5, 2, (), OTHER, 0), True, 2, "follower", 2),
    (Follower(5, 2, (), None, 0), False, 2, "observer", -1),
    (Leader(5, 1, cast(LeaderState, None)), True, 1, "leader", -1),
    (Resigned(5, 1, 0), True, 1, "resigned", -1),
]


@pytest.mark.parametrize(("state", "is_voter", "leader_id", "name", "voted_id"), STATES)
def test_states(
    state: EpochState, is_voter: bool, leader_id: int, name: str, voted_id: int
) -> None:
    assert quorum_status(quorum(state, is_voter=is_voter, leader_id=leader_id)) == QuorumStatus(
        state=name,
        leader_id=leader_id,
        epoch=5,
        voted_id=voted_id,
        high_watermark=17,
        log_end_offset=20,
        log_end_epoch=4,
        voter_count=3,
    )
