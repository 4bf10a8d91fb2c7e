"""Listening sockets: real ports, ports in use, the addresses for clients."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kbroker.model import StartupError
from kbroker.server.network.listener import BoundListener, ListenerServer, advertised_host
from tests.server.loopback import Loopback, until


def test_port_0_becomes_a_real_port() -> None:
    listener = ListenerServer("PLAINTEXT", "127.0.0.1", 0)
    assert listener.bound.port > 0
    assert str(listener.bound) == f"PLAINTEXT://127.0.0.1:{listener.bound.port}"
    listener.close()
    listener.close()


def test_a_port_in_use_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} is in use") as error:
            ListenerServer("PLAINTEXT", "127.0.0.1", port)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_a_host_that_is_not_ours(host: str) -> None:
    with pytest.raises(StartupError, match="check listeners"):
        ListenerServer("PLAINTEXT", host, 0)


def test_no_connection_is_accepted_before_start_or_after_close() -> None:
    async def main() -> None:
        loopback = Loopback()
        port = loopback.server.bound.port
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        async with loopback:
            peer = await loopback.connect()
            await peer.send(b"e here")
            assert await peer.receive() == b"e here"
            await peer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(main())


def test_all_interfaces_take_ipv4_too() -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            everywhere = ListenerServer("ALL", "", 0)
            await everywhere.start(loopback.shared)
            reader, writer = await asyncio.open_connection("127.0.0.1", everywhere.bound.port)
            writer.write(b"\0\0\0\1e")
            assert await reader.readexactly(5) == b"\0\0\0\1e"
            (connection,) = loopback.shared.connections
            assert connection._host == "127.0.0.1", "not ::ffff:127.0.0.1"
            writer.close()
            await writer.wait_closed()
            everywhere.close()

    asyncio.run(main())


def test_connections_are_kept_alive_and_not_delayed() -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            peer = await loopback.connect()
            await until(lambda: loopback.shared.connections)
            accepted = loopback.only._transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await peer.close()

    asyncio.run(main())


def test_what_clients_are_told() -> None:
    assert advertised_host("broker.example") == "broker.example"
    assert advertised_host("") not in ("", "0.0.0.0", "::")
    assert advertised_host("0.0.0.0") == advertised_host("")
    assert str(BoundListener("X", "::1", 9092, "PLAINTEXT")) == "X://[::1]:9092"
