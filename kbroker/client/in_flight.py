"""The requests of one connection that wait for their responses: frames out, responses matched by
correlation id. No I/O, no clock.

`connection.BrokerConnection` (coroutines) and `channel` (callbacks) stand on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, response_class
from kbroker.protocol.codecs.codec import decode, part_size
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import decode_response_header, encode_request_frame

MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
_ID_BYTES: Final = 4
_OTHER_PROTOCOLS: Final[Mapping[bytes, str]] = {b"HTTP": "HTTP", b"SSH-": "SSH"}
"""How servers that are no brokers begin what they send."""

Frame = list[bytes | bytearray | memoryview]
"""A request as pieces to be sent one after the other."""


class _InFlight:
    """A request that waits for its response."""

    __slots__ = ("api_key", "response", "version")

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self.response: Deferred[Response] = Deferred()


class InFlightRequests:
    """Of one connection. max_response_bytes: a response that claims more ends the connection."""

    __slots__ = ("_client_id", "_in_flight", "_max_response_bytes", "_next_id", "_received")

    def __init__(
        self, client_id: str | None, *, max_response_bytes: int = MAX_RESPONSE_BYTES
    ) -> None:
        self._client_id = client_id
        self._max_response_bytes = max_response_bytes
        self._in_flight: dict[int, _InFlight] = {}
        self._next_id = 0
        self._received = bytearray()

    def __len__(self) -> int:
        return len(self._in_flight)

    def encode(self, request: Request, version: int) -> Frame:
        """A request that is never answered: Produce with acks=0."""
        return self._encode(request, version)[1]

    def add(self, request: Request, version: int) -> tuple[Frame, Deferred[Response]]:
        """A request to be sent now, and its response."""
        correlation_id, frame = self._encode(request, version)
        waiting = self._in_flight[correlation_id] = _InFlight(request.API_KEY, version)
        return frame, waiting.response

    def _encode(self, request: Request, version: int) -> tuple[int, Frame]:
        correlation_id = self._next_id
        frame: Frame = []
        for part in encode_request_frame(request, version, correlation_id, self._client_id):
            if not isinstance(part, bytes | bytearray | memoryview):
                raise ValueError(f"a client has no file ranges to send ({part_size(part)} bytes)")
            frame.append(part)
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id, frame

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes have arrived: resolve the requests whose responses are complete, in their order.
        What a response has of records are views on them, without a copy.

        Raises MalformedRequest for bytes that are no response; the connection is unusable then.
        """
        pending: bytes | bytearray = self._received
        if pending:
            self._received += data
        else:
            pending = data if type(data) is bytes else bytes(data)
        view = memoryview(pending)
        position = 0
        try:
            while len(pending) - position >= 4:
                size = int.from_bytes(pending[position : position + 4], "big", signed=True)
                if not _ID_BYTES <= size <= self._max_response_bytes:
                    raise MalformedRequest(
                        f"a response of {size} bytes{_seems(view[position : position + 4])}"
                    )
                begin, end = position + 4, position + 4 + size
                if end > len(pending):
                    break
                position = end
                self._resolve(view[begin:end])
        finally:
            if position or pending is not self._received:
                self._received = bytearray(view[position:])  # the views keep the old one

    def _resolve(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:_ID_BYTES], "big", signed=True)
        waiting = self._in_flight.get(correlation_id)
        if waiting is None:
            raise MalformedRequest(f"a response to no request: correlation id {correlation_id}")
        response = _decode(frame, waiting.api_key, waiting.version)
        del self._in_flight[correlation_id]
        waiting.response.resolve(response)

    def fail_all(self, error: KafkaError) -> None:
        """The connection is closed: fail every request that waits."""
        in_flight, self._in_flight = self._in_flight, {}
        for waiting in in_flight.values():
            waiting.response.fail(KafkaError(error.code, error.message))


def _decode(frame: memoryview, api_key: int, version: int) -> Response:
    """A response, given without its length. Raises MalformedRequest."""
    try:
        _, position = decode_response_header(frame, api_key, version)
        if api_key == ApiKey.API_VERSIONS:
            code = int.from_bytes(frame[position : position + 2], "big", signed=True)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0  # KIP-511: its refusal is in version 0
        response, _ = decode(response_class(api_key), frame, version, position)
    except MalformedRequest as error:
        raise MalformedRequest(f"malformed response: {error}") from None
    return response


def _seems(first: memoryview) -> str:
    """What a response may be instead, for a size that is none."""
    protocol = _OTHER_PROTOCOLS.get(bytes(first))
    return f": that port speaks {protocol}, not Kafka's protocol" if protocol else ""
