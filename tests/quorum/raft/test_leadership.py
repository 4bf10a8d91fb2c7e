"""The leader: commits by majority, resigns without one, and sends its successors."""

from __future__ import annotations

import pytest

from kbroker.model import InvariantError
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import BeginQuorumEpochRequest, EndQuorumEpochRequest
from kbroker.quorum.raft.effects import AppendControl, Commit, LeaderChanged, RaftRequest, Send
from kbroker.quorum.raft.election_state import MAX_TOLD_EPOCH
from kbroker.quorum.raft.leadership import MAX_SUCCESSORS, succession_backoff_ms
from kbroker.quorum.raft.voters.voter_set import MAX_ENDPOINTS, ReplicaKey
from tests.quorum.raft.replicas import LISTENER, Replica, Replicas


def cut_off(world: Replicas, node_id: int) -> None:
    for other in world.replicas:
        if other != node_id:
            world.cut |= {(node_id, other), (other, node_id)}


def test_records_are_committed_once_a_majority_has_them() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    first, second = (each for each in (1, 2, 3) if each != leader.id)
    cut_off(world, first)
    before = leader.node.quorum.high_watermark
    leader.propose(b"a")
    assert leader.node.quorum.high_watermark == before
    world.advance(1000)
    assert leader.node.quorum.high_watermark == before + 1
    cut_off(world, second)
    leader.propose(b"b")
    world.advance(1000)
    assert leader.node.quorum.high_watermark == before + 1


def test_a_leader_does_not_count_what_it_has_not_flushed() -> None:
    world = Replicas(1)
    leader = world[1]
    leader.holds_flushes = True
    before = leader.node.quorum.high_watermark
    leader.propose(b"a")
    leader.propose(b"b")
    assert leader.node.quorum.high_watermark == before
    leader.finish_flush()
    assert leader.node.quorum.high_watermark == before + 1
    leader.finish_flush()
    assert leader.node.quorum.high_watermark == before + 2


def test_records_of_an_old_epoch_are_committed_only_through_one_of_the_new() -> None:
    world = Replicas(1, 2, 3)
    old = world.elect()
    others = [each for each in (1, 2, 3) if each != old.id]
    before = old.node.quorum.high_watermark
    cut_off(world, old.id)
    old.propose(b"lost")
    world.advance(10_000)
    new = world.leader()
    assert new.id in others
    assert new.node.quorum.high_watermark == before + 1
    world.cut.clear()
    world.advance(10_000)
    assert old.records == new.records == []
    assert old.node.quorum.high_watermark == before + 1


def test_an_isolated_leader_resigns() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    epoch = leader.node.quorum.epoch
    cut_off(world, leader.id)
    world.advance(2900)
    assert leader.node.is_leader
    world.advance(200)
    assert not leader.node.is_leader
    assert LeaderChanged(epoch, -1) in leader.effects
    with pytest.raises(InvariantError, match="without leading"):
        leader.propose(b"x")


def test_an_empty_proposal_breaks_an_invariant() -> None:
    with pytest.raises(InvariantError, match="0 records"):
        Replicas(1)[1].propose()


def test_a_leader_that_stops_is_succeeded_within_the_election() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    epoch = leader.node.quorum.epoch
    leader.do(leader.node.shutdown(5000, world.now_ms))
    assert leader.state == "Resigned"
    assert not leader.has_shut_down
    world.advance(100)
    assert leader.has_shut_down
    assert world.leader().node.quorum.epoch == epoch + 1
    assert world.leader() is not leader


def test_the_only_voter_stops_at_once() -> None:
    world = Replicas(1)
    world[1].do(world[1].node.shutdown(5000, world.now_ms))
    assert world[1].has_shut_down


def test_a_leader_stops_once_the_others_can_elect_one_of_them() -> None:
    world = Replicas(1, 2, 3, 4)
    leader = world.elect()
    others = [each for each in (1, 2, 3, 4) if each != leader.id]
    cut_off(world, others[0])
    leader.do(leader.node.shutdown(5000, world.now_ms))
    world.deliver()
    assert not leader.has_shut_down  # two of four know: no majority
    world = Replicas(1, 2, 3)
    leader = world.elect()
    leader.do(leader.node.shutdown(5000, world.now_ms))
    assert not leader.has_shut_down
    world.deliver()
    assert leader.has_shut_down


def test_a_shutdown_does_not_wait_longer_than_its_timeout() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    cut_off(world, leader.id)
    leader.do(leader.node.shutdown(500, world.now_ms))
    world.advance(499)
    assert not leader.has_shut_down
    world.advance(2)
    assert leader.has_shut_down


def test_a_leader_of_an_old_epoch_is_not_resigned() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    epoch = leader.node.quorum.epoch
    leader.do(leader.node.resign(epoch - 1, world.now_ms))
    assert leader.node.is_leader
    leader.do(leader.node.resign(epoch, world.now_ms))
    assert leader.state == "Resigned"


def test_a_restarted_leader_does_not_lead_its_epoch_again() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    epoch = leader.node.quorum.epoch
    world.restart(leader.id)
    assert world[leader.id].state == "Resigned"
    world.advance(10_000)
    assert world.leader().node.quorum.epoch > epoch


def test_a_restarted_leader_tells_the_voters_that_it_resigned() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    world.restart(leader.id)
    sends = [each for each in world[leader.id].effects if isinstance(each, Send)]
    ends = [each for each in sends if isinstance(each.request, EndQuorumEpochRequest)]
    assert {each.destination.node_id for each in ends} == {1, 2, 3} - {leader.id}
    world.advance(200)
    assert world.leader().id != leader.id


def test_the_voters_are_written_by_the_first_leader_only() -> None:
    world = Replicas(1)
    (first,) = [each for each in world[1].effects if isinstance(each, AppendControl)]
    kinds = [kind for kind, _ in first.records]
    assert kinds == [ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]
    world.restart(1)
    (second,) = [each for each in world[1].effects if isinstance(each, AppendControl)]
    assert [kind for kind, _ in second.records] == [ControlType.LEADER_CHANGE]
    assert [each for each in world[1].effects if isinstance(each, Commit)] == [Commit(4)]


@pytest.mark.parametrize(
    ("successors", "wait_ms"),
    [
        ([], 0),
        ([1], 0),
        ([2, 1], 500),
        ([2, 1, 3], 250),
        ([2, 3, 1], 500),
        ([2, 3], 1000),
        ([2, 3, 4, 5], 1000),
    ],
)
def test_successors_wait_in_their_order(successors: list[int], wait_ms: int) -> None:
    keys = [ReplicaKey(each) for each in successors]
    assert succession_backoff_ms(ReplicaKey(1), keys, 1000) == wait_ms


TOKEN = -1
METADATA = "__cluster_metadata"


def told(replica: Replica, request: RaftRequest) -> ErrorCode:
    """The error of the answer to a request about an epoch."""
    world = replica.world
    replica.do(
        replica.node.handle_request(
            TOKEN, request, listener_name=LISTENER, version=1, now_ms=world.now_ms, wall_ms=0
        )
    )
    response = world.responses.pop(TOKEN)
    return ErrorCode(response.topics[0].partitions[0].error_code)  # type: ignore[attr-defined]  # one of both


def begin(epoch: int, endpoints: int = 1) -> BeginQuorumEpochRequest:
    kind = BeginQuorumEpochRequest
    partition = kind.PartitionData(leader_id=9, leader_epoch=epoch)
    endpoint = kind.LeaderEndpoint(name=LISTENER, host="host", port=9)
    return kind(
        topics=[kind.TopicData(topic_name=METADATA, partitions=[partition])],
        leader_endpoints=[endpoint] * endpoints,
    )


def end(epoch: int, successors: int) -> EndQuorumEpochRequest:
    kind = EndQuorumEpochRequest
    partition = kind.PartitionData(
        leader_id=9,
        leader_epoch=epoch,
        preferred_candidates=[kind.ReplicaInfo(candidate_id=8)] * successors,
    )
    return kind(topics=[kind.TopicData(topic_name=METADATA, partitions=[partition])])


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(begin(2**31 - 1), id="the last epoch"),
        pytest.param(begin(MAX_TOLD_EPOCH + 1), id="an epoch that leaves no room"),
        pytest.param(begin(10, MAX_ENDPOINTS + 1), id="very many endpoints"),
        pytest.param(begin(1), id="an epoch that has another leader"),
        pytest.param(end(1, 1), id="an epoch that another leader cannot end"),
        pytest.param(end(10, MAX_SUCCESSORS + 1), id="very many successors"),
    ],
)
def test_a_leader_that_tells_too_much_is_not_followed(request_: RaftRequest) -> None:
    replica = Replicas(1)[1]
    before = replica.node.quorum.epoch
    assert before == 1
    assert told(replica, request_) == ErrorCode.INVALID_REQUEST
    assert (replica.state, replica.node.quorum.epoch) == ("Leader", before)


def test_a_candidate_is_not_told_that_it_leads() -> None:
    replica = Replicas(1, 2, 3)[1]
    replica.world.now_ms += 2000
    replica.do(replica.node.poll(replica.world.now_ms))
    asked = [each for each in replica.effects if isinstance(each, Send)][-1]
    error = ErrorCode.UNSUPPORTED_VERSION  # of the pre-vote
    replica.do(replica.node.request_failed(asked.correlation_id, error, replica.world.now_ms))
    assert replica.state == "Candidate"
    for request in (begin(replica.node.quorum.epoch), end(replica.node.quorum.epoch, 1)):
        request.topics[0].partitions[0].leader_id = 1
        assert told(replica, request) == ErrorCode.INVALID_REQUEST
    assert replica.state == "Candidate"


def test_a_leader_of_a_later_epoch_is_followed() -> None:
    for request in (begin(10, MAX_ENDPOINTS), end(10, MAX_SUCCESSORS)):
        replica = Replicas(1, 2)[1]
        assert told(replica, request) == ErrorCode.NONE
        assert replica.node.quorum.epoch == 10
