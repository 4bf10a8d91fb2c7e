"""Requests to other nodes: one at a time per node, a back-off after a failure."""

from __future__ import annotations

from random import Random

from kbroker.protocol.messages.quorum import VoteRequest
from kbroker.quorum.raft.effects import Destination
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.requests.request_manager import RequestManager
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.epoch_states import Unattached
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey
from tests.quorum.raft.replicas import endpoint_of, voters_of


def manager(*bootstrap: tuple[str, int]) -> tuple[RequestManager, QuorumState]:
    config = RaftConfig(
        ReplicaKey(1), "cluster", endpoints=(endpoint_of(1),), bootstrap_servers=bootstrap
    )
    quorum = QuorumState(
        config,
        log=RaftLog(),
        control=ControlState(voters_of(1, 2, 3)),
        high_watermark=0,
        random=Random(1),
    )
    quorum.state = Unattached(1, -1, None, 100)
    return RequestManager(quorum), quorum


def test_a_node_is_busy_until_its_answer() -> None:
    requests, _ = manager()
    two = requests.destination(2)
    assert two == Destination(2, "host", 9002)
    requests.send(two, VoteRequest())
    assert requests.is_busy(2)
    assert not requests.is_ready(2, 0)
    assert requests.ready_at_ms(2) is None
    assert requests.is_ready(3, 0)
    sent = requests.complete(0, is_failed=False, now_ms=0)
    assert sent is not None
    assert sent.destination == two
    assert requests.is_ready(2, 0)
    assert requests.complete(0, is_failed=False, now_ms=0) is None


def test_a_request_of_an_earlier_state_does_not_keep_a_node_busy() -> None:
    requests, quorum = manager()
    destination = Destination(2, "host", 9002)
    requests.send(destination, VoteRequest())
    quorum.state = Unattached(2, -1, None, 100)
    assert requests.is_ready(2, 0)
    requests.send(destination, VoteRequest())
    assert requests.complete(0, is_failed=False, now_ms=0) is not None
    assert requests.is_busy(2)


def test_a_failure_backs_off() -> None:
    requests, _ = manager()
    requests.send(Destination(2, "host", 9002), VoteRequest())
    requests.complete(0, is_failed=True, now_ms=1000)
    assert requests.ready_at_ms(2) == 1020
    assert [requests.is_ready(2, now_ms) for now_ms in (1000, 1019, 1020)] == [False, False, True]


def test_bootstrap_servers_are_the_others() -> None:
    requests, _ = manager(("host", 9001), ("host", 9002), ("h", 1))
    found = {requests.bootstrap_server(0) for _ in range(50)}
    assert found == {Destination(-3, "host", 9002), Destination(-4, "h", 1)}
    requests.back_off(-3, 0)
    assert {requests.bootstrap_server(0) for _ in range(50)} == {Destination(-4, "h", 1)}
    assert requests.bootstrap_ready_at_ms() == 20


def test_static_voters_are_the_bootstrap_servers_of_a_static_quorum() -> None:
    requests, _ = manager()
    found = {requests.bootstrap_server(0) for _ in range(50)}
    assert found == {Destination(-2, "host", 9002), Destination(-3, "host", 9003)}
    assert requests.destination(7) is None
