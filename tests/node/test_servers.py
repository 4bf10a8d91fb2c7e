"""The listeners of a node: bound together, opened by type, closed together."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence

import pytest

from kbroker.model import StartupError
from kbroker.node.loop.stall_probe import StallProbe
from kbroker.node.loop.timers import LoopTimers
from kbroker.node.resources import NodeResources
from kbroker.node.servers import NodeServers
from kbroker.protocol.codecs.codec import Part
from kbroker.server.network.listener import ListenerServer
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import PendingResponse
from kbroker.server.session import ApiVersionRange, Session
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.listeners import Listener
from tests.server.loopback import until

BOTH = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
}


class Silent:
    """A dispatcher that answers nothing; the listener of each request."""

    api_versions: Sequence[ApiVersionRange] = ()
    small_responses: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heard = asyncio.Event()

    def dispatch(self, session: Session, frame: memoryview, arrived_ms: int) -> None:
        self.asked.append(session.listener_name)
        self.heard.set()

    dispatch_in_slices = dispatch

    def render(self, pending: PendingResponse) -> list[Part]:
        raise AssertionError(pending)


def bound(properties: dict[str, str]) -> NodeServers:
    config = BrokerConfig.from_properties(properties)
    return NodeServers(
        config,
        resources=NodeResources(config),
        timers=LoopTimers(asyncio.get_running_loop()),
        memory=MemoryPool(),
        stalls=StallProbe(asyncio.get_running_loop().call_later),
        on_fatal=pytest.fail,
    )


async def ask(port: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((10).to_bytes(4, "big") + bytes(10))
    return writer


def test_each_type_is_opened_for_itself_with_its_own_dispatcher() -> None:
    async def script() -> None:
        servers = bound(BOTH)
        clients, controllers = servers.bound
        config = BrokerConfig.from_properties(BOTH)
        of_controllers, of_clients = Silent(), Silent()
        await servers.open(
            config.controller_listeners, servers.shared(of_controllers, servers.controller_quotas)
        )
        writers = [await ask(controllers.port)]
        with pytest.raises(OSError):
            await ask(clients.port)
        await servers.open(config.listeners, servers.shared(of_clients, servers.broker_quotas))
        writers.append(await ask(clients.port))
        await of_controllers.heard.wait()
        await of_clients.heard.wait()
        assert (of_controllers.asked, of_clients.asked) == (["CONTROLLER"], ["PLAINTEXT"])
        assert len(list(servers.connections)) == 2
        servers.stop_accepting()
        servers.stop_reading()
        await servers.drain(5)
        assert not list(servers.connections)
        servers.close()
        for writer in writers:
            writer.close()

    asyncio.run(script())


MAP = "listener.security.protocol.map"


def with_listener(config: BrokerConfig, address: str) -> BrokerConfig:
    """With a listener EXTRA that was set while the broker runs."""
    (file,) = config.listeners
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTRA:PLAINTEXT"
    listeners = f"{file},CONTROLLER://127.0.0.1:0,EXTRA://{address}"
    return config.with_dynamic({"listeners": listeners, MAP: protocols})


CROWDED = {
    "process.roles": "broker,controller",
    "listeners": "EXTERNAL://127.0.0.1:0,INTERNAL://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "EXTERNAL:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
    "max.connections": "3",
    "max.connection.creation.rate": "1000",
}


def test_clients_that_use_all_connections_cut_off_no_broker_and_no_quorum() -> None:
    """As in Kafka a connection of a broker takes the place of the client that is idle longest."""

    async def script() -> None:
        servers, config = bound(CROWDED), BrokerConfig.from_properties(CROWDED)
        ports = {listener.name: listener.port for listener in servers.bound}
        await servers.open(
            config.controller_listeners, servers.shared(Silent(), servers.controller_quotas)
        )
        await servers.open_clients(servers.shared(Silent(), servers.broker_quotas))
        streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def connect(listener: str) -> asyncio.StreamReader:
            streams.append(await asyncio.open_connection("127.0.0.1", ports[listener]))
            return streams[-1][0]

        def names() -> list[str]:
            return [connection.listener_name for connection in servers.connections]

        clients = [await connect("EXTERNAL") for _ in range(3)]
        await until(lambda: len(names()) == 3)
        assert await (await connect("EXTERNAL")).read() == b""
        await connect("CONTROLLER")
        await until(lambda: names() == ["CONTROLLER", *["EXTERNAL"] * 3])
        for used in (0, 2):
            streams[used][1].write((10).to_bytes(4, "big") + bytes(10))
        idle, *_ = await asyncio.gather(clients[1].read(), connect("INTERNAL"))
        assert idle == b""
        assert names() == ["CONTROLLER", "EXTERNAL", "EXTERNAL", "INTERNAL"]
        for _ in range(3):
            await connect("INTERNAL")
        await until(lambda: names() == ["CONTROLLER", *["INTERNAL"] * 4])
        servers.abort()
        servers.close()
        for _, writer in streams:
            writer.close()

    asyncio.run(script())


async def changed(servers: NodeServers, config: BrokerConfig) -> dict[str, int]:
    """Ports by listener once the settings are in force."""
    servers.reconfigure(config)
    if servers._changing is not None:
        await servers._changing
    return {listener.name: listener.port for listener in servers.bound}


def test_listeners_are_opened_and_closed_while_clients_are_served() -> None:
    async def script() -> None:
        servers, config, asked = bound(BOTH), BrokerConfig.from_properties(BOTH), Silent()
        await servers.open_clients(servers.shared(asked, servers.broker_quotas))
        before = {listener.name: listener.port for listener in servers.bound}
        ports = await changed(servers, with_listener(config, "127.0.0.1:0"))
        assert ports == {**before, "EXTRA": ports["EXTRA"]}
        kept = await ask(ports["PLAINTEXT"])
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["EXTRA"])
        for _ in range(2):
            await asked.heard.wait()
            asked.heard.clear()
            if len(asked.asked) == 1:
                writer.write((10).to_bytes(4, "big") + bytes(10))
        assert asked.asked == ["PLAINTEXT", "EXTRA"]
        assert await changed(servers, config) == before
        with pytest.raises(OSError):
            await ask(ports["EXTRA"])
        assert [each.listener_name for each in servers.connections] == ["PLAINTEXT"]
        assert await reader.read() == b""
        servers.abort()
        servers.close()
        for each in (kept, writer):
            each.close()

    asyncio.run(script())


def test_a_listener_that_cannot_be_bound_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        servers, config = bound(BOTH), BrokerConfig.from_properties(BOTH)
        await servers.open_clients(servers.shared(Silent(), servers.broker_quotas))
        port = servers.bound[0].port
        ports = await changed(servers, with_listener(config, f"127.0.0.1:{port}"))
        assert set(ports) == {"PLAINTEXT", "CONTROLLER"}
        assert f"EXTRA://127.0.0.1:{port}: port {port} is in use" in caplog.text
        ports = await changed(servers, with_listener(config, "127.0.0.1:0"))
        assert "EXTRA" in ports
        servers.close()

    asyncio.run(script())


def test_listeners_of_the_metadata_are_bound_before_they_are_open() -> None:
    """So that the broker is registered with them."""

    async def script() -> None:
        servers, config = bound(BOTH), BrokerConfig.from_properties(BOTH)
        extra = with_listener(config, "127.0.0.1:0")
        servers.reconfigure(extra)
        assert [listener.name for listener in servers.bound] == ["PLAINTEXT", "CONTROLLER"]
        await servers.bind_wanted()
        (port,) = [each.port for each in servers.bound if each.name == "EXTRA"]
        assert servers.endpoints(extra.advertised_listeners)["EXTRA"].port == port
        with pytest.raises(OSError):
            await ask(port)
        asked = Silent()
        await servers.open_clients(servers.shared(asked, servers.broker_quotas))
        writer = await ask(port)
        await asked.heard.wait()
        assert asked.asked == ["EXTRA"]
        servers.abort()
        servers.close()
        writer.close()

    asyncio.run(script())


def test_a_stop_ends_a_change_of_listeners() -> None:
    async def script() -> None:
        servers, config = bound(BOTH), BrokerConfig.from_properties(BOTH)
        await servers.open_clients(servers.shared(Silent(), servers.broker_quotas))
        servers.reconfigure(with_listener(config, "127.0.0.1:0"))
        await asyncio.sleep(0)  # it waits for the thread that binds
        servers.close()
        assert servers._changing is not None
        with pytest.raises(asyncio.CancelledError):
            await servers._changing
        assert set(listener.name for listener in servers.bound) == {"PLAINTEXT", "CONTROLLER"}

    asyncio.run(script())


def await_bound(servers: NodeServers) -> None:
    """Wait for a worker; the loop stands still."""
    while not servers._unclaimed:
        time.sleep(0.001)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_listener_that_the_loop_did_not_take_over_is_closed(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """is_late: a worker binds it when the loop has ended, as on a busy machine."""
    made: list[ListenerServer] = []
    goes_on = threading.Event()
    bind = NodeServers._bind

    def bind_late(self: NodeServers, listener: Listener) -> ListenerServer:
        assert goes_on.wait(20)
        made.append(bind(self, listener))
        return made[-1]

    async def script() -> NodeServers:
        servers, config = bound(BOTH), BrokerConfig.from_properties(BOTH)
        await servers.open_clients(servers.shared(Silent(), servers.broker_quotas))
        monkeypatch.setattr(NodeServers, "_bind", bind_late)
        servers.reconfigure(with_listener(config, "127.0.0.1:0"))
        await asyncio.sleep(0)
        if not is_late:
            goes_on.set()
            await_bound(servers)
        servers.close()
        return servers

    servers = asyncio.run(script())
    goes_on.set()
    servers._resources.workers.shutdown()
    assert [listener._socket.fileno() for listener in made] == [-1]


def test_what_is_advertised_has_real_ports() -> None:
    async def script() -> None:
        servers = bound(BOTH)
        config = BrokerConfig.from_properties(BOTH)
        told = servers.endpoints(config.advertised_controller_listeners)
        assert told["CONTROLLER"].port == servers.bound[1].port
        assert list(servers.endpoints(config.advertised_listeners)) == ["PLAINTEXT"]
        servers.close()

    asyncio.run(script())


def test_a_port_in_use_leaves_none_bound() -> None:
    async def script() -> None:
        with socket.socket() as taken, socket.socket() as again:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            again.bind(("127.0.0.1", 0))
            free = again.getsockname()[1]
            again.close()
            listeners = (
                f"PLAINTEXT://127.0.0.1:{free},CONTROLLER://127.0.0.1:{taken.getsockname()[1]}"
            )
            with pytest.raises(StartupError, match="is in use"):
                bound({**BOTH, "listeners": listeners})
        with socket.socket() as now:
            now.bind(("127.0.0.1", free))

    asyncio.run(script())
