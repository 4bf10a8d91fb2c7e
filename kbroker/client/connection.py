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

from kbroker.client.in_flight import Frame, InFlightRequests
from kbroker.client.node_api_versions import (
    FIRST_VERSION,
    NodeApiVersions,
    api_versions_request,
    retry_version,
)
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

DEFAULT_CLIENT_ID: Final = "kbroker"
DEFAULT_CONNECT_TIMEOUT_S: Final = 10.0
DEFAULT_REQUEST_TIMEOUT_S: Final = 30.0


def network_error(host: str, port: int, why: object) -> KafkaError:
    """The error for every network failure: retriable, one line."""
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: {why}")


def connect_failure(error: OSError) -> str:
    """Why no connection could be made, without the addresses that asyncio repeats in its text."""
    if error.errno is None:  # asyncio joins the errors of a host's several addresses in one text
        numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
        return ", ".join(os.strerror(int(number)) for number in numbers) or str(error)
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)


class _Frames(asyncio.Protocol):
    """Hands received bytes to the connection and follows the state of the write buffer."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self.writable = asyncio.Event()
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data)

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
        self._frames = _Frames(self)
        self._transport: asyncio.Transport | None = None
        self._in_flight = InFlightRequests(client_id)
        self._api_versions: NodeApiVersions | None = None
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
            raise network_error(host, port, connect_failure(error)) from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def _negotiate(self) -> None:
        """Send ApiVersions in our highest version; a broker that does not support it responds in
        version 0 (KIP-511).
        """
        response = await self._exchange(api_versions_request(), FIRST_VERSION)
        version = retry_version(response)
        if version is not None:
            response = await self._exchange(api_versions_request(), version)
        self._api_versions = NodeApiVersions(f"{self.host}:{self.port}", response)

    async def _exchange(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        return cast(ApiVersionsResponse, await self._send(request, version))

    @property
    def is_closed(self) -> bool:
        return self._closed_because is not None

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version that both sides support. Raises KafkaError(UNSUPPORTED_VERSION) if
        there is none.
        """
        if self._api_versions is None:
            raise network_error(self.host, self.port, "not connected")
        return self._api_versions.version_of(api_key, max_version)

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
        self._check_open()
        self._write(self._in_flight.encode(message, version))
        await self._frames.writable.wait()

    async def _send(self, message: Request, version: int) -> Response:
        self._check_open()
        frame, response = self._in_flight.add(message, version)
        self._write(frame)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answered(value: Response) -> None:
            if not future.done():
                future.set_result(value)

        def failed(error: KafkaError) -> None:
            if not future.done():
                future.set_exception(error)

        response.on_done(answered, failed)
        await self._frames.writable.wait()
        return await future

    def _check_open(self) -> None:
        if self._transport is None or self.is_closed:
            raise network_error(self.host, self.port, self._closed_because or "not connected")

    def _write(self, frame: Frame) -> None:
        assert self._transport is not None
        for part in frame:
            self._transport.write(part)

    def receive(self, data: bytes) -> None:
        """Bytes have arrived. Malformed ones close the connection."""
        try:
            self._in_flight.receive(data)
        except MalformedRequest as error:
            self.fail(error)

    def fail(self, why: object) -> None:
        """Close the connection; pending requests fail with KafkaError(NETWORK_EXCEPTION)."""
        if self._closed_because is None:
            self._closed_because = why
        self._in_flight.fail_all(network_error(self.host, self.port, self._closed_because))
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
