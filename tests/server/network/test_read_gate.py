"""When a connection is read: paused, parked, and the effect of a client that leaves meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from kbroker.server.network.hang_ups import HangUp
from kbroker.server.network.read_gate import ReadGate


class FakeTransport:
    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.calls: list[str] = []
        self.closing = False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.peer


class FakeWatch:
    def __init__(self) -> None:
        self.watched: dict[int, Callable[[HangUp], None]] = {}

    def watch(self, fd: int, on_hang_up: Callable[[HangUp], None]) -> None:
        assert fd not in self.watched
        self.watched[fd] = on_hang_up

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]


class World:
    def __init__(self, peer: socket.socket) -> None:
        self.fd = peer.fileno()
        self.transport, self.watch = FakeTransport(peer), FakeWatch()
        self.seen: list[HangUp] = []
        self.gate = ReadGate(
            self.transport,  # type: ignore[arg-type]  # a stand-in
            self.watch,  # type: ignore[arg-type]  # a stand-in
            self.seen.append,
        )


@pytest.fixture
def world() -> Iterator[World]:
    with socket.socket() as peer:
        yield World(peer)


def test_reading_is_paused_and_resumed_once(world: World) -> None:
    gate = world.gate
    gate.pause()
    gate.pause()
    assert not gate.is_reading
    gate.resume()
    gate.resume()
    assert gate.is_reading
    assert world.transport.calls == ["pause", "resume"]
    assert not world.watch.watched, "the next turn reads again: nothing to watch"


def test_a_parked_connection_is_watched_until_it_is_read(world: World) -> None:
    world.gate.park()
    world.gate.park()
    assert list(world.watch.watched) == [world.fd]
    world.gate.resume()
    assert world.watch.watched == {}
    assert world.transport.calls == ["pause", "resume"]


def test_a_client_that_leaves_while_parked_is_reported(world: World) -> None:
    world.gate.park()
    world.watch.watched[world.fd](HangUp.END_OF_STREAM)
    assert world.gate.has_peer_ended
    assert world.seen == [HangUp.END_OF_STREAM]


def test_a_closing_transport_is_not_watched(world: World) -> None:
    world.transport.closing = True
    world.gate.park()
    assert world.watch.watched == {}
    assert not world.gate.is_reading


def test_close_forgets_the_connection(world: World) -> None:
    world.gate.park()
    on_hang_up = world.watch.watched[world.fd]
    world.gate.close()
    assert world.watch.watched == {}
    on_hang_up(HangUp.RESET)
    assert world.seen == []


def test_the_end_of_the_stream_leaves_nothing_to_read(world: World) -> None:
    world.gate.end()
    assert not world.gate.is_reading
    assert world.transport.calls == []
