"""A peer that leaves is detected while its connection is not read."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from kbroker.server.network.hang_ups import HangUp, HangUpWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")


class World:
    """A watch on a loop that is turned by hand, and a pair of sockets."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.watch = HangUpWatch(self.loop)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname())
            self.mine, _ = server.accept()
        self.told: list[HangUp] = []
        self.watch.watch(self.mine.fileno(), self.told.append)

    def turn(self) -> None:
        """Let the loop process the kernel's events."""
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))

    def until(self, count: int) -> None:
        """Turn the loop until that many hang-ups were told."""
        deadline = self.loop.time() + 10
        while len(self.told) < count:
            assert self.loop.time() < deadline, self.told
            self.turn()

    def reset(self) -> None:
        """Close the peer's end with a reset."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.watch.close()
    world.watch.close()
    world.peer.close()
    world.mine.close()
    world.loop.close()


def test_a_peer_that_only_sends_is_there(world: World) -> None:
    world.peer.sendall(b"unread")
    world.turn()
    assert world.told == []


@pytest.mark.parametrize("unread", [b"", b"behind these"])
def test_the_end_of_the_stream_is_told_once(world: World, unread: bytes) -> None:
    world.peer.sendall(unread)
    world.peer.shutdown(socket.SHUT_WR)
    world.until(1)
    world.turn()
    assert world.told == [HangUp.END_OF_STREAM]


def test_a_reset_is_told_also_after_the_end_of_the_stream(world: World) -> None:
    world.peer.shutdown(socket.SHUT_WR)
    world.until(1)
    world.mine.sendall(b"x")
    world.reset()
    world.until(2)
    world.turn()
    assert world.told == [HangUp.END_OF_STREAM, HangUp.RESET]
    world.watch.unwatch(world.mine.fileno())  # it is not watched any more: no effect


def test_who_is_not_watched_is_not_told(world: World) -> None:
    world.watch.unwatch(world.mine.fileno())
    world.reset()
    world.turn()
    assert world.told == []


def test_a_connection_is_watched_again(world: World) -> None:
    fd = world.mine.fileno()
    world.watch.unwatch(fd)
    world.watch.watch(fd, world.told.append)
    world.reset()
    world.until(1)
    assert world.told == [HangUp.RESET]
