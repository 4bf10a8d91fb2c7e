"""Changes of the voter set: Kafka's order of checks, one change at a time, roll-back."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from kbroker.quorum.raft.effects import RaftRequest
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import MAX_ENDPOINTS, ReplicaKey
from tests.quorum.raft.replicas import LISTENER, Replica, Replicas, directory_of, endpoint_of

TOKEN = -1


def ask(leader: Replica, request: RaftRequest) -> ErrorCode | None:
    """The error of the answer; None if there is none yet."""
    world = leader.world
    leader.do(
        leader.node.handle_request(
            TOKEN, request, listener_name=LISTENER, version=1, now_ms=world.now_ms, wall_ms=0
        )
    )
    return answer(leader)


def answer(leader: Replica) -> ErrorCode | None:
    response = leader.world.responses.pop(TOKEN, None)
    return None if response is None else ErrorCode(response.error_code)  # type: ignore[attr-defined]  # each of these responses has one


def add(node_id: int, **fields: object) -> AddRaftVoterRequest:
    endpoint = endpoint_of(node_id)
    listener = AddRaftVoterRequest.Listener(name=LISTENER, host=endpoint.host, port=endpoint.port)
    values: dict[str, object] = {
        "cluster_id": "cluster",
        "timeout_ms": 1000,
        "voter_id": node_id,
        "voter_directory_id": directory_of(node_id),
        "listeners": [listener],
    }
    return AddRaftVoterRequest(**(values | fields))  # type: ignore[arg-type]  # fields of the request


def listener(name: str = LISTENER, host: str = "host") -> AddRaftVoterRequest.Listener:
    return AddRaftVoterRequest.Listener(name=name, host=host, port=9003)


def remove(node_id: int, **fields: object) -> RemoveRaftVoterRequest:
    values: dict[str, object] = {
        "cluster_id": "cluster",
        "voter_id": node_id,
        "voter_directory_id": directory_of(node_id),
    }
    return RemoveRaftVoterRequest(**(values | fields))  # type: ignore[arg-type]  # fields of the request


def update(leader: Replica, node_id: int, port: int, low: int = 0) -> UpdateRaftVoterRequest:
    listener = UpdateRaftVoterRequest.Listener(name=LISTENER, host="host", port=port)
    return UpdateRaftVoterRequest(
        cluster_id="cluster",
        current_leader_epoch=leader.node.quorum.epoch,
        voter_id=node_id,
        voter_directory_id=directory_of(node_id),
        listeners=[listener],
        k_raft_version_feature=UpdateRaftVoterRequest.KRaftVersionFeature(
            min_supported_version=low, max_supported_version=1
        ),
    )


def test_a_voter_is_added_and_counts() -> None:
    world = Replicas(1, 2, joining=(3,))
    world.joining = ()
    leader = world.elect()
    before = leader.node.quorum.log.end_offset
    assert ask(leader, add(3)) is None
    world.deliver()
    assert leader.node.quorum.voters.ids == (1, 2, 3)
    world.advance(1000)
    assert answer(leader) == ErrorCode.NONE
    assert leader.node.quorum.high_watermark == before + 1
    assert {each.node.quorum.voters.ids for each in world.replicas.values()} == {(1, 2, 3)}
    assert ask(leader, add(3)) == ErrorCode.DUPLICATE_VOTER


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (add(3, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (add(3, voter_id=-1), ErrorCode.INVALID_REQUEST),
        (add(3, voter_directory_id=bytes(16)), ErrorCode.INVALID_REQUEST),
        (add(3, listeners=[]), ErrorCode.INVALID_REQUEST),
        (add(3, listeners=add(3).listeners * (MAX_ENDPOINTS + 1)), ErrorCode.INVALID_REQUEST),
        (add(3, listeners=[listener(host="x" * 256)]), ErrorCode.INVALID_REQUEST),
        (add(3, listeners=[listener(host="a\0b")]), ErrorCode.INVALID_REQUEST),
        (add(3, listeners=[listener(), listener(name="\n")]), ErrorCode.INVALID_REQUEST),
        (add(2), ErrorCode.DUPLICATE_VOTER),
        (remove(3), ErrorCode.VOTER_NOT_FOUND),
        (remove(2, voter_directory_id=b"x" * 16), ErrorCode.VOTER_NOT_FOUND),
        (remove(2, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (remove(2, voter_directory_id=bytes(16)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused(request_: RaftRequest, error: ErrorCode) -> None:
    leader = Replicas(1, 2).elect()
    assert ask(leader, request_) == error


def test_a_follower_refuses() -> None:
    world = Replicas(1, 2)
    leader = world.elect()
    follower = world[3 - leader.id]
    assert ask(follower, add(3)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_static_quorum_does_not_change() -> None:
    leader = Replicas(1, 2, is_static=True).elect()
    assert ask(leader, add(3)) == ErrorCode.UNSUPPORTED_VERSION
    assert ask(leader, remove(2)) == ErrorCode.UNSUPPORTED_VERSION


def test_a_replica_that_has_not_caught_up_is_not_added() -> None:
    world = Replicas(1, 2, joining=(3,))
    world.joining = ()
    world[3].is_down = True
    leader = world.elect()
    world[3].is_down = False
    assert ask(leader, add(3)) is None
    world.deliver()
    assert answer(leader) == ErrorCode.REQUEST_TIMED_OUT
    assert leader.node.quorum.voters.ids == (1, 2)


def test_a_replica_of_another_kraft_version_is_not_added() -> None:
    world = Replicas(1, joining=(3,))
    world.joining = ()
    leader = world.elect()
    world.api_versions.supported_features = []
    assert ask(leader, add(3)) is None
    world.deliver()
    assert answer(leader) == ErrorCode.INVALID_REQUEST


def test_a_replica_that_is_not_reached_is_not_added() -> None:
    world = Replicas(1, joining=(3,))
    world.joining = ()
    leader = world.elect()
    world[3].is_down = True
    assert ask(leader, add(3)) is None
    world.deliver()
    assert answer(leader) == ErrorCode.REQUEST_TIMED_OUT


def test_one_change_at_a_time() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    for other in (1, 2, 3):
        world.cut |= {(other, leader.id), (leader.id, other)}
    gone = max(each for each in (1, 2, 3) if each != leader.id)
    assert ask(leader, remove(gone)) is None
    leader.do(
        leader.node.handle_request(
            -2, add(7), listener_name=LISTENER, version=1, now_ms=world.now_ms, wall_ms=0
        )
    )
    assert world.responses.pop(-2).error_code == ErrorCode.REQUEST_TIMED_OUT  # type: ignore[attr-defined]  # each of these responses has one
    world.advance(2000)
    assert answer(leader) == ErrorCode.REQUEST_TIMED_OUT
    assert ask(leader, add(7)) == ErrorCode.REQUEST_TIMED_OUT


def test_no_change_before_a_record_of_the_epoch_is_committed() -> None:
    world = Replicas(1, 2, 3)
    while not any(each.node.is_leader for each in world.replicas.values()):
        world.advance(1)
        for each in (1, 2, 3):
            world[each].holds_flushes = True
    leader = world.leader()
    assert ask(leader, remove(leader.id % 3 + 1)) == ErrorCode.REQUEST_TIMED_OUT


def test_an_uncommitted_set_is_rolled_back() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    others = [each for each in (1, 2, 3) if each != leader.id]
    for other in others:
        world.cut |= {(other, leader.id), (leader.id, other)}
    assert ask(leader, remove(others[0])) is None
    assert leader.node.quorum.voters.ids == tuple(sorted((leader.id, others[1])))
    world.advance(15_000)
    assert answer(leader) in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
    world.cut.clear()
    world.advance(15_000)
    assert leader.node.quorum.voters.ids == (1, 2, 3)


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    assert ask(leader, remove(leader.id)) is None
    assert leader.node.is_leader
    world.advance(1000)
    assert answer(leader) == ErrorCode.NONE
    world.advance(5000)
    successor = world.leader()
    assert successor is not leader
    assert leader.id not in successor.node.quorum.voters.ids
    assert leader.state == "Follower"


def test_a_leader_that_removed_itself_never_says_again_that_it_leads() -> None:
    world = Replicas(1, 2)
    leader = world.elect()
    assert ask(leader, remove(leader.id)) is None
    world.advance(1000)
    assert answer(leader) == ErrorCode.NONE
    leader.leaders.clear()
    other = leader.id % 2 + 1
    world.cut |= {(leader.id, other), (other, leader.id)}
    world.advance(5000)
    assert leader.state == "Unattached"
    assert leader.id not in {leader_id for _, leader_id in leader.leaders}


def test_voters_that_were_truncated_at_the_logs_start_give_way_to_those_before_it() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    world.advance(1000)
    others = [each for each in (1, 2, 3) if each != leader.id]
    world.cut = {(a, b) for a in others for b in (leader.id,)} | {(leader.id, b) for b in others}
    assert ask(leader, remove(others[0])) is None
    quorum = leader.node.quorum
    start_offset = quorum.high_watermark
    assert quorum.control.voters.last_offset == start_offset
    snapshot_id = SnapshotId(start_offset, quorum.epoch)
    leader.do(leader.node.snapshot_written(snapshot_id, 1, world.now_ms))
    leader.do(leader.node.log_cleaned(start_offset, [snapshot_id], world.now_ms))
    world.advance(20_000)
    world.cut.clear()
    world.advance(5_000)
    assert leader.state == "Follower"
    assert quorum.log.end_offset > start_offset and quorum.voters.ids == (1, 2, 3)


def test_a_voter_is_removed() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    gone = next(each for each in (1, 2, 3) if each != leader.id)
    assert ask(leader, remove(gone)) is None
    world.advance(1000)
    assert answer(leader) == ErrorCode.NONE
    assert world[gone].node.quorum.is_voter is False
    world.advance(10_000)
    assert world[gone].state == "Follower"
    last = Replicas(1)[1]
    assert ask(last, remove(1)) == ErrorCode.VOTER_NOT_FOUND


def test_a_voter_tells_its_endpoints() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    other = leader.id % 3 + 1
    assert ask(leader, update(leader, other, 7777)) == ErrorCode.NONE
    found = leader.node.quorum.voters.get(other)
    assert found is not None
    assert found.endpoints[0].port == 7777
    assert ask(leader, update(leader, other, 7778)) == ErrorCode.REQUEST_TIMED_OUT
    assert ask(leader, update(leader, other, 7778, low=-1)) == ErrorCode.INVALID_REQUEST
    world.advance(1000)
    assert ask(leader, update(leader, other, 7779, low=2)) == ErrorCode.INVALID_REQUEST
    assert ask(leader, update(leader, other, 7779, low=-1)) == ErrorCode.INVALID_REQUEST
    assert ask(leader, update(leader, 9, 7779)) == ErrorCode.VOTER_NOT_FOUND
    too_many = update(leader, other, 7779)
    too_many.listeners *= MAX_ENDPOINTS + 1
    assert ask(leader, too_many) == ErrorCode.INVALID_REQUEST


def test_kraft_version_becomes_1_once_each_voter_told_its_directory() -> None:
    world = Replicas(1, 2, 3, is_static=True)
    leader = world.elect()
    with pytest.raises(KafkaError, match="not all of the voters support it"):
        leader.node.upgrade_kraft_version(1, world.now_ms)
    world.advance(5000)
    end_offset = leader.node.quorum.log.end_offset
    leader.node.check_kraft_upgrade(1)
    assert leader.node.quorum.log.end_offset == end_offset
    leader.do(leader.node.upgrade_kraft_version(1, world.now_ms))
    world.advance(1000)
    for replica in world.replicas.values():
        assert replica.node.quorum.control.kraft_version == 1
        assert replica.node.quorum.voters.keys == tuple(
            ReplicaKey(each, directory_of(each)) for each in (1, 2, 3)
        )
    end_offset = leader.node.quorum.log.end_offset
    leader.node.check_kraft_upgrade(1)
    leader.do(leader.node.upgrade_kraft_version(1, world.now_ms))
    assert leader.node.quorum.log.end_offset == end_offset
    with pytest.raises(KafkaError, match="because the new version is a downgrade"):
        leader.node.check_kraft_upgrade(0)
