"""The requests of a follower for its own entry in the voter set."""

from __future__ import annotations

import pytest

from kbroker.model import ZERO_UUID
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    UpdateRaftVoterRequest,
)
from kbroker.quorum.raft.effects import Send
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint, VoterSet
from tests.quorum.raft.replicas import Replica, Replicas, directory_of


def sent(replica: Replica, kind: type) -> int:
    sends = [each for each in replica.effects if isinstance(each, Send)]
    return sum(isinstance(each.request, kind) for each in sends)


def test_a_controller_that_joins_becomes_a_voter() -> None:
    world = Replicas(1, joining=(2, 3))
    world.elect()
    world.advance(20_000)
    assert {each.node.quorum.voters.ids for each in world.replicas.values()} == {(1, 2, 3)}
    before = [sent(world[each], AddRaftVoterRequest) for each in (2, 3)]
    world.advance(20_000)
    assert [sent(world[each], AddRaftVoterRequest) for each in (2, 3)] == before


def test_a_controller_does_not_join_by_itself() -> None:
    world = Replicas(1, observers=(7,), joining=(2,))
    world.joining = ()
    world.restart(2)
    world.elect()
    world.advance(20_000)
    assert world[1].node.quorum.voters.ids == (1,)


def test_a_new_disk_of_a_voter_takes_the_place_of_the_old_one() -> None:
    world = Replicas(1, 2, 3)
    leader = world.elect()
    lost = leader.id % 3 + 1
    world.bootstrap_voters = VoterSet(
        Voter(each.id, b"old" + bytes(13) if each.id == lost else each.directory_id, each.endpoints)
        for each in leader.node.quorum.voters
    )
    for replica in world.replicas.values():
        replica.disk.batches = []
        replica.disk.election = type(replica.disk.election)()
    world.joining = (lost,)
    for node_id in (1, 2, 3):
        world.restart(node_id)
    world.advance(40_000)
    found = world.leader().node.quorum.voters.get(lost)
    assert found is not None
    assert found.directory_id == directory_of(lost)


def test_a_voter_of_a_static_quorum_tells_each_leader_once() -> None:
    world = Replicas(1, 2, 3, is_static=True)
    leader = world.elect()
    world.advance(30_000)
    followers = [each for each in world.replicas.values() if each is not leader]
    assert [sent(each, UpdateRaftVoterRequest) for each in followers] == [1, 1]
    assert {each.node.quorum.voters.keys[0].directory_id for each in followers} == {ZERO_UUID}


def test_the_order_of_endpoints_is_no_change() -> None:
    world = Replicas(1, 2, 3)
    world.more_endpoints = (VoterEndpoint("MORE", "host", 1),)
    world.bootstrap_voters = VoterSet(
        Voter(each.id, each.directory_id, (*world.more_endpoints, *each.endpoints))
        for each in world.bootstrap_voters or ()
    )
    for node_id in (1, 2, 3):
        world.restart(node_id)
    world.elect()
    world.advance(20_000)
    assert [sent(each, UpdateRaftVoterRequest) for each in world.replicas.values()] == [0, 0, 0]


def test_a_leader_that_does_not_know_the_request_is_told_once() -> None:
    world = Replicas(1, 2, 3, is_static=True)
    world.intercepted[UpdateRaftVoterRequest] = lambda sender, send: sender.do(
        sender.node.request_failed(send.correlation_id, ErrorCode.UNSUPPORTED_VERSION, world.now_ms)
    )
    leader = world.elect()
    world.advance(30_000)
    followers = [each for each in world.replicas.values() if each is not leader]
    assert [sent(each, UpdateRaftVoterRequest) for each in followers] == [1, 1]


@pytest.mark.parametrize(
    "error", [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.DUPLICATE_VOTER]
)
def test_an_expected_answer_about_joining_is_no_failure_of_the_leader(error: ErrorCode) -> None:
    world = Replicas(1, joining=(2,))
    world.intercepted[AddRaftVoterRequest] = lambda sender, send: sender.do(
        sender.node.response_received(
            send.correlation_id, AddRaftVoterResponse(error_code=error), world.now_ms
        )
    )
    world.elect()
    world.advance(5000)
    sends = [each for each in world[2].effects if isinstance(each, Send)]
    asked = [isinstance(each.request, AddRaftVoterRequest) for each in sends]
    later = sends[asked.index(True) :]
    assert {each.destination.node_id for each in later} == {1}
    assert sum(asked) <= 3  # one per fetch timeout, fetches in between


def test_a_voter_whose_endpoint_changed_tells_it() -> None:
    world = Replicas(1, 2, 3)
    former = VoterEndpoint("CONTROLLER", "host", 9002)
    voters = [each for each in world.bootstrap_voters or () if each.id != 2]
    stale = Voter(2, directory_of(2), (former, VoterEndpoint("OLD", "host", 1)))
    world.bootstrap_voters = VoterSet([*voters, stale])
    for node_id in (1, 2, 3):
        world.restart(node_id)
    leader = world.elect()
    world.advance(20_000)
    found = leader.node.quorum.voters.get(2)
    assert found is not None
    assert found.endpoints == (former,)
