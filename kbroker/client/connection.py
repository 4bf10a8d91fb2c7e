"""One connection to one broker: requests out, responses matched to them by correlation id.

Versions are agreed on when the connection opens (KIP-35): the highest that both sides have. Which
broker to talk to, and when to try again, is in cluster.py.
"""

from __future__ import annotations

import asyncio
import os
import re
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from kbroker.protocol.apis import ApiKey, response_class, valid_versions
from kbroker.protocol.codec import decode, part_size
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

DEFAULT_CLIENT_ID: Final = "kbroker"
DEFAULT_CONNECT_TIMEOUT_S: Final = 10.0
DEFAULT_REQUEST_TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
SOFTWARE_NAME: Final = "kbroker"
SOFTWARE_VERSION: Final = "1"


def network_error(host: str, port: int, why: object) -> KafkaError:
    """The error for every network failure: retriable, one line."""
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: {why}")


def _reason(error: OSError) -> str:
    """Why no connection could be made, without the addresses that asyncio repeats in its text."""
    if error.errno is None:  # asyncio joins the errors of a host's several addresses in one text
        numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
        return ", ".join(os.strerror(int(number)) for number in numbers) or str(error)
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)


class _Pending:
    """A request that waits for its response; abandoned once its caller has given up."""

    __slots__ = ("api_key", "future", "version")

    def __init__(self, api_key: int, version: int, future: asyncio.Future[Response]) -> None:
        self.api_key = api_key
        self.version = version
        self.future = future


class _Frames(asyncio.Protocol):
    """Cuts the stream of bytes into frames and hands them to the connection."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._received = bytearray()
        self.writable = asyncio.Event()
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        position = 0
        while len(received) - position >= 4:
            size = int.from_bytes(received[position : position + 4], "big", signed=True)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                self._connection.fail(f"a response of {size} bytes")
                return
            if len(received) - position - 4 < size:
                break
            frame = bytes(memoryview(received)[position + 4 : position + 4 + size])
            position += 4 + size
            self._connection.receive_frame(frame)
        del received[:position]

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        self._connection.fail(exc or "the broker closed the connection")

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


class BrokerConnection:
    """An open connection. Made by `connect`; many requests may be under way at once."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.api_versions: dict[int, tuple[int, int]] = {}
        self._frames = _Frames(self)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, _Pending] = {}
        self._next_correlation_id = 0
        self._closed_because: object = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        client_id: str = DEFAULT_CLIENT_ID,
        *,
        timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
    ) -> Self:
        """Open a connection and agree on versions. Raises KafkaError(NETWORK_EXCEPTION)."""
        connection = cls(host, port, client_id)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                transport, _ = await loop.create_connection(lambda: connection._frames, host, port)
                connection._transport = transport
                await connection._negotiate()
        except TimeoutError:
            connection.close()
            raise network_error(host, port, f"no answer within {timeout_s:g} s") from None
        except OSError as error:
            connection.close()
            raise network_error(host, port, _reason(error)) from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def _negotiate(self) -> None:
        """Send ApiVersions in our highest version; a broker that does not support it responds in
        version 0 (KIP-511).
        """
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        low, high = valid_versions(ApiKey.API_VERSIONS)
        response = await self._exchange(request, high)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            theirs = {api.api_key: api.max_version for api in response.api_keys}
            high = min(high, theirs.get(ApiKey.API_VERSIONS, low))
            response = await self._exchange(request, high)
        if response.error_code:
            raise KafkaError(
                ErrorCode(response.error_code), f"ApiVersions to {self.host}:{self.port}"
            )
        self.api_versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    async def _exchange(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        return cast(ApiVersionsResponse, await self._send(request, version))

    @property
    def is_closed(self) -> bool:
        return self._closed_because is not None

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version that both sides support. Raises KafkaError(UNSUPPORTED_VERSION) if
        there is none.
        """
        ours_low, ours_high = valid_versions(api_key)
        if max_version is not None:
            ours_high = min(ours_high, max_version)
        low, high = self.api_versions.get(api_key, (0, -1))
        version = min(ours_high, high)
        if version < max(ours_low, low):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.host}:{self.port} serves {ApiKey(api_key).name} {low}-{high}, "
                f"this client speaks {ours_low}-{ours_high}",
            )
        return version

    async def request(
        self,
        message: Request,
        response_type: type[R],
        *,
        version: int | None = None,
        max_version: int | None = None,
        timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> R:
        """Send a request and wait for its response, which is of response_type.

        version: None for the highest that both sides support, up to max_version. Raises KafkaError
        of NETWORK_EXCEPTION, REQUEST_TIMED_OUT or UNSUPPORTED_VERSION; the caller checks error
        codes inside the response.
        """
        if version is None:
            version = self.version_of(message.API_KEY, max_version)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._send(message, version)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.host}:{self.port}: no answer to {ApiKey(message.API_KEY).name} "
                f"within {timeout_s:g} s",
            ) from None
        if not isinstance(response, response_type):
            raise TypeError(f"{type(message).__name__} is not answered by {response_type.__name__}")
        return response

    async def send_without_response(self, message: Request, version: int | None = None) -> None:
        """Send a Produce request with acks=0, to which a broker never responds."""
        if version is None:
            version = self.version_of(message.API_KEY)
        self._write(message, version)
        await self._frames.writable.wait()

    async def _send(self, message: Request, version: int) -> Response:
        correlation_id = self._write(message, version)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._pending[correlation_id] = _Pending(message.API_KEY, version, future)
        await self._frames.writable.wait()
        return await future

    def _write(self, message: Request, version: int) -> int:
        if self._transport is None or self.is_closed:
            raise network_error(self.host, self.port, self._closed_because or "not connected")
        correlation_id = self._next_correlation_id
        parts = encode_request_frame(message, version, correlation_id, self.client_id)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise ValueError(f"a client has no file ranges to send ({part_size(part)} bytes)")
            self._transport.write(part)
        return correlation_id

    def receive_frame(self, frame: bytes) -> None:
        """Handle a whole response frame, without its length. Malformed bytes close the
        connection.
        """
        try:
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            pending = self._pending.pop(correlation_id, None)
            if pending is None:
                self.fail(f"a response to no request: correlation id {correlation_id}")
                return
            response = self._decode(frame, pending)
        except MalformedRequest as error:
            failure = network_error(self.host, self.port, f"malformed response: {error}")
            if pending is not None and not pending.future.done():
                pending.future.set_exception(failure)
            self.fail(f"malformed response: {error}")
            return
        if not pending.future.done():
            pending.future.set_result(response)

    @staticmethod
    def _decode(frame: bytes, pending: _Pending) -> Response:
        _, position = decode_response_header(frame, pending.api_key, pending.version)
        version = pending.version
        if pending.api_key == ApiKey.API_VERSIONS:
            code = int.from_bytes(frame[position : position + 2], "big", signed=True)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        response, _ = decode(response_class(pending.api_key), frame, version, position)
        return response

    def fail(self, why: object) -> None:
        """Close the connection; pending requests fail with KafkaError(NETWORK_EXCEPTION)."""
        if self._closed_because is None:
            self._closed_because = why
        pending, self._pending = self._pending, {}
        for request in pending.values():
            if not request.future.done():
                request.future.set_exception(
                    network_error(self.host, self.port, self._closed_because)
                )
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Close at once. No effect when closed already."""
        self.fail("closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
