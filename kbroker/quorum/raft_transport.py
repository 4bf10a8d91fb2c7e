"""Sends the core's requests (Send) over the channel between nodes.

Fetch and FetchSnapshot have a separate connection: a Fetch that is parked at the leader must not
delay a Vote. The channel's errors are translated to those of the core.
"""

from __future__ import annotations

from typing import Final, cast

from kbroker.client.channel.channel import Channel
from kbroker.client.cluster_view import BrokerAddress
from kbroker.client.node_api_versions import api_versions_request
from kbroker.ports import Deferred
from kbroker.protocol.apis import response_class
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.quorum import FetchSnapshotRequest
from kbroker.quorum.raft.effects import RaftResponse, Send

FETCH: Final = "quorum fetch"
VOTING: Final = "quorum"
"""Purposes of connections; see `Channel.send`."""


class RaftTransport:
    """The transport of one node. It owns the channel: `close` closes it."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send(self, effect: Send) -> Deferred[RaftResponse]:
        """Send a request. Fails with an error of `RaftNode.request_failed`: BROKER_NOT_AVAILABLE,
        REQUEST_TIMED_OUT or UNSUPPORTED_VERSION.
        """
        request = effect.request
        if isinstance(request, ApiVersionsRequest):
            request = api_versions_request()  # rejected without the name of the client software
        is_fetch = isinstance(request, FetchRequest | FetchSnapshotRequest)
        destination = effect.destination
        answer = self._channel.send(
            BrokerAddress(destination.node_id, destination.host, destination.port),
            FETCH if is_fetch else VOTING,
            request,
            response_class(request.API_KEY),
            timeout_ms=effect.timeout_ms,
        )
        return cast("Deferred[RaftResponse]", answer).recover(_core_error)

    def close(self) -> None:
        """Close every connection; requests in flight fail."""
        self._channel.close()


def _core_error(error: KafkaError) -> Deferred[RaftResponse]:
    if error.code is ErrorCode.NETWORK_EXCEPTION:
        error = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, error.message)
    return Deferred.failed(error)
