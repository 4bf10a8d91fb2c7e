"""Connections on loopback sockets over a scripted dispatcher: no broker behind them."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from kbroker.node.loop.timers import LoopTimers
from kbroker.ports import Deferred
from kbroker.protocol.codecs.codec import Part
from kbroker.protocol.errors import MalformedRequest
from kbroker.server.api_handler import small_responses
from kbroker.server.handlers import all_handlers
from kbroker.server.network.connection import Connection
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.network.limits import ConnectionLimits, PipelineBudget
from kbroker.server.network.listener import ListenerServer
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import CloseConnection, PendingResponse
from kbroker.server.session import ApiVersionRange, Session

NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = [
    pytest.param(uvloop.new_event_loop, id="uvloop"),
    pytest.param(asyncio.SelectorEventLoop, id="asyncio"),
]


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class FileRange:
    """What a fetch answers with: a range of an open file."""

    def __init__(self, path: Path, position: int, size: int) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.position = position
        self.size = size

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def read(self, offset: int = 0, count: int | None = None) -> bytes:
        left = self.size - offset
        count = left if count is None else min(count, left)
        return os.pread(self._fd, count, self.position + offset)


class Script:
    """A dispatcher by the first letter of the body.

    e: echo. d: a Deferred, kept in `waiting` under the rest. n: no response. m: malformed.
    c: close. x: the parts that `parts` holds under the rest. api_key: of all answers.
    """

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.sessions: list[Session] = []
        self.waiting: dict[bytes, Deferred[bytes]] = {}
        self.new_deferred: type[Deferred[bytes]] = Deferred
        self.parts: dict[bytes, Callable[[], list[Part]]] = {}
        self.rendered = 0
        self.api_key = 0
        self.api_versions: Sequence[ApiVersionRange] = ()
        self.small_responses = small_responses(all_handlers())
        self.on_request: Callable[[bytes], None] = lambda body: None

    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        body = bytes(frame)
        frame[:] = bytes(len(frame))  # a handler may write into its request
        self.seen.append(body)
        self.sessions.append(session)
        self.on_request(body)
        kind, rest = body[:1], body[1:]
        if kind == b"m":
            raise MalformedRequest("no request")
        if kind == b"c":
            raise CloseConnection("acks=0 failed")
        if kind == b"n":
            return None
        pending = PendingResponse(self.api_key, 0, 0)
        if kind == b"d":
            self.waiting[rest] = pending.deferred = self.new_deferred()
        else:
            pending.message = body  # type: ignore[assignment] # the script's own kind of message
        return pending

    dispatch_in_slices = dispatch

    def render(self, pending: PendingResponse) -> list[Part]:
        self.rendered += 1
        body = pending.message
        assert isinstance(body, bytes)
        if body[:1] == b"x":
            return self.parts[body[1:]]()
        return [bytearray(struct.pack(">i", len(body))), body]


class Loopback:
    """One listener on a free port."""

    def __init__(
        self,
        *,
        max_connections: int = 100,
        per_host: int = 100,
        queued: int = 500,
        max_frame_bytes: int = 1 << 20,
        send_buffer_bytes: int = -1,
    ) -> None:
        self.script = Script()
        self.fatal: list[BaseException] = []
        self.executor = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        self.shared = ConnectionShared(
            loop,
            self.script,
            LoopTimers(loop),
            ConnectionLimits(max_connections, per_host),
            PipelineBudget(queued),
            max_frame_bytes,
            self.executor,
            self.fatal.append,
        )
        self.server = ListenerServer("TEST", "127.0.0.1", 0, send_buffer_bytes=send_buffer_bytes)
        self._peers: list[Peer] = []
        self._sockets: list[socket.socket] = []

    async def __aenter__(self) -> Loopback:
        await self.server.start(self.shared)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.server.close()
        for connection in list(self.shared.connections):
            connection.abort()
        for peer in self._peers:  # of a test that failed; others have closed theirs
            peer.writer.transport.abort()
        await until(lambda: not self.shared.connections)
        for each in self._sockets:
            each.close()
        self.shared.close()
        self.executor.shutdown()

    def use_memory(self, limit: int) -> MemoryPool:
        """Let the connections to come share so much."""
        self.shared.memory = MemoryPool(limit)
        self.shared.memory.on_pressure = self.shared.give_back_memory
        return self.shared.memory

    @property
    def only(self) -> Connection:
        (connection,) = self.shared.connections
        return connection

    async def connect(self) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.bound.port)
        self._peers.append(Peer(reader, writer))
        return self._peers[-1]

    async def connect_raw(self) -> socket.socket:
        """A socket that does not block, with a small receive buffer; nothing reads from it yet."""
        raw = socket.socket()
        self._sockets.append(raw)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", self.server.bound.port))
        return raw

    async def read_from(self, raw: socket.socket, limit: int = 1 << 16) -> Peer:
        """The peer of a raw socket, which reads. limit: bytes that it reads ahead."""
        reader, writer = await asyncio.open_connection(sock=raw, limit=limit)
        self._peers.append(Peer(reader, writer))
        return self._peers[-1]


class Peer:
    """The client's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(map(frame, bodies)))
        await self.writer.drain()

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ended(self) -> bool:
        """Whether the broker has closed the connection and sent nothing more."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until condition holds; pytest's timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - nothing tells when it does
        await asyncio.sleep(0.001)


def run(new_loop: NewLoop, main: Callable[[], Awaitable[None]]) -> None:
    """Run main on a loop of that kind."""

    async def guarded() -> None:
        async with asyncio.timeout(20):
            await main()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(guarded())
