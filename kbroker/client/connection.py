"""One connection to one broker: requests out, responses matched to them by correlation id.

Versions are agreed on when the connection opens (KIP-35): the highest that both sides have. Where
it is given `security`, it speaks TLS, and authenticates before the first request and again before
its session ends (KIP-368). Which broker to talk to, and when to try again, is in cluster.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from kbroker.client.in_flight import Frame, InFlightRequests
from kbroker.client.node_api_versions import (
    FIRST_VERSION,
    NodeApiVersions,
    api_versions_request,
    retry_version,
)
from kbroker.client.security.sasl_authentication import HANDSHAKE_VERSION, no_sasl_here
from kbroker.client.security.tls_failures import HUNG_UP, is_final, is_tls_record, tls_failure
from kbroker.model import StartupError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from kbroker.client.security.connection_security import ConnectionSecurity

R = TypeVar("R", bound=Response)

DEFAULT_CLIENT_ID: Final = "kbroker"
DEFAULT_CONNECT_TIMEOUT_S: Final = 10.0
DEFAULT_REQUEST_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 1.0


def network_error(host: str, port: int, why: object) -> KafkaError:
    """The error for every network failure: retriable, one line."""
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: {why}")


def connect_failure(error: OSError) -> str:
    """Why no connection could be made, without the addresses that asyncio repeats in its text."""
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    if error.errno is None:  # asyncio joins the errors of a host's several addresses in one text
        numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
        return ", ".join(os.strerror(int(number)) for number in numbers) or str(error) or HUNG_UP
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)


class _Frames(asyncio.Protocol):
    """Hands received bytes to the connection and follows the state of the write buffer."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        self.lost.set()
        self._connection.lost(exc)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


class BrokerConnection:
    """An open connection. Made by `connect`; many requests may be under way at once."""

    def __init__(
        self, host: str, port: int, client_id: str, security: ConnectionSecurity | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self._security = security
        self._frames = _Frames(self)
        self._transport: asyncio.Transport | None = None
        self._in_flight = InFlightRequests(client_id)
        self._api_versions: NodeApiVersions | None = None
        self._closed_because: object = None
        self._is_answered = False
        self._authenticating = asyncio.Lock()
        self._authenticate_at_s: float | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        client_id: str = DEFAULT_CLIENT_ID,
        *,
        timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        security: ConnectionSecurity | None = None,
    ) -> Self:
        """Open a connection, agree on versions and authenticate. security: None for PLAINTEXT.

        Raises KafkaError of NETWORK_EXCEPTION, or of SASL's AUTHENTICATION_ERRORS; and StartupError
        where TLS fails for a reason that stays.
        """
        connection = cls(host, port, client_id, security)
        context = None if security is None else security.context
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                transport, _ = await loop.create_connection(
                    lambda: connection._frames, host, port, ssl=context
                )
                connection._transport = transport
                await connection._negotiate()
                await connection._authenticate()
        except TimeoutError:
            connection.fail("no answer")
            raise network_error(host, port, f"no answer within {timeout_s:g} s") from None
        except OSError as error:
            connection.fail(error)
            raise connection._connect_error(error) from None
        except KafkaError:
            lost_by = connection._closed_because
            connection.fail("not opened")
            if isinstance(lost_by, ssl.SSLError):  # TLS 1.3: an alert that follows the handshake
                raise connection._connect_error(lost_by) from None
            raise
        except BaseException:
            connection.fail("not opened")
            raise
        return connection

    def _connect_error(self, error: OSError) -> KafkaError | StartupError:
        if isinstance(error, ssl.SSLError) and is_final(error):
            return StartupError(f"{self.host}:{self.port}: {tls_failure(error)}")
        why = connect_failure(error)
        if isinstance(error, ConnectionResetError) and self._has_tls and why != HUNG_UP:
            why = f"{why}; {HUNG_UP}"
        return network_error(self.host, self.port, why)

    async def _negotiate(self) -> None:
        """Send ApiVersions in our highest version; a broker that does not support it responds in
        version 0 (KIP-511).
        """
        request = api_versions_request()
        response = cast(ApiVersionsResponse, await self._exchange(request, FIRST_VERSION))
        version = retry_version(response)
        if version is not None:
            response = cast(ApiVersionsResponse, await self._exchange(request, version))
        self._api_versions = NodeApiVersions(f"{self.host}:{self.port}", response)

    async def _authenticate(self) -> None:
        """By SASL, if the connection has it. Raises KafkaError and StartupError."""
        address = f"{self.host}:{self.port}"
        sasl = None if self._security is None else self._security.authentication(address)
        if sasl is None:
            return
        assert self._api_versions is not None
        if self._api_versions.range_of(ApiKey.SASL_HANDSHAKE) is None:
            raise no_sasl_here(address)
        shaken = await self._exchange(sasl.handshake(), HANDSHAKE_VERSION)
        request: SaslAuthenticateRequest | None = sasl.begin(cast(SaslHandshakeResponse, shaken))
        version = self.version_of(ApiKey.SASL_AUTHENTICATE)
        while request is not None:
            response = await self._exchange(request, version)
            request = sasl.proceed(cast(SaslAuthenticateResponse, response))
        lasts_for_s = sasl.lasts_for_s()
        self._authenticate_at_s = None
        if lasts_for_s is not None:
            self._authenticate_at_s = asyncio.get_running_loop().time() + lasts_for_s

    async def _keep_session(self) -> None:
        """Authenticate again if it is time for it; other requests wait, and keep their order."""
        async with self._authenticating:
            due_s = self._authenticate_at_s
            if due_s is None or asyncio.get_running_loop().time() < due_s:
                return
            try:
                await self._authenticate()
            except BaseException:
                self.fail("the session could not be renewed")
                raise

    @property
    def _has_tls(self) -> bool:
        return self._security is not None and self._security.context is not None

    @property
    def is_closed(self) -> bool:
        return self._closed_because is not None

    @property
    def is_gone(self) -> bool:
        """Whether it is closed, and `wait_closed` would not wait."""
        return self._frames.lost.is_set()

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
        if self._authenticate_at_s is not None:
            await self._keep_session()
        self._check_open()
        self._write(self._in_flight.encode(message, version))
        await self._frames.writable.wait()

    async def _send(self, message: Request, version: int) -> Response:
        if self._authenticate_at_s is not None:
            await self._keep_session()
        response = await self._exchange(message, version)
        self._is_answered = True
        return response

    async def _exchange(self, message: Request, version: int) -> Response:
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
            is_tls = self._api_versions is None and is_tls_record(data)
            self.fail(
                "it speaks TLS: set security.protocol to SSL or SASL_SSL" if is_tls else error
            )

    def lost(self, error: Exception | None) -> None:
        """The connection is gone. error: None if the broker closed it in order."""
        why = error or "the broker closed the connection"
        hint = None
        if not (self._is_answered or isinstance(error, ssl.SSLError)):
            hint = self._security_hint()
        self.fail(why if hint is None else f"{why}; {hint}")

    def _security_hint(self) -> str | None:
        """What to look at where a broker closes the connection instead of answering the first
        request, as Kafka does with clients of another security.protocol.
        """
        if self._api_versions is None:
            # With TLS 1.3 a broker refuses the client's certificate after the handshake, by an
            # alert that the reset of the connection may overtake.
            return HUNG_UP if self._has_tls else "if its listener speaks TLS, set security.protocol"
        if self._security is None and self._api_versions.range_of(ApiKey.SASL_HANDSHAKE):
            return "if its listener asks for SASL, set security.protocol"
        return None

    def fail(self, why: object) -> None:
        """End the connection; pending requests fail with KafkaError(NETWORK_EXCEPTION)."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close in order: what was written leaves. No effect when closed already."""
        self._end("closed")
        if self._transport is not None:
            self._transport.close()

    def _end(self, why: object) -> None:
        if self._closed_because is None:
            self._closed_because = why
        self._in_flight.fail_all(network_error(self.host, self.port, self._closed_because))

    async def wait_closed(self) -> None:
        """After `close`, until what was sent has left, and with TLS the broker has confirmed the
        end: for CLOSE_TIMEOUT_S at most.
        """
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._frames.lost.wait()
        except TimeoutError:
            self._transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
