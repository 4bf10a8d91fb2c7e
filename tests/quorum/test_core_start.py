"""The start of the core. A node that voted for itself and is not a voter any more can start, unlike
in Kafka.
"""

from __future__ import annotations

import logging

import pytest

from kbroker.protocol.messages.quorum import VoteResponse
from kbroker.quorum.core_start import start_core
from kbroker.quorum.raft.effects import Effect, PersistState, Respond
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import OffsetAndEpoch
from kbroker.quorum.raft.requests.messages import vote_request
from kbroker.quorum.raft.states.epoch_states import Unattached
from kbroker.quorum.raft.voters.voter_set import ReplicaKey
from tests.quorum.raft.decisions import Case, cases, directory_id
from tests.quorum.raft.states.test_quorum_state import node_that_starts

REFUSED = [
    pytest.param(case, id=f"line {number}")
    for number, case in cases("raft-starts")
    if "exception" in case
]
OTHER = ReplicaKey(2, bytes([2]) * 16)


def ask_for_vote(node: RaftNode, epoch: int) -> tuple[bool, list[Effect]]:
    """Whether the node votes for OTHER, whose log is longer; and all effects of its answer."""
    request = vote_request(
        "cluster",
        OTHER,
        node.quorum.local,
        epoch=epoch,
        log_end=OffsetAndEpoch(1_000, epoch - 1),
        is_pre_vote=False,
    )
    effects = node.handle_request(
        1, request, listener_name="CONTROLLER", version=2, now_ms=10, wall_ms=10
    )
    (response,) = [
        each.response
        for each in effects
        if isinstance(each, Respond) and isinstance(each.response, VoteResponse)
    ]
    partition = response.topics[0].partitions[0]
    assert (response.error_code, partition.error_code) == (0, 0)
    return partition.vote_granted, effects


def test_there_are_such_lines() -> None:
    assert len(REFUSED) == 34


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_kafka_does_not_start_keeps_its_vote(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_that_starts(case)
    stored = case["quorumState"]
    epoch, local_id = stored["leaderEpoch"], case["local"]["id"]
    with caplog.at_level(logging.WARNING, logger="kbroker.quorum"):
        effects = start_core(node, 0)

    (record,) = caplog.records
    line = record.getMessage()
    assert f"voted for itself in epoch {epoch}" in line and f"Node {local_id}:" in line
    assert "not among the voters" in line and "starts unattached" in line and "\n" not in line

    voted = ReplicaKey(local_id, directory_id(stored["votedDirectoryId"]))
    assert node.quorum.state == Unattached(epoch, stored["leaderId"], voted, None)
    assert not any(isinstance(effect, PersistState) for effect in effects)
    # it never starts an election
    assert isinstance(node.quorum.state, Unattached)
    for now_ms in (1, 100_000, 200_000):
        node.poll(now_ms)
        assert isinstance(node.quorum.state, Unattached) and node.quorum.epoch == epoch


@pytest.mark.parametrize("case", REFUSED)
def test_it_votes_again_in_a_later_epoch_only(case: Case) -> None:
    node = node_that_starts(case)
    epoch = case["quorumState"]["leaderEpoch"]
    start_core(node, 0)
    if epoch:  # a vote in epoch 0 is no valid request
        is_granted, effects = ask_for_vote(node, epoch)
        assert not is_granted
        assert not any(isinstance(effect, PersistState) for effect in effects)
    is_granted, effects = ask_for_vote(node, epoch + 1)
    assert is_granted
    persisted = [effect for effect in effects if isinstance(effect, PersistState)]
    assert persisted[-1].state.voted_key == OTHER and persisted[-1].state.epoch == epoch + 1


def test_another_start_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _, case = next(each for each in cases("raft-starts") if "starts" in each[1])
    with caplog.at_level(logging.WARNING, logger="kbroker.quorum"):
        start_core(node_that_starts(case), 0)
    assert not caplog.records
