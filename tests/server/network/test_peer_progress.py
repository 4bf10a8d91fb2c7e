"""A connection is closed for a lack of progress, not for its duration."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.server.network.page_cache import PageCache
from kbroker.server.network.peer_progress import STUCK_SECONDS, PeerProgress
from kbroker.server.network.response_writer import ResponseWriter
from tests.server.loopback import LOOPS, FileRange, Loopback, NewLoop, run, until

SIZE = 600_000
"""More than the kernel accepts for a peer that does not read."""

MAX_IDLE_SECONDS = 100.0


on_loops = pytest.mark.parametrize("new_loop", LOOPS)


async def connect(loopback: Loopback) -> tuple[socket.socket, Callable[[int], object]]:
    """A peer that reads only when it is told to: its socket, and `take(count)`."""
    raw = await loopback.connect_raw()
    loop = asyncio.get_running_loop()

    async def take(count: int) -> None:
        while count:
            count -= len(await loop.sock_recv(raw, count))

    return raw, take


def send(raw: socket.socket, *bodies: bytes) -> None:
    raw.sendall(b"".join(struct.pack(">i", len(body)) + body for body in bodies))


def sweep(loopback: Loopback, now: float) -> None:
    for connection in list(loopback.shared.connections):
        connection.sweep(now, MAX_IDLE_SECONDS)


def script(loopback: Loopback) -> None:
    loopback.script.api_key = ApiKey.METADATA
    loopback.script.parts[b"big"] = lambda: [struct.pack(">i", SIZE), bytes(SIZE)]


@on_loops
def test_bytes_of_an_earlier_response_are_not_those_of_a_later_one(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that takes one response after another holds as much at each sweep."""
    monkeypatch.setattr(ResponseWriter, "held_bytes", 500_000)

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            memory = loopback.use_memory(1 << 30)
            script(loopback)
            raw, take = await connect(loopback)
            now = asyncio.get_running_loop().time()
            waiting = memory.wait(2 << 30, lambda: None)
            for number in range(1, 5):
                send(raw, b"xbig")
                await until(lambda number=number: loopback.script.rendered == number)  # type: ignore[misc]  # bound now
                now += STUCK_SECONDS + 1
                sweep(loopback, now)
                assert loopback.shared.connections, f"response {number} has only begun to leave"
                await take(4 + SIZE)
            memory.withdraw(waiting)
            raw.close()

    run(new_loop, main)


@on_loops
@pytest.mark.parametrize("sendfile", [True, False], ids=["sendfile", "pread"])
def test_a_response_that_moves_is_not_idle(
    new_loop: NewLoop, sendfile: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(SIZE))

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            loopback.script.parts[b"file"] = lambda: [
                struct.pack(">i", SIZE),
                FileRange(path, 0, SIZE),
            ]
            raw, take = await connect(loopback)
            await until(lambda: loopback.shared.connections)
            loopback.only._responses.writer.use_sendfile = sendfile
            now = asyncio.get_running_loop().time()
            send(raw, b"xfile")
            await until(lambda: loopback.script.rendered)
            for _ in range(8):
                await take(20_000)
                now += MAX_IDLE_SECONDS - 1
                sweep(loopback, now)
                assert loopback.shared.connections, "the peer takes what is sent"
            sweep(loopback, now + MAX_IDLE_SECONDS + 1)
            await until(lambda: not loopback.shared.connections)
            raw.close()

    run(new_loop, main)


@on_loops
def test_a_response_that_waits_for_the_disk_is_not_stuck(new_loop: NewLoop, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(SIZE))
    cold = SimpleNamespace(holds=lambda *_: False, was_read=lambda *_: None)
    disk = threading.Event()

    class SlowDisk(FileRange):
        def read(self, offset: int = 0, count: int | None = None) -> bytes:
            disk.wait()
            return super().read(offset, count)

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.shared.page_cache = cast(PageCache, cold)
            loopback.script.parts[b"file"] = lambda: [
                struct.pack(">i", SIZE + 20_000),
                bytes(20_000),
                SlowDisk(path, 0, SIZE),
            ]
            peer = await loopback.connect()
            await peer.send(b"xfile")
            await until(lambda: loopback.script.rendered)
            now = asyncio.get_running_loop().time()
            for _ in range(4):
                now += MAX_IDLE_SECONDS + 1
                sweep(loopback, now)
            disk.set()
            assert await peer.receive() == bytes(SIZE + 20_000)
            await peer.close()

    run(new_loop, main)


@on_loops
def test_after_a_long_wait_the_peer_has_its_idle_time(new_loop: NewLoop) -> None:
    """For a response, and for memory: neither counts as idle afterwards."""

    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(1 << 20)
            one = await loopback.connect()
            await one.send(b"dlong")
            await until(lambda: loopback.script.waiting)
            memory.charge(1 << 20)
            other = await loopback.connect()
            await other.send(b"e other")
            await until(lambda: memory.waiting == 1)
            now = asyncio.get_running_loop().time()
            for _ in range(4):
                now += MAX_IDLE_SECONDS - 1
                sweep(loopback, now)
            loopback.script.waiting[b"long"].resolve(b"long")
            memory.release(1 << 20)
            assert await one.receive() == b"long"
            assert await other.receive() == b"e other"
            sweep(loopback, now + MAX_IDLE_SECONDS / 2)
            await one.send(b"e again")
            assert await one.receive() == b"e again"
            for peer in (one, other):
                await peer.close()

    run(new_loop, main)


@on_loops
@pytest.mark.parametrize("next_request", [b"e next", b"dnext"], ids=["memory", "response"])
def test_a_peer_that_takes_nothing_ends_whatever_it_waits_for(
    new_loop: NewLoop, next_request: bytes
) -> None:
    """Its next request waits too, for memory or for its response: that is no excuse for a lack of
    progress.
    """

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            memory = loopback.use_memory(1 << 20)
            script(loopback)
            raw, _ = await connect(loopback)
            if next_request.startswith(b"d"):
                send(raw, b"dfirst", next_request)
                await until(lambda: len(loopback.script.waiting) == 2)
                loopback.script.waiting[b"first"].resolve(b"xbig")
            else:
                send(raw, b"xbig", next_request)
            await until(lambda: memory.is_pressed)
            other = await loopback.connect()
            await other.send(b"e other")
            await until(lambda: memory.waiting >= 1)
            now = asyncio.get_running_loop().time()
            sweep(loopback, now)
            sweep(loopback, now + STUCK_SECONDS + 1)
            assert await other.receive() == b"e other"
            raw.close()
            await other.close()

    run(new_loop, main)


@on_loops
def test_chunks_that_are_read_for_a_slow_peer_are_charged(
    new_loop: NewLoop, tmp_path: Path
) -> None:
    """Where sendfile is impossible a file range passes through memory, here by way of a thread."""
    path = tmp_path / "log"
    path.write_bytes(bytes(SIZE))
    cold = SimpleNamespace(holds=lambda *_: False, was_read=lambda *_: None)

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            loopback.shared.page_cache = cast(PageCache, cold)
            memory = loopback.use_memory(1 << 20)
            loopback.script.parts[b"file"] = lambda: [
                struct.pack(">i", SIZE),
                FileRange(path, 0, SIZE),
            ]
            raw, take = await connect(loopback)
            await until(lambda: loopback.shared.connections)
            loopback.only._responses.writer.use_sendfile = False
            send(raw, b"xfile")
            for _ in range(2):
                await until(lambda: memory.used > 100_000)
                await take(260_000)
            await take(4 + SIZE - 2 * 260_000)
            await until(lambda: memory.used == 0)
            raw.close()

    run(new_loop, main)


@on_loops
def test_a_sweep_holds_no_response(new_loop: NewLoop) -> None:
    """A connection that is idle afterwards would keep its last response, which is not charged."""

    async def main() -> None:
        async with Loopback() as loopback:
            raw, take = await connect(loopback)
            send(raw, b"dlast")
            await until(lambda: b"last" in loopback.script.waiting)
            sweep(loopback, asyncio.get_running_loop().time())
            response = weakref.ref(loopback.only._responses.queue[0])
            loopback.script.waiting.pop(b"last").resolve(b"response")
            await take(4 + len(b"response"))
            await until(lambda: response() is None)
            assert loopback.shared.connections
            raw.close()

    run(new_loop, main)


def test_no_contention_gives_all_the_time() -> None:
    progress = PeerProgress()
    assert progress.responses_moved(0, "a")
    progress.no_contention()
    assert not progress.responses_are_stuck(1000)
    assert not progress.responses_are_stuck(1000 + STUCK_SECONDS)
    assert progress.responses_are_stuck(1001 + STUCK_SECONDS)
    assert progress.responses_moved(1002 + STUCK_SECONDS, "b")
    assert not progress.responses_are_stuck(1003 + STUCK_SECONDS)
    assert not progress.responses_moved(1004 + STUCK_SECONDS, "b")
