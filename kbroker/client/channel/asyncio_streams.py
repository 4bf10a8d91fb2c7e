"""`streams.StreamOpener` on the running event loop: TCP, or TLS where it is given a context."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from kbroker.client.channel.streams import Stream, StreamReceiver
from kbroker.client.connection import connect_failure


class AsyncioStream(asyncio.Protocol):
    """A connection, or the attempt at one, which is a task of its own until it is settled."""

    def __init__(self, receiver: StreamReceiver) -> None:
        self._receiver: StreamReceiver | None = receiver
        self._transport: asyncio.Transport | None = None
        self._attempt: asyncio.Task[None] | None = None

    def start(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int, context: ssl.SSLContext | None
    ) -> None:
        """Begin to connect."""
        self._attempt = loop.create_task(self._connect(loop, host, port, context))

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int, context: ssl.SSLContext | None
    ) -> None:
        try:
            await loop.create_connection(lambda: self, host, port, ssl=context)
        except OSError as error:
            self._lost(connect_failure(error))
        except (UnicodeError, OverflowError) as error:  # no host name, or no port
            self._lost(str(error))
        finally:
            self._attempt = None

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio
        if self._receiver is None:
            self._transport.abort()
            return
        self._receiver.connected()

    def data_received(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc) if exc else "the peer closed the connection")

    def _lost(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.connection_lost(reason)

    # -- streams.Stream ---------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `streams.Stream`."""
        if self._transport is not None and self._receiver is not None:
            self._transport.write(data)

    def close(self) -> None:
        """See `streams.Stream`. Bytes that the peer has not read are dropped."""
        self._receiver = None
        if self._attempt is not None:
            self._attempt.cancel()
        if self._transport is not None:
            self._transport.abort()


class AsyncioStreams:
    """Opens connections on a loop. context: for TLS listeners."""

    __slots__ = ("_context", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext | None = None
    ) -> None:
        self._loop = loop
        self._context = context

    def __call__(self, host: str, port: int, receiver: StreamReceiver) -> Stream:
        """See `streams.StreamOpener`."""
        stream = AsyncioStream(receiver)
        stream.start(self._loop, host, port, self._context)
        return stream
