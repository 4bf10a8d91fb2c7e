"""Requests of a node for the active controller, over the wire (NodeToControllerChannelManager of
Kafka).

Each goes to the leader of the metadata quorum as this node knows it, on a connection of its own
purpose, over the channel between nodes. Nothing is tried again here: the caller decides when, since
another controller may lead by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kbroker.client.cluster_view import BrokerAddress
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import Request, Response

if TYPE_CHECKING:
    from kbroker.client.channel.channel import Channel

PURPOSE: Final = "controller"

R = TypeVar("R", bound=Response)


class ControllerEndpoint(Protocol):
    """Where a controller listener is reached."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class ControllerRequests:
    """Of one node. open_channel: called with the first request. leader: its id, -1 while none is
    known, and its controller listeners. listener_name: the one to use, the first of
    controller.listener.names. Loop thread only.
    """

    def __init__(
        self,
        open_channel: Callable[[], Channel],
        leader: Callable[[], tuple[int, Sequence[ControllerEndpoint]]],
        *,
        listener_name: str,
        timeout_ms: int,
    ) -> None:
        self._open_channel = open_channel
        self._leader = leader
        self._listener_name = listener_name
        self._timeout_ms = timeout_ms
        self._channel: Channel | None = None
        self._is_closed = False

    def send(self, request: Request, response_type: type[R]) -> Deferred[R]:
        """Send a request to the active controller; the caller checks the error codes inside the
        response. Fails with NOT_CONTROLLER while no controller is known, otherwise as
        `Channel.send` does.
        """
        leader_id, endpoints = self._leader()
        for endpoint in endpoints:
            if leader_id >= 0 and endpoint.name == self._listener_name and not self._is_closed:
                address = BrokerAddress(leader_id, endpoint.host, endpoint.port)
                return self._opened().send(
                    address, PURPOSE, request, response_type, timeout_ms=self._timeout_ms
                )
        return Deferred.failed(
            KafkaError(ErrorCode.NOT_CONTROLLER, "no active controller is known")
        )

    def close(self) -> None:
        """Send nothing more; what is in flight fails."""
        self._is_closed = True
        if self._channel is not None:
            self._channel.close()

    def _opened(self) -> Channel:
        if self._channel is None:
            self._channel = self._open_channel()
        return self._channel
