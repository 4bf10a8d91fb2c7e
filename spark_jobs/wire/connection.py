"""One connection to one broker on a blocking socket: requests out, responses in their order.

For Spark's tasks and drivers, which run no event loop; `kbroker.client` has the same for asyncio.
Which broker to talk to, and when to try again, is in `client`.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, Self, TypeVar, cast

from kbroker.client.node_api_versions import (
    FIRST_VERSION,
    NodeApiVersions,
    api_versions_request,
    retry_version,
)
from kbroker.protocol.apis import ApiKey, response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

R = TypeVar("R", bound=Response)

OpenSocket = Callable[[str, int, float], socket.socket]
"""Opens a socket to (host, port) within so many seconds. It must be picklable, since tasks open
sockets too: a module-level function, or an object with `__call__`. A function that negotiates TLS
or SASL before it returns the socket is how a secured cluster is reached.
"""

MAX_RESPONSE_BYTES: Final = 128 * 1024 * 1024


def open_plain_socket(host: str, port: int, timeout_s: float) -> socket.socket:
    """A socket without TLS and SASL."""
    opened = socket.create_connection((host, port), timeout_s)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


class Connection(Protocol):
    """A connection as `client` needs it; tests have one without a socket."""

    is_closed: bool

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version that both sides support, up to max_version."""
        ...

    def send(self, request: Request, version: int) -> int:
        """Send a request; returns its correlation id."""
        ...

    def receive(self, correlation_id: int, response_type: type[R]) -> R:
        """Wait for the response of a request that was sent."""
        ...

    def close(self) -> None:
        """Close at once."""
        ...


class _Sent(NamedTuple):
    correlation_id: int
    api_key: int
    version: int


class BrokerSocket:
    """An open connection. Brokers answer the requests of a connection in order, so that several may
    be under way.
    """

    def __init__(
        self, opened: socket.socket, address: str, client_id: str, *, request_timeout_s: float
    ) -> None:
        self.is_closed = False
        self._socket = opened
        self._address = address
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._next_id = 0
        self._sent: deque[_Sent] = deque()
        self._received: dict[int, Response] = {}
        self._versions: NodeApiVersions | None = None

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        client_id: str,
        *,
        open_socket: OpenSocket = open_plain_socket,
        connect_timeout_s: float,
        request_timeout_s: float,
    ) -> Self:
        """Open a connection and agree on versions. Raises KafkaError(NETWORK_EXCEPTION)."""
        address = f"{host}:{port}"
        try:
            opened = open_socket(host, port, connect_timeout_s)
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{address}: {reason(error)}") from None
        except UnicodeError as error:  # of getaddrinfo, for what cannot be a name
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION, f"{address}: {no_host_name(error)}"
            ) from None
        connection = cls(opened, address, client_id, request_timeout_s=connect_timeout_s)
        try:
            connection._negotiate()
        except BaseException:
            connection.close()
            raise
        connection._request_timeout_s = request_timeout_s
        return connection

    def _negotiate(self) -> None:
        """ApiVersions in our highest version, and again in an older one if the broker refused that
        (KIP-511).
        """
        response = self._exchange(api_versions_request(), FIRST_VERSION)
        version = retry_version(response)
        if version is not None:
            response = self._exchange(api_versions_request(), version)
        self._versions = NodeApiVersions(self._address, response)

    def _exchange(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        return self.receive(self.send(request, version), ApiVersionsResponse)

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """See `Connection`. Raises KafkaError(UNSUPPORTED_VERSION) if there is none."""
        assert self._versions is not None  # `connect` has agreed on them
        return self._versions.version_of(api_key, max_version)

    def send(self, request: Request, version: int) -> int:
        """See `Connection`. Raises KafkaError(NETWORK_EXCEPTION)."""
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request_frame(request, version, correlation_id, self._client_id)
        frame = b"".join(cast("list[bytes]", parts))  # no file ranges are sent from here
        try:
            self._socket.settimeout(self._request_timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            raise self._broken(reason(error)) from None
        self._sent.append(_Sent(correlation_id, request.API_KEY, version))
        return correlation_id

    def receive(self, correlation_id: int, response_type: type[R]) -> R:
        """See `Connection`. Responses of requests sent before it are kept for their own `receive`.

        Raises KafkaError of NETWORK_EXCEPTION or REQUEST_TIMED_OUT; the connection is closed then.
        """
        deadline = time.monotonic() + self._request_timeout_s
        while correlation_id not in self._received:
            if not self._sent:
                raise self._broken("the connection was closed before the response")
            self._receive_next(deadline)
        response = self._received.pop(correlation_id)
        if not isinstance(response, response_type):
            raise TypeError(f"{type(response).__name__} is not a {response_type.__name__}")
        return response

    def _receive_next(self, deadline: float) -> None:
        sent = self._sent.popleft()
        size = int.from_bytes(self._read(4, deadline, sent), "big", signed=True)
        if not 4 <= size <= MAX_RESPONSE_BYTES:
            raise self._broken(f"a response of {size} bytes")
        frame = bytes(self._read(size, deadline, sent))
        try:
            received_id, position = decode_response_header(frame, sent.api_key, sent.version)
            if received_id != sent.correlation_id:
                raise MalformedRequest(f"correlation id {received_id}")
            version = sent.version
            if sent.api_key == ApiKey.API_VERSIONS and _is_refused_version(frame, position):
                version = 0
            response, _ = decode(response_class(sent.api_key), frame, version, position)
        except MalformedRequest as error:
            raise self._broken(f"malformed response: {error}") from None
        self._received[sent.correlation_id] = response

    def _read(self, count: int, deadline: float, sent: _Sent) -> bytearray:
        """Exactly count bytes; memory is taken as they arrive."""
        data = bytearray()
        try:
            while len(data) < count:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                self._socket.settimeout(left_s)
                chunk = self._socket.recv(min(count - len(data), 1024 * 1024))
                if not chunk:
                    raise self._broken("the broker closed the connection")
                data += chunk
        except TimeoutError:
            self.close()
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._address}: no response to {ApiKey(sent.api_key).name} "
                f"within {self._request_timeout_s:g} s",
            ) from None
        except OSError as error:
            raise self._broken(reason(error)) from None
        return data

    def _broken(self, why: str) -> KafkaError:
        self.close()
        return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self._address}: {why}")

    def close(self) -> None:
        """See `Connection`. No effect when closed already."""
        if not self.is_closed:
            self.is_closed = True
            self._sent.clear()
            self._socket.close()


def _is_refused_version(frame: bytes, position: int) -> bool:
    """Whether an ApiVersions response is a refusal, which has the layout of version 0."""
    code = int.from_bytes(frame[position : position + 2], "big", signed=True)
    return code == ErrorCode.UNSUPPORTED_VERSION


def no_host_name(error: UnicodeError) -> str:
    """What is said of a host that cannot be looked up: an empty label, or one that is too long."""
    return f"this is no host name ({error})"


def reason(error: OSError) -> str:
    """The cause of a socket's failure, without its number."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror) or error.errno is None or error.errno <= 0:
        return error.strerror or str(error)
    return os.strerror(error.errno)
