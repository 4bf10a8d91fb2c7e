"""The states of a replica: each start of Kafka's QuorumState, transitions, what they persist."""

from __future__ import annotations

from random import Random
from typing import Any

from kbroker.quorum.raft.control_state import ControlState
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.epoch_states import Follower, Unattached, leader_id_of, voted_key_of
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.quorum_state import QuorumState
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.voter_set import Voter, VoterEndpoint, VoterSet
from tests.quorum.raft.decisions import Case, cases, directory_id, replica_key


def describe_state(quorum: QuorumState) -> dict[str, Any]:
    """State, epoch, leader and vote, as the files name them."""
    voted = voted_key_of(quorum.state)
    return {
        "state": type(quorum.state).__name__,
        "epoch": quorum.epoch,
        "leaderId": leader_id_of(quorum.state),
        "votedKey": None if voted is None else (voted.id, voted.directory_id),
    }


def expected_state(case: Case) -> dict[str, Any]:
    voted = case["votedKey"]
    return {
        "state": case["state"],
        "epoch": case["epoch"],
        "leaderId": case["leaderId"],
        "votedKey": None if voted is None else (voted["id"], directory_id(voted["directoryId"])),
    }


def test_each_start_of_kafkas_quorum_state() -> None:
    lines = cases("raft-starts")
    assert len(lines) == 400
    for number, case in lines:
        local = replica_key(case["local"])
        voters = VoterSet(
            Voter(row[0], directory_id(row[1]), (VoterEndpoint("CONTROLLER", "h", row[0]),))
            for row in case["voters"]
        )
        election, last_epoch = ElectionState(), case["lastFetchedEpoch"]
        if case["quorumState"] is not None:
            stored = case["quorumState"]
            election = ElectionState(
                stored["leaderEpoch"],
                stored["leaderId"],
                stored["votedId"],
                directory_id(stored["votedDirectoryId"]),
            )
        log = RaftLog(end_offset=10, epochs=[(last_epoch, 0)] if last_epoch else [])
        node = RaftNode(
            RaftConfig(local, "cluster"),
            log=log,
            control=ControlState(voters),
            election=election,
            random=Random(number),
        )
        where = f"raft-starts line {number}: {case}"
        node.start(0)
        if "exception" in case:
            # it voted for itself and is no voter any more: Kafka's node does not start
            state = node.quorum.state
            assert isinstance(state, Follower | Unattached), where
            assert state.voted is not None and state.voted.names(local), where
            assert not node.quorum.is_voter, where
            continue
        found = describe_state(node.quorum) | {"isVoter": node.quorum.is_voter}
        expected = expected_state(case["starts"]) | {"isVoter": case["starts"]["isVoter"]}
        assert found == expected, where
