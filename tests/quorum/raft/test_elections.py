"""Elections among several voters: one leader, no vote twice, pre-votes, and back-off."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import VoteRequest
from kbroker.quorum.raft.effects import PersistState, Respond, Send
from kbroker.quorum.raft.election_state import MAX_TOLD_EPOCH
from kbroker.quorum.raft.offsets import OffsetAndEpoch
from kbroker.quorum.raft.requests.messages import vote_request
from kbroker.quorum.raft.states.epoch_states import Candidate, Prospective, Unattached
from kbroker.quorum.raft.voters.voter_set import ReplicaKey
from tests.quorum.raft.replicas import LISTENER, Replica, Replicas, directory_of


def ask_for_vote(
    replica: Replica, candidate: int, epoch: int, *, is_pre_vote: bool = False
) -> None:
    request = vote_request(
        "cluster",
        ReplicaKey(candidate, directory_of(candidate)),
        replica.node.quorum.local,
        epoch=epoch,
        log_end=OffsetAndEpoch(1000, epoch if is_pre_vote else epoch - 1),
        is_pre_vote=is_pre_vote,
    )
    replica.do(
        replica.node.handle_request(
            -candidate,
            request,
            listener_name=LISTENER,
            version=2,
            now_ms=replica.world.now_ms,
            wall_ms=0,
        )
    )


def granted(replica: Replica, candidate: int) -> bool:
    response = replica.world.responses[-candidate]
    return bool(response.topics[0].partitions[0].vote_granted)  # type: ignore[attr-defined]  # a VoteResponse


@pytest.mark.parametrize("voters", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("is_static", [True, False])
def test_voters_elect_one_leader_that_the_others_follow(
    voters: tuple[int, ...], is_static: bool
) -> None:
    world = Replicas(*voters, observers=(9,), is_static=is_static)
    leader = world.elect()
    states = {each.id: each.state for each in world.replicas.values()}
    assert states == dict.fromkeys((*voters, 9), "Follower") | {leader.id: "Leader"}
    assert {each.node.quorum.leader_id for each in world.replicas.values()} == {leader.id}
    assert len({each.node.quorum.epoch for each in world.replicas.values()}) == 1


def test_the_only_voter_leads_in_its_first_event_and_writes_its_state_once() -> None:
    world = Replicas(1)
    persisted = [each for each in world[1].effects if isinstance(each, PersistState)]
    assert [each.state.leader_id for each in persisted] == [1]
    assert world[1].node.quorum.high_watermark == 3


def test_a_vote_is_on_disk_before_it_is_answered() -> None:
    world = Replicas(1, 2, 3)
    ask_for_vote(world[1], 2, epoch=5)
    kinds = [type(each) for each in world[1].effects]
    assert kinds.index(PersistState) < kinds.index(Respond)
    assert (world[1].disk.election.epoch, world[1].disk.election.voted_id) == (5, 2)


def test_a_vote_is_given_once_also_over_a_restart() -> None:
    world = Replicas(1, 2, 3)
    ask_for_vote(world[1], 2, epoch=5)
    assert granted(world[1], 2)
    world.restart(1)
    ask_for_vote(world[1], 3, epoch=5)
    assert not granted(world[1], 3)
    ask_for_vote(world[1], 2, epoch=5)
    assert granted(world[1], 2)


def test_another_node_with_the_own_id_gets_no_vote() -> None:
    world = Replicas(1, 2, 3)
    ask_for_vote(world[1], 1, epoch=5)
    assert not granted(world[1], 1)


def test_a_pre_vote_promises_nothing() -> None:
    world = Replicas(1, 2, 3)
    ask_for_vote(world[1], 2, epoch=5, is_pre_vote=True)
    assert granted(world[1], 2)
    ask_for_vote(world[1], 3, epoch=5)
    assert granted(world[1], 3)


def test_a_voter_that_was_cut_off_does_not_topple_the_leader() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    epoch = leader.node.quorum.epoch
    lost = next(each for each in (1, 2, 3) if each != leader.id)
    for other in (1, 2, 3):
        world.cut |= {(lost, other), (other, lost)}
    world.advance(30_000)
    assert isinstance(world[lost].node.quorum.state, Prospective)
    assert world[lost].node.quorum.epoch == epoch
    world.cut.clear()
    world.advance(5_000)
    assert leader.node.is_leader
    assert {each.node.quorum.epoch for each in world.replicas.values()} == {epoch}
    assert world[lost].state == "Follower"


def test_an_observer_grants_pre_votes_once_it_has_not_reached_the_leader_for_long() -> None:
    """It may be a voter although its log does not show that yet, and its vote may be needed for a
    majority.
    """
    world = Replicas(1, 2, 3, observers=(9,))
    epoch = world.elect().node.quorum.epoch
    world.advance(500)
    ask_for_vote(world[9], 2, epoch, is_pre_vote=True)
    assert not granted(world[9], 2)
    for other in (1, 2, 3):
        world.cut |= {(9, other), (other, 9)}
    world.advance(30_000)
    assert world[9].state == "Follower"
    ask_for_vote(world[9], 3, epoch, is_pre_vote=True)
    assert granted(world[9], 3)


def test_a_voter_without_pre_votes_lets_the_others_stand_at_once() -> None:
    world = Replicas(1, 2, 3)
    replica = world[1]
    world.now_ms += 2000
    replica.do(replica.node.poll(world.now_ms))
    assert isinstance(replica.node.quorum.state, Prospective)
    sends = [
        each
        for each in replica.effects
        if isinstance(each, Send) and isinstance(each.request, VoteRequest)
    ]
    error = ErrorCode.UNSUPPORTED_VERSION
    replica.do(replica.node.request_failed(sends[0].correlation_id, error, world.now_ms))
    assert isinstance(replica.node.quorum.state, Candidate)
    assert replica.disk.election.voted_id == 1


def test_a_flood_of_epochs_does_not_postpone_an_election() -> None:
    world = Replicas(1, 2, 3)
    state = world[1].node.quorum.state
    assert isinstance(state, Unattached)
    deadline_ms = state.election_deadline_ms
    for epoch in range(5, 50):
        ask_for_vote(world[1], 9, epoch=epoch, is_pre_vote=True)
    state = world[1].node.quorum.state
    assert isinstance(state, Unattached)
    assert (state.epoch, state.election_deadline_ms) == (49, deadline_ms)


def test_an_epoch_that_leaves_no_room_for_another_is_refused() -> None:
    """After epoch 2^31-1 there could be no election, and its records could not be written."""
    world = Replicas(1)
    before = world[1].node.quorum.epoch
    for epoch in (2**31 - 1, MAX_TOLD_EPOCH + 1):
        ask_for_vote(world[1], 9, epoch=epoch)
        partition = world.responses[-9].topics[0].partitions[0]  # type: ignore[attr-defined]  # a VoteResponse
        assert partition.error_code == ErrorCode.INVALID_REQUEST
        assert (world[1].state, world[1].node.quorum.epoch) == ("Leader", before)
    ask_for_vote(world[1], 9, epoch=MAX_TOLD_EPOCH)
    world.advance(10_000)
    assert (world[1].state, world[1].node.quorum.epoch) == ("Leader", MAX_TOLD_EPOCH + 1)


def test_a_shorter_log_is_not_elected() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    behind, ahead = (each for each in (1, 2, 3) if each != leader.id)
    world.cut |= {(behind, leader.id)}
    leader.propose(b"a")
    world.advance(600)
    leader.is_down = True
    world.cut.clear()
    world.advance(20_000)
    assert world[ahead].node.is_leader
    assert world[behind].records == [b"a"]
