"""The channel between nodes: requests out, a `Deferred` response back, on the loop thread.

A connection per (node, purpose), so that a Fetch that waits at the leader delays no Vote. After a
connection fails, requests to its node fail at once until the back-off is over: the caller decides
when to try again, and may try another node meanwhile. No I/O and no clock of its own: `streams`
and `ports.Timers`.
"""

from __future__ import annotations

from typing import Final, TypeVar, cast

from kbroker.client.channel.node_connection import ConnectionState, NodeConnection
from kbroker.client.channel.reconnect_backoff import ReconnectBackoff
from kbroker.client.channel.streams import StreamOpener
from kbroker.client.cluster_view import BrokerAddress
from kbroker.client.node_api_versions import NodeApiVersions
from kbroker.ports import Deferred, Random, Timers
from kbroker.protocol.apis import response_class
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError

R = TypeVar("R", bound=Response)

RECONNECT_BACKOFF_MS: Final = 50
RECONNECT_BACKOFF_MAX_MS: Final = 500
CONNECT_TIMEOUT_MS: Final = 10_000
"""Kafka's reconnect back-off between nodes, and socket.connection.setup.timeout.ms."""

MAX_REQUESTS_PER_CONNECTION: Final = 1_000


class Channel:
    """Of one node to all others. `close` ends it; nothing is sent afterwards."""

    def __init__(
        self,
        opener: StreamOpener,
        timers: Timers,
        random: Random,
        *,
        client_id: str,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        backoff_ms: int = RECONNECT_BACKOFF_MS,
        backoff_max_ms: int = RECONNECT_BACKOFF_MAX_MS,
    ) -> None:
        self._opener = opener
        self._timers = timers
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff = ReconnectBackoff(random, base_ms=backoff_ms, max_ms=backoff_max_ms)
        self._connections: dict[tuple[int, str], NodeConnection] = {}
        self._is_closed = False

    def send(
        self,
        node: BrokerAddress,
        purpose: str,
        request: Request,
        response_type: type[R],
        *,
        timeout_ms: int,
        max_version: int | None = None,
    ) -> Deferred[R]:
        """Send a request to a node and return its response, which is of response_type.

        purpose: requests with the same one share a connection and are answered in order. The
        version is the highest that both sides support, up to max_version. Fails with KafkaError:
        NETWORK_EXCEPTION if the node is not connected, disconnects, or is backed off from (then the
        failure is immediate); REQUEST_TIMED_OUT; UNSUPPORTED_VERSION. The caller checks the error
        codes inside the response.
        """
        if response_class(request.API_KEY) is not response_type:
            raise TypeError(f"{type(request).__name__} is not answered by {response_type.__name__}")
        if self._is_closed:
            return Deferred.failed(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the channel is closed"))
        connection = self._connection(node, purpose)
        if connection is None:
            left_ms = self.backoff_ms(node.node_id)
            return Deferred.failed(_refusal(node, f"no new connection for {left_ms} ms"))
        if connection.request_count >= MAX_REQUESTS_PER_CONNECTION:
            reason = f"{connection.request_count} requests wait for an answer"
            return Deferred.failed(_refusal(node, reason))
        response = connection.send(request, timeout_ms=timeout_ms, max_version=max_version)
        return cast("Deferred[R]", response)

    def api_versions_of(self, node: BrokerAddress) -> NodeApiVersions | None:
        """What the node serves, as it said on a connection that is open; None if there is none."""
        for (node_id, _), connection in self._connections.items():
            if node_id == node.node_id and connection.address == node:
                versions = connection.api_versions
                if versions is not None:
                    return versions
        return None

    def backoff_ms(self, node_id: int) -> int:
        """How long requests to the node fail at once if it is not connected; 0 if they do not."""
        return self._backoff.remaining_ms(node_id, self._timers.monotonic_ms())

    def disconnect_purpose(self, node_id: int, purpose: str) -> None:
        """Close the connection of one purpose; what is in flight on it fails."""
        connection = self._connections.pop((node_id, purpose), None)
        if connection is not None:
            connection.close("disconnected")

    def disconnect(self, node_id: int) -> None:
        """The node left the cluster: close its connections and forget its back-off."""
        for key in [key for key in self._connections if key[0] == node_id]:
            self._connections.pop(key).close("disconnected")
        self._backoff.forget(node_id)

    def close(self) -> None:
        """Close every connection; what is in flight fails."""
        self._is_closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close("the channel is closed")

    def _connection(self, node: BrokerAddress, purpose: str) -> NodeConnection | None:
        """The open connection, or a new one; None while the node is backed off from."""
        key = node.node_id, purpose
        connection = self._connections.get(key)
        if connection is not None and connection.address != node:
            self.disconnect(node.node_id)  # the node listens elsewhere now
            connection = None
        if connection is not None and connection.state is not ConnectionState.CLOSED:
            return connection
        if self.backoff_ms(node.node_id):
            return None
        connection = NodeConnection(
            node,
            self._opener,
            self._timers,
            client_id=self._client_id,
            connect_timeout_ms=self._connect_timeout_ms,
            on_ready=lambda ready: self._backoff.succeeded(ready.address.node_id),
            on_lost=lambda lost: self._lost(key, lost),
        )
        self._connections[key] = connection
        return connection

    def _lost(self, key: tuple[int, str], connection: NodeConnection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]
            self._backoff.failed(key[0], self._timers.monotonic_ms())


def _refusal(node: BrokerAddress, reason: str) -> KafkaError:
    where = f"node {node.node_id} at {node.host}:{node.port}"
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{where}: {reason}")
