"""Scripted peers of a channel, and the two worlds in which the same tests run: sockets and an event
loop, or the simulated network. A peer is real frames and answers that a test may replace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol, cast

from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.client.channel.streams import Stream, StreamOpener, StreamReceiver
from kbroker.client.cluster_view import BrokerAddress
from kbroker.node.loop.timers import LoopTimers
from kbroker.ports import Timers
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import RequestHeader
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.sim.network import SimNetwork
from tests.sim.process import SimProcess
from tests.sim.server import ServerConnection, api_versions
from tests.sim.streams import SimStreams
from tests.sim.timers import SimTimers

SERVED = (ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS)
SILENT = object()
"""An answer that never comes."""
HANG_UP = object()
"""An answer that ends the connection instead."""
CUT_SHORT = object()
"""An answer that ends in the middle, with the connection."""

Answer = object


class Peer:
    """A node that answers Metadata with its own id as the controller's. script: answers for the
    next requests of one API. A scripted answer is a Response, bytes, or a constant of this module.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.versions = {int(key): valid_versions(key) for key in SERVED}
        self.connections: list[PeerConnection] = []
        self.requests: list[tuple[int, int, Request]] = []
        """(index of the connection, version, request)."""
        self.is_trickling = False
        self._scripts: dict[int, list[Answer]] = {}

    def accept(self, stream: Stream) -> StreamReceiver:
        """A node has connected."""
        index = len(self.connections)
        connection = PeerConnection(self, index, stream)
        self.connections.append(connection)
        return connection

    def refuse(self, header: RequestHeader) -> Response | None:
        """UNSUPPORTED_VERSION for an ApiVersions request (KIP-511); a bug for any other."""
        low, high = self.versions[header.api_key]
        if low <= header.api_version <= high:
            return None
        assert header.api_key == ApiKey.API_VERSIONS, str(header)
        return self.api_versions(ErrorCode.UNSUPPORTED_VERSION)

    def script(self, api_key: ApiKey, *answers: Answer) -> None:
        """Give these answers to the next requests of that API, then the usual ones again."""
        self._scripts.setdefault(int(api_key), []).extend(answers)

    def asked(self, api_key: ApiKey) -> list[tuple[int, int]]:
        """(index of the connection, version) of the requests of one API so far."""
        return [
            (index, version)
            for index, version, request in self.requests
            if api_key == request.API_KEY
        ]

    def answer(self, api_key: int, version: int, request: Request) -> Answer:
        """What a request is answered with."""
        scripted = self._scripts.get(api_key)
        if scripted:
            return scripted.pop(0)
        if api_key == ApiKey.API_VERSIONS:
            return self.api_versions()
        if isinstance(request, MetadataRequest):
            name = request.topics[0].name if request.topics else "nothing"
            return MetadataResponse(
                brokers=[], cluster_id=name, controller_id=self.node_id, topics=[]
            )
        return SILENT

    def api_versions(self, error_code: int = 0) -> ApiVersionsResponse:
        """What the peer announces."""
        return api_versions(self.versions, error_code)


class PeerConnection(ServerConnection):
    """One connection as the peer sees it."""

    def __init__(self, peer: Peer, index: int, stream: Stream) -> None:
        super().__init__(stream, self._answer, refuse=peer.refuse)
        self._peer = peer
        self._index = index

    def _answer(self, _: ServerConnection, header: RequestHeader, request: Request) -> None:
        self._peer.requests.append((self._index, header.api_version, request))
        answer = self._peer.answer(header.api_key, header.api_version, request)
        if answer is HANG_UP:
            self.stream.close()
        elif answer is CUT_SHORT:
            self.stream.write(
                b"\x00\x00\x10\x00" + header.correlation_id.to_bytes(4, "big") + b"\x00\x01"
            )
            self.stream.close()
        elif isinstance(answer, bytes):
            self.stream.write(answer)
        elif answer is not SILENT:
            self.answer(header, cast(Response, answer))

    def send(self, data: bytes) -> None:
        """Send bytes, in one piece or many."""
        step = 1 if self._peer.is_trickling else len(data)
        for position in range(0, len(data), step):
            self.stream.write(data[position : position + step])


class World(Protocol):
    """Where a channel and its peers live."""

    timers: Timers
    opener: StreamOpener

    def peer(self, node_id: int) -> Peer:
        """A peer that accepts connections."""
        ...

    def address(self, node_id: int) -> BrokerAddress:
        """Of a peer, or of a node that refuses connections."""
        ...

    def stop(self, node_id: int) -> None:
        """The peer's process ends: its connections do, and it refuses new ones."""
        ...

    def until(self, is_done: Callable[[], object]) -> None:
        """Let time pass until is_done; AssertionError if that takes more than ten seconds."""
        ...


def channel_of(world: World, **options: int) -> Channel:
    """A channel with short times."""
    times = {"connect_timeout_ms": 5_000, "backoff_ms": 20, "backoff_max_ms": 100} | options
    return Channel(world.opener, world.timers, Random(1), client_id="tests", **times)


# -- the simulated network -------------------------------------------------------------------------


class SimWorld:
    """The channel is node 0; peers have their ids as their ports."""

    def __init__(self, seed: int = 0, network: SimNetwork | None = None) -> None:
        self.heap = SimTimers()
        self.random = Random(seed)
        self.network = network or SimNetwork(self.heap, self.random)
        self.process = SimProcess(self.heap, self.random, lambda: None)
        self.network.attach(0, self.process)
        self.timers: Timers = self.process
        self.opener: StreamOpener = SimStreams(self.network, 0)
        self.processes: dict[int, SimProcess] = {}

    def peer(self, node_id: int) -> Peer:
        """See `World`."""
        peer = Peer(node_id)
        process = SimProcess(self.heap, self.random, lambda: None)
        self.processes[node_id] = process
        self.network.attach(node_id, process, accept=peer.accept)
        return peer

    def address(self, node_id: int) -> BrokerAddress:
        """See `World`."""
        return BrokerAddress(node_id, "sim", node_id)

    def stop(self, node_id: int) -> None:
        """See `World`."""
        self.processes[node_id].kill()
        self.network.detach(node_id)

    def until(self, is_done: Callable[[], object]) -> None:
        """See `World`."""
        end_ms = self.heap.time_ms + 10_000
        while not is_done():
            if not self.heap.run_next(end_ms):
                self.heap.time_ms += 1
            assert self.heap.time_ms < end_ms, "ten seconds have passed"


# -- sockets and an event loop ---------------------------------------------------------------------


class _Accepted(asyncio.Protocol):
    """A connection to a peer, as its stream."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._receiver = self._peer.accept(self)

    def data_received(self, data: bytes) -> None:
        self._receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(str(exc))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()


class LoopWorld:
    """Free ports of this machine; time is real, so deadlines are short."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.timers: Timers = LoopTimers(self.loop)
        self.opener: StreamOpener = AsyncioStreams(self.loop)
        self._servers: dict[int, asyncio.Server] = {}
        self._accepted: dict[int, list[_Accepted]] = {}
        self._ports: dict[int, int] = {}

    def peer(self, node_id: int) -> Peer:
        """See `World`."""
        peer = Peer(node_id)

        def accept() -> _Accepted:
            accepted = _Accepted(peer)
            self._accepted.setdefault(node_id, []).append(accepted)
            return accepted

        port = self._ports.get(node_id, 0)
        server = self.loop.run_until_complete(self.loop.create_server(accept, "127.0.0.1", port))
        self._servers[node_id] = server
        self._ports[node_id] = server.sockets[0].getsockname()[1]
        return peer

    def address(self, node_id: int) -> BrokerAddress:
        """See `World`."""
        if node_id not in self._ports:
            self.peer(node_id)
            self.stop(node_id)
        return BrokerAddress(node_id, "127.0.0.1", self._ports[node_id])

    def stop(self, node_id: int) -> None:
        """See `World`."""
        self._servers.pop(node_id).close()
        for accepted in self._accepted.pop(node_id, ()):
            accepted.close()

    def until(self, is_done: Callable[[], object]) -> None:
        """See `World`."""

        async def wait() -> None:
            async with asyncio.timeout(10):
                while not is_done():  # noqa: ASYNC110  # a predicate of the test, not an event
                    await asyncio.sleep(0.001)

        try:
            self.loop.run_until_complete(wait())
        except TimeoutError:
            raise AssertionError("ten seconds have passed") from None

    def close(self) -> None:
        """Stop the peers and the loop."""
        for node_id in list(self._servers):
            self.stop(node_id)
        self.loop.run_until_complete(asyncio.sleep(0.01))
        self.loop.close()


def worlds(kind: str) -> Iterator[World]:
    """For a fixture: the world of that kind."""
    if kind == "simulated":
        yield SimWorld()
        return
    world = LoopWorld()
    yield world
    world.close()
