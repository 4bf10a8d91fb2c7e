"""The states of a replica: each start of Kafka's QuorumState, transitions, and persisted states."""

from __future__ import annotations

from random import Random
from typing import Any

from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.epoch_states import leader_id_of, voted_key_of
from kbroker.quorum.raft.states.quorum_state import QuorumState, VotedButNotVoter
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint, VoterSet
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


def node_that_starts(case: Case) -> RaftNode:
    """The node of a line of raft-starts, before its start."""
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
    return RaftNode(
        RaftConfig(replica_key(case["local"]), "cluster"),
        log=RaftLog(end_offset=10, epochs=[(last_epoch, 0)] if last_epoch else []),
        control=ControlState(voters),
        election=election,
        random=Random(1),
    )


def test_each_start_of_kafkas_quorum_state() -> None:
    lines = cases("raft-starts")
    assert len(lines) == 400
    for number, case in lines:
        where = f"raft-starts line {number}: {case}"
        node = node_that_starts(case)
        found: dict[str, Any]
        try:
            node.start(0)
            found = describe_state(node.quorum) | {"isVoter": node.quorum.is_voter}
        except VotedButNotVoter:
            found = {"exception": "IllegalArgumentException"}
        if "exception" in case:
            expected = {"exception": case["exception"]}
        else:
            expected = expected_state(case["starts"]) | {"isVoter": case["starts"]["isVoter"]}
        assert found == expected, where
