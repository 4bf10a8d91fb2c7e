"""One connection of the channel: connect, learn the API versions, then requests and responses.

    from          event                              to
    connecting    connected                          negotiating (ApiVersions is sent)
    negotiating   ApiVersions answered               ready (the requests that waited are sent)
    any           deadline, loss, malformed bytes    closed (every request fails)

Requests that are made before it is ready wait; their deadlines count from the start. A request that
was sent and reaches its deadline ends the connection: the peer, or the way to it, is dead, and the
responses behind that one would be late too.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import cast

from kbroker.client.channel.streams import Stream, StreamOpener
from kbroker.client.cluster_view import BrokerAddress
from kbroker.client.in_flight import Frame, InFlightRequests
from kbroker.client.node_api_versions import (
    FIRST_VERSION,
    NodeApiVersions,
    api_versions_request,
    retry_version,
)
from kbroker.model import InvariantError
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.api_versions import ApiVersionsResponse


class ConnectionState(Enum):
    """See the module."""

    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    READY = "ready"
    CLOSED = "closed"


class PendingRequest:
    """A request of a caller. result: fails with NETWORK_EXCEPTION, REQUEST_TIMED_OUT or
    UNSUPPORTED_VERSION.
    """

    __slots__ = ("max_version", "request", "result", "timer")

    def __init__(self, request: Request, max_version: int | None) -> None:
        self.request = request
        self.max_version = max_version
        self.result: Deferred[Response] = Deferred()
        self.timer: TimerHandle | None = None

    def resolve(self, response: Response) -> None:
        """The response has arrived."""
        self._end()
        if not self.result.done:
            self.result.resolve(response)

    def fail(self, error: KafkaError) -> None:
        """There will be no response; no effect once there was an outcome."""
        self._end()
        if not self.result.done:
            self.result.fail(error)

    def _end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class NodeConnection:
    """address: of the peer. on_ready, on_lost: called with this connection, once each at most, the
    latter before its requests fail. connect_timeout_ms: for the connection and ApiVersions.
    """

    __slots__ = (
        "_in_flight",
        "_name",
        "_on_lost",
        "_on_ready",
        "_setup_timer",
        "_stream",
        "_timers",
        "_versions",
        "_waiting",
        "address",
        "state",
    )

    def __init__(
        self,
        address: BrokerAddress,
        opener: StreamOpener,
        timers: Timers,
        *,
        client_id: str,
        connect_timeout_ms: int,
        on_ready: Callable[[NodeConnection], None],
        on_lost: Callable[[NodeConnection], None],
    ) -> None:
        self.state = ConnectionState.CONNECTING
        self.address = address
        self._name = f"node {address.node_id} at {address.host}:{address.port}"
        self._timers = timers
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._in_flight = InFlightRequests(client_id)
        self._versions: NodeApiVersions | None = None
        self._waiting: dict[PendingRequest, None] = {}
        self._setup_timer = timers.call_later(
            connect_timeout_ms, lambda: self.connection_lost("no answer to the connection attempt")
        )
        self._stream: Stream = opener(address.host, address.port, self)

    @property
    def api_versions(self) -> NodeApiVersions | None:
        """What the peer serves, once it is known."""
        return self._versions

    @property
    def request_count(self) -> int:
        """How many requests have no outcome yet."""
        return len(self._waiting) + len(self._in_flight)

    def send(
        self, request: Request, *, timeout_ms: int, max_version: int | None
    ) -> Deferred[Response]:
        """Send a request, at once or when the connection is ready."""
        pending = PendingRequest(request, max_version)
        pending.timer = self._timers.call_later(timeout_ms, lambda: self._timed_out(pending))
        if self.state is ConnectionState.READY:
            self._send(pending)
        else:
            self._waiting[pending] = None
        return pending.result

    def close(self, reason: str) -> None:
        """Close the connection; every request fails."""
        self._close(reason)

    # -- streams.StreamReceiver -------------------------------------------------------------------

    def connected(self) -> None:
        """The stream is open: ask for the API versions."""
        if self.state is ConnectionState.CONNECTING:
            self.state = ConnectionState.NEGOTIATING
            self._negotiate(FIRST_VERSION)

    def data_received(self, data: bytes) -> None:
        """Bytes of responses have arrived; malformed ones end the connection."""
        if self.state is not ConnectionState.CLOSED:
            try:
                self._in_flight.receive(data)
            except MalformedRequest as error:
                self.connection_lost(str(error))

    def connection_lost(self, reason: str) -> None:
        """The connection was closed, or could not be made."""
        if self.state is not ConnectionState.CLOSED:
            self.state = ConnectionState.CLOSED
            self._on_lost(self)
            self._close(reason)

    # -- steps ------------------------------------------------------------------------------------

    def _negotiate(self, version: int) -> None:
        frame, response = self._in_flight.add(api_versions_request(), version)
        response.on_done(
            lambda value: self._negotiated(cast(ApiVersionsResponse, value), version),
            lambda error: None,  # the connection is closed
        )
        self._write(frame)

    def _negotiated(self, response: ApiVersionsResponse, version: int) -> None:
        retried = retry_version(response)
        if retried is not None and version == FIRST_VERSION:
            self._negotiate(retried)
            return
        try:
            self._versions = NodeApiVersions(self._name, response)
        except KafkaError as error:
            self.connection_lost(str(error))
            return
        self.state = ConnectionState.READY
        self._setup_timer.cancel()
        self._on_ready(self)
        waiting, self._waiting = self._waiting, {}
        for pending in waiting:
            if self.state is ConnectionState.READY:
                self._send(pending)
            else:
                pending.fail(self._network_error("connection lost"))

    def _send(self, pending: PendingRequest) -> None:
        versions = self._versions
        if versions is None:
            raise InvariantError(f"{self._name}: a request is sent before ApiVersions is answered")
        try:
            version = versions.version_of(pending.request.API_KEY, pending.max_version)
            frame, response = self._in_flight.add(pending.request, version)
        except KafkaError as error:  # no common version, or a field that the version lacks
            pending.fail(error)
            return
        response.on_done(pending.resolve, pending.fail)
        self._write(frame)

    def _write(self, frame: Frame) -> None:
        for part in frame:
            self._stream.write(part)

    def _timed_out(self, pending: PendingRequest) -> None:
        name = ApiKey(pending.request.API_KEY).name
        is_sent = pending not in self._waiting
        self._waiting.pop(pending, None)
        if is_sent:
            self.state = ConnectionState.CLOSED
            self._on_lost(self)
        pending.fail(
            KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self._name}: no answer to {name} in time")
        )
        if is_sent:
            self._close(f"no answer to {name} in time")

    def _close(self, reason: str) -> None:
        self.state = ConnectionState.CLOSED
        self._setup_timer.cancel()
        self._stream.close()
        error = self._network_error(reason)
        waiting, self._waiting = self._waiting, {}
        self._in_flight.fail_all(error)
        for pending in waiting:
            pending.fail(error)

    def _network_error(self, reason: str) -> KafkaError:
        return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self._name}: {reason}")
