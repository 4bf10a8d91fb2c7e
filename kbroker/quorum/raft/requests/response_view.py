"""Error, epoch and leader in the responses of the quorum's APIs, independent of their class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.quorum import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponse,
    UpdateRaftVoterResponse,
    VoteResponse,
)
from kbroker.quorum.raft.effects import RaftResponse
from kbroker.quorum.raft.requests.messages import (
    fetched_partition,
    fetched_snapshot_partition,
    metadata_partition,
)
from kbroker.quorum.raft.states.epoch_states import Endpoints
from kbroker.quorum.raft.voters.voter_set import VoterEndpoint


class ResponseView(NamedTuple):
    """The fields that the responses of the epoch's APIs share. endpoints: those of the leader, for
    the listener to which the request was sent; empty if the response has none.
    """

    error: ErrorCode
    epoch: int
    leader_id: int
    endpoints: Endpoints


class _NodeEndpoint(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


def view_response(response: RaftResponse, listener_name: str) -> ResponseView | None:
    """Error, epoch and leader of a response; None for a response of another API, or without the
    metadata partition.
    """
    match response:
        case VoteResponse():
            partition: _LeaderPartition | None = metadata_partition(response.topics)
        case BeginQuorumEpochResponse():
            partition = metadata_partition(response.topics)
        case EndQuorumEpochResponse():
            partition = metadata_partition(response.topics)
        case FetchResponse():
            fetched = fetched_partition(response)
            if fetched is None:
                return None
            leader, error = fetched.current_leader, fetched.error_code
            return ResponseView(
                _error(error),
                leader.leader_epoch,
                leader.leader_id,
                _endpoints(leader.leader_id, response.node_endpoints, listener_name),
            )
        case FetchSnapshotResponse():
            snapshot = fetched_snapshot_partition(response)
            if snapshot is None:
                return None
            return ResponseView(
                _error(snapshot.error_code),
                snapshot.current_leader.leader_epoch,
                snapshot.current_leader.leader_id,
                _endpoints(
                    snapshot.current_leader.leader_id, response.node_endpoints, listener_name
                ),
            )
        case UpdateRaftVoterResponse():
            named = response.current_leader
            endpoint = VoterEndpoint(listener_name, named.host, named.port)
            return ResponseView(
                _error(response.error_code),
                named.leader_epoch,
                named.leader_id,
                (endpoint,) if named.host else (),
            )
        case _:
            return None
    if partition is None:
        return None
    return ResponseView(
        _error(partition.error_code),
        partition.leader_epoch,
        partition.leader_id,
        _endpoints(partition.leader_id, response.node_endpoints, listener_name),
    )


class _LeaderPartition(Protocol):
    @property
    def error_code(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def leader_id(self) -> int: ...


def _error(code: int) -> ErrorCode:
    """The error code; UNKNOWN_SERVER_ERROR for a code of a later release."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _endpoints(leader_id: int, nodes: Sequence[_NodeEndpoint], listener_name: str) -> Endpoints:
    return tuple(
        VoterEndpoint(listener_name, node.host, node.port)
        for node in nodes
        if node.node_id == leader_id
    )
