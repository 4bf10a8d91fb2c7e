"""Connections between simulated processes: bytes in order, cuts, kills, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.simulation.event_loop import SimulatedLoop
from kbroker.simulation.network import Conditions, Flow, SimulatedNetwork
from kbroker.simulation.process import SimulatedProcess, context_of

PORT = 9092
CLIENT, SERVER = 0, 1


class Peer(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class BufferedPeer(asyncio.BufferedProtocol):
    """The same with a buffer of its own, of three bytes. pauses_at: it stops reading then."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pauses_at = -1
        self._buffer = bytearray(3)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        if len(self.received) == self.pauses_at:
            assert self._transport is not None
            self._transport.pause_reading()

    def go_on(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()


class World:
    """A server at PORT and a client that is connected to it."""

    def __init__(self, peer: Callable[[], asyncio.BaseProtocol] = Peer) -> None:
        self.network = SimulatedNetwork(Random(4))
        self.loop = SimulatedLoop(self.network)
        self.server_process = SimulatedProcess(SERVER)
        self.servers: list[asyncio.BaseProtocol] = []
        self._peer = peer

    def run(self, script: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            await script(self)

        self.loop.run_until_complete(
            context_of(SimulatedProcess(CLIENT)).run(self.loop.create_task, whole())
        )
        self.loop.close()

    async def listen(self) -> None:
        def accept() -> asyncio.BaseProtocol:
            self.servers.append(self._peer())
            return self.servers[-1]

        async def serve() -> None:
            await self.loop.create_server(accept, sock=self.network.bind(PORT))

        await context_of(self.server_process).run(self.loop.create_task, serve())

    async def connect(self) -> Peer:
        _, protocol = await self.loop.create_connection(Peer, "127.0.0.1", PORT)
        assert isinstance(protocol, Peer)
        return protocol

    async def connected(self) -> tuple[Peer, Peer]:
        await self.listen()
        client = await self.connect()
        await asyncio.sleep(0.1)
        server = self.servers[0]
        assert isinstance(server, Peer) and client.transport is not None
        return client, server


def test_bytes_arrive_in_order_both_ways() -> None:
    async def script(world: World) -> None:
        world.network.conditions = Conditions(max_delay_s=0.5, late_share=0.3, late_s=2.0)
        client, server = await world.connected()
        assert client.transport is not None and server.transport is not None
        wanted = b""
        for number in range(100):
            client.transport.write(b"%d," % number)
            wanted += b"%d," % number
        server.transport.write(memoryview(b"answer"))
        await asyncio.sleep(10)
        assert (bytes(server.received), bytes(client.received)) == (wanted, b"answer")
        assert client.transport.get_extra_info("peername") == ("127.0.0.1", PORT)
        assert server.transport.get_extra_info("sockname") == ("127.0.0.1", PORT)

    World().run(script)


def test_requests_are_known_until_they_are_answered_or_their_connection_ends() -> None:
    async def script(world: World) -> None:
        client, server = await world.connected()
        assert client.transport is not None and server.transport is not None
        request = bytes((0, 0, 0, 4, 0, int(ApiKey.END_TXN), 0, 1))
        client.transport.write(request)
        (found,) = world.network.unanswered()
        assert (found.api_key, found.source, found.target) == (ApiKey.END_TXN, CLIENT, SERVER)
        assert found.sent_s == world.loop.time()
        server.transport.write(bytes((0, 0, 0, 4, 0, 0, 0, 1)))
        assert not list(world.network.unanswered())
        client.transport.write(request)
        server.transport.close()
        assert list(world.network.unanswered()), "the client has not heard of that"
        await asyncio.sleep(1)
        assert not list(world.network.unanswered())

    World().run(script)


def test_nobody_listens() -> None:
    async def script(world: World) -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    World().run(script)


def test_a_cut_holds_back_what_is_sent_until_it_heals() -> None:
    async def script(world: World) -> None:
        client, server = await world.connected()
        assert client.transport is not None and server.transport is not None
        world.network.cut(CLIENT, SERVER)
        client.transport.write(b"one")
        server.transport.write(b"other way")
        await asyncio.sleep(5)
        assert (bytes(server.received), bytes(client.received)) == (b"", b"other way")
        client.transport.write(b"two")
        world.network.heal(CLIENT, SERVER)
        client.transport.write(b"three")
        await asyncio.sleep(1)
        assert bytes(server.received) == b"onetwothree"

    World().run(script)


@pytest.mark.parametrize("direction", [(CLIENT, SERVER), (SERVER, CLIENT)])
def test_a_connection_is_made_once_the_cut_heals(direction: tuple[int, int]) -> None:
    async def script(world: World) -> None:
        await world.listen()
        world.network.cut(*direction)
        attempt = asyncio.ensure_future(world.connect())
        await asyncio.sleep(7)
        assert not attempt.done() and not world.servers
        world.network.heal(*direction)
        await asyncio.sleep(2)
        assert attempt.done() and len(world.servers) == 1

    World().run(script)


def test_a_killed_process_resets_its_connections() -> None:
    async def script(world: World) -> None:
        client, server = await world.connected()
        assert client.transport is not None and server.transport is not None
        server.transport.write(b"last words")
        world.loop.end(world.server_process)
        await asyncio.sleep(1)
        assert bytes(client.received) == b"last words"
        assert [type(each) for each in client.lost] == [ConnectionResetError]
        assert client.transport.is_closing() and server.lost == []
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    World().run(script)


def test_a_paused_process_is_connected_to_and_answers_later() -> None:
    async def script(world: World) -> None:
        await world.listen()
        world.loop.pause(world.server_process)
        client = await world.connect()
        assert client.transport is not None
        client.transport.write(b"hello")
        await asyncio.sleep(5)
        assert not world.servers
        world.loop.resume(world.server_process)
        await asyncio.sleep(0.1)
        (server,) = world.servers
        assert isinstance(server, Peer) and bytes(server.received) == b"hello"

    World().run(script)


def test_a_closed_connection_delivers_what_was_written() -> None:
    async def script(world: World) -> None:
        client, server = await world.connected()
        assert client.transport is not None
        client.transport.write(b"bye")
        client.transport.close()
        client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert bytes(server.received) == b"bye"
        assert client.lost == server.lost == [None]

    World().run(script)


def test_a_protocol_with_a_buffer_of_its_own_may_stop_reading() -> None:
    async def script(world: World) -> None:
        await world.listen()
        client = await world.connect()
        await asyncio.sleep(0.1)
        server = world.servers[0]
        assert isinstance(server, BufferedPeer) and client.transport is not None
        server.pauses_at = 6
        client.transport.write(b"0123456789")
        await asyncio.sleep(1)
        assert bytes(server.received) == b"012345"
        server.go_on()
        await asyncio.sleep(1)
        assert bytes(server.received) == b"0123456789"

    World(BufferedPeer).run(script)


def test_an_attempt_that_was_given_up_makes_no_connection() -> None:
    async def script(world: World) -> None:
        await world.listen()
        world.network.cut(CLIENT, SERVER)
        with suppress(TimeoutError):
            await asyncio.wait_for(world.connect(), 2)
        world.network.heal(CLIENT, SERVER)
        await asyncio.sleep(5)
        assert not world.servers

    World().run(script)


def test_only_a_process_has_connections() -> None:
    network = SimulatedNetwork(Random(1))
    loop = SimulatedLoop(network)

    async def script() -> None:
        with pytest.raises(RuntimeError, match="only a process has connections"):
            await loop.create_connection(Peer, "127.0.0.1", PORT)

    loop.run_until_complete(script())
    loop.close()


def test_answers_of_one_flow_are_held_back() -> None:
    """Those of other connections between the same two processes arrive."""
    fetches = Flow(ApiKey.FETCH, CLIENT, PORT)

    async def script(world: World) -> None:
        client, server = await world.connected()
        other = await world.connect()
        await asyncio.sleep(0.1)
        other_server = world.servers[1]
        assert isinstance(other_server, Peer)
        assert client.transport and server.transport and other.transport
        assert other_server.transport is not None
        assert world.network.last_asked_s(fetches) == -1.0
        asked_s = world.loop.time()
        client.transport.write(bytes((0, 0, 0, 2)) + int(ApiKey.FETCH).to_bytes(2, "big"))
        other.transport.write(bytes((0, 0, 0, 2)) + int(ApiKey.METADATA).to_bytes(2, "big"))
        assert world.network.last_asked_s(fetches) == asked_s
        world.network.hold_answers(fetches)
        server.transport.write(b"held")
        other_server.transport.write(b"arrives")
        await asyncio.sleep(5)
        assert (bytes(client.received), bytes(other.received)) == (b"", b"arrives")
        assert len(server.received) == 6  # the request has arrived
        world.network.release_answers(fetches)
        server.transport.write(b" back")
        await asyncio.sleep(1)
        assert bytes(client.received) == b"held back"

    World().run(script)
