"""APIs of the metadata quorum on the listeners of controllers: the driver's core answers them
(`kbroker/quorum`), at once or later. Brokers forward DescribeQuorum, AddRaftVoter and
RemoveRaftVoter to the active controller.

Vote v0-2 (v1: directory ids, KIP-853; v2: pre-vote, KIP-996), BeginQuorumEpoch v0-1 and
EndQuorumEpoch v0-1 (v1: directory ids and endpoints), Fetch v4-18 of `__cluster_metadata` (v12:
divergence, KIP-595; v17: directory ids; v18: the fetcher's high watermark, KIP-1166), FetchSnapshot
v0-1 (KIP-630), DescribeQuorum v0-2 (v1: times of fetches, KIP-836; v2: directory ids and nodes),
AddRaftVoter v0-1 (v1: ack when written), RemoveRaftVoter v0, UpdateRaftVoter v0 (KIP-853).

A Fetch of another partition is INVALID_REQUEST. A controller that is starting or stopping answers
BROKER_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.pieces import merge, pieces
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.quorum import (
    AddRaftVoterResponse,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponse,
    RemoveRaftVoterResponse,
    UpdateRaftVoterResponse,
    VoteResponse,
)
from kbroker.quorum.raft.effects import RaftRequest
from kbroker.quorum.raft.requests.messages import metadata_partition, refused_partitions
from kbroker.server.api_handler import REFUSED_ITEMS, ApiHandler
from kbroker.server.policies.administration import QUORUM as POLICIES
from kbroker.server.requests import HandlerSteps, Outcome, RequestContext
from kbroker.server.services import ControllerServices

_PARTITIONS: Final = ("topics", "partitions")
"""Of a DescribeQuorum request, and of its response."""


def handle_raft_request(
    services: ControllerServices, context: RequestContext, request: RaftRequest
) -> Outcome:
    """Hand a request to the quorum."""
    return services.quorum.handle(
        request, listener_name=context.session.listener_name, version=context.api_version
    )


def describe_quorum_in_steps(
    services: ControllerServices, context: RequestContext, request: DescribeQuorumRequest
) -> HandlerSteps:
    """The same for a large DescribeQuorum, which names more than the one partition there is: each
    one is refused, as the quorum refuses them in a small request.
    """
    if metadata_partition(request.topics) is not None:
        return handle_raft_request(services, context, request)
    total: DescribeQuorumResponse | None = None
    for piece, continued in pieces(request, _PARTITIONS, REFUSED_ITEMS):
        refused = refused_partitions(piece, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if total is None:
            total = refused
        else:
            merge(total, refused, _PARTITIONS, continued)
        yield None
    return total


# Any: each API has a request class of its own
def _error_code(response: Callable[..., Message]) -> Callable[[Any, ErrorCode, str], Message]:
    """The error response of an API whose response has an error code only."""

    def error_response(request: Any, error: ErrorCode, message: str) -> Message:
        del request, message
        return response(error_code=error)

    return error_response


def _error_message(response: Callable[..., Message]) -> Callable[[Any, ErrorCode, str], Message]:
    """As `_error_code`, with a message."""

    def error_response(request: Any, error: ErrorCode, message: str) -> Message:
        del request
        return response(error_code=error, error_message=message or None)

    return error_response


def _api(
    api_key: ApiKey,
    error_response: Callable[[Any, ErrorCode, str], Message],
    steps: Callable[[ControllerServices, RequestContext, Any], HandlerSteps] | None = None,
) -> ApiHandler[ControllerServices]:
    return ApiHandler(api_key, handle_raft_request, error_response, POLICIES[api_key], steps=steps)


HANDLERS: tuple[ApiHandler[ControllerServices], ...] = (
    _api(ApiKey.VOTE, _error_code(VoteResponse)),
    _api(ApiKey.BEGIN_QUORUM_EPOCH, _error_code(BeginQuorumEpochResponse)),
    _api(ApiKey.END_QUORUM_EPOCH, _error_code(EndQuorumEpochResponse)),
    _api(ApiKey.FETCH, _error_code(FetchResponse)),
    _api(ApiKey.FETCH_SNAPSHOT, _error_code(FetchSnapshotResponse)),
    _api(ApiKey.DESCRIBE_QUORUM, _error_message(DescribeQuorumResponse), describe_quorum_in_steps),
    _api(ApiKey.ADD_RAFT_VOTER, _error_message(AddRaftVoterResponse)),
    _api(ApiKey.REMOVE_RAFT_VOTER, _error_message(RemoveRaftVoterResponse)),
    _api(ApiKey.UPDATE_RAFT_VOTER, _error_code(UpdateRaftVoterResponse)),
)
