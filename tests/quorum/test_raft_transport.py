"""Send effects over the channel, on the simulated network: purposes, failures, the right names."""

from __future__ import annotations

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from kbroker.quorum.raft.effects import Destination, RaftRequest, RaftResponse, Send
from kbroker.quorum.raft_transport import RaftTransport
from tests.client.channel.peers import SILENT, Peer, SimWorld, channel_of

VOTE = VoteRequest(cluster_id="c", voter_id=1, topics=[])
QUORUM_APIS = (ApiKey.VOTE, ApiKey.FETCH_SNAPSHOT)


class World:
    """One node that sends to a peer."""

    def __init__(self) -> None:
        self.world = SimWorld()
        self.peer: Peer = self.world.peer(1)
        self.peer.versions |= {int(key): valid_versions(key) for key in QUORUM_APIS}
        self.transport = RaftTransport(channel_of(self.world))
        self._number = 0

    def send(
        self, request: RaftRequest, node_id: int = 1, timeout_ms: int = 5_000
    ) -> Deferred[RaftResponse]:
        self._number += 1
        destination = Destination(node_id, "sim", node_id)
        return self.transport.send(Send(self._number, destination, request, timeout_ms))

    def outcome(self, answer: Deferred[RaftResponse]) -> RaftResponse | ErrorCode:
        self.world.until(lambda: answer.done)
        return answer.value if answer.error is None else answer.error.code


def test_a_parked_fetch_delays_no_vote() -> None:
    world = World()
    world.peer.script(ApiKey.FETCH, SILENT)
    world.peer.script(ApiKey.VOTE, VoteResponse(error_code=ErrorCode.INVALID_REQUEST))
    world.peer.script(ApiKey.FETCH_SNAPSHOT, FetchSnapshotResponse())
    fetch = world.send(FetchRequest())
    vote = world.outcome(world.send(VOTE))
    assert vote == VoteResponse(error_code=ErrorCode.INVALID_REQUEST) and not fetch.done
    world.send(FetchSnapshotRequest())
    world.world.until(lambda: world.peer.asked(ApiKey.FETCH_SNAPSHOT))
    connections = [world.peer.asked(key)[0][0] for key in (ApiKey.FETCH, *QUORUM_APIS)]
    assert connections[0] == connections[2] != connections[1]


def test_failures_are_those_that_the_core_knows() -> None:
    world = World()
    assert world.outcome(world.send(VOTE, 9)) is ErrorCode.BROKER_NOT_AVAILABLE
    world.peer.script(ApiKey.VOTE, SILENT)
    assert world.outcome(world.send(VOTE, timeout_ms=100)) is ErrorCode.REQUEST_TIMED_OUT
    world.peer.versions.pop(int(ApiKey.VOTE))
    world.world.until(lambda: not world.transport._channel.backoff_ms(1))
    assert world.outcome(world.send(VOTE)) is ErrorCode.UNSUPPORTED_VERSION
    world.transport.close()
    assert world.outcome(world.send(VOTE)) is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_question_for_versions_names_the_software() -> None:
    world = World()
    assert isinstance(world.outcome(world.send(ApiVersionsRequest())), ApiVersionsResponse)
    names = [
        request.client_software_name
        for _, _, request in world.peer.requests
        if isinstance(request, ApiVersionsRequest)
    ]
    assert len(names) == 2 and set(names) == {"kbroker"}


def test_a_pre_vote_to_a_node_that_knows_none_is_not_supported() -> None:
    world = World()
    world.peer.versions[int(ApiKey.VOTE)] = (0, 1)
    partition = VoteRequest.PartitionData(partition_index=0, pre_vote=True)
    topic = VoteRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    request = VoteRequest(cluster_id="c", voter_id=1, topics=[topic])
    for _ in range(2):  # before the connection is ready, and then
        assert world.outcome(world.send(request)) is ErrorCode.UNSUPPORTED_VERSION
    world.peer.script(ApiKey.VOTE, VoteResponse())
    assert world.outcome(world.send(VOTE)) == VoteResponse()
