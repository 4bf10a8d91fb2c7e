"""Responses that wait behind an earlier one: their memory is charged and limited, and released when
the peer leaves, also while the connection is not read.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.peer_progress import STUCK_SECONDS
from kbroker.server.network.responses import MAX_PIPELINED
from tests.server.loopback import LOOPS, Loopback, NewLoop, Peer, run, until

BIG = 200_000
HUGE = 600_000
"""More than the kernel accepts for a peer that does not read."""


pytestmark = pytest.mark.parametrize("new_loop", LOOPS)


class Wait(Deferred[bytes]):
    """Counts how often its owner gave up waiting."""

    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def script_large_answers(loopback: Loopback) -> None:
    loopback.script.api_key = ApiKey.METADATA
    loopback.script.parts[b"big"] = lambda: [struct.pack(">i", BIG), bytes(BIG)]
    loopback.script.parts[b"huge"] = lambda: [struct.pack(">i", HUGE), bytes(HUGE)]
    loopback.script.new_deferred = Wait


async def connect_slowly(loopback: Loopback) -> Peer:
    """A peer that reads nothing until `read_on`."""
    peer = await loopback.read_from(await loopback.connect_raw())
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of asyncio
    return peer


def read_on(peer: Peer) -> None:
    sock = peer.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]  # of asyncio


async def queue_behind_a_wait(loopback: Loopback, *, count: int = MAX_PIPELINED) -> Peer:
    """A peer whose first request waits, with many requests behind it whose answers are large."""
    peer = await loopback.connect()
    await peer.send(b"dfirst", *[b"xbig"] * count)
    await until(lambda: len(loopback.script.seen) > 1 and not loopback.only._gate.is_reading)
    return peer


def is_released(loopback: Loopback, memory: MemoryPool) -> bool:
    return not loopback.shared.connections and memory.used == 0


def test_queued_responses_are_charged_and_bounded(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(64 << 20)
            script_large_answers(loopback)
            loopback.shared.max_queued_bytes = 3 * BIG
            peer = await queue_behind_a_wait(loopback)
            assert len(loopback.script.seen) == 1 + 3
            assert 3 * BIG < memory.used < 3 * BIG + 10_000
            loopback.script.waiting[b"first"].resolve(b"first")
            assert await peer.receive() == b"first"
            for _ in range(MAX_PIPELINED):
                assert await peer.receive() == bytes(BIG)
            await until(lambda: memory.used == 0)
            assert memory.peak < 6 * BIG, "as much as the bound, and what is being sent"
            await peer.close()

    run(new_loop, main)


def test_large_responses_of_small_apis_are_charged(new_loop: NewLoop) -> None:
    """They are started together, because responses of their APIs are small as a rule; the peer does
    not take the first.
    """

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            memory = loopback.use_memory(64 << 20)
            script_large_answers(loopback)
            loopback.script.api_key = ApiKey.PRODUCE
            peer = await connect_slowly(loopback)
            await peer.send(b"xhuge", *[b"xbig"] * 10)
            await until(lambda: loopback.script.seen)
            assert len(loopback.script.seen) == 11
            assert memory.used > 10 * BIG
            read_on(peer)
            assert await peer.receive() == bytes(HUGE)
            for _ in range(10):
                assert await peer.receive() == bytes(BIG)
            await until(lambda: memory.used == 0)
            await peer.close()

    run(new_loop, main)


def test_responses_that_resolve_behind_a_wait_are_charged(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(64 << 20)
            script_large_answers(loopback)
            peer = await loopback.connect()
            await peer.send(b"dfirst", b"dsecond", b"dthird")
            await until(lambda: len(loopback.script.waiting) == 3)
            loopback.script.waiting[b"third"].resolve(b"xbig")
            await until(lambda: memory.used >= BIG)
            loopback.script.waiting[b"second"].resolve(b"xbig")
            await until(lambda: memory.used >= 2 * BIG)
            loopback.script.waiting[b"first"].resolve(b"first")
            assert await peer.receive() == b"first"
            for _ in range(2):
                assert await peer.receive() == bytes(BIG)
            await until(lambda: memory.used == 0)
            await peer.close()

    run(new_loop, main)


def test_responses_behind_a_slow_reader_are_charged(new_loop: NewLoop) -> None:
    """They resolve while the peer does not take an earlier one."""

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            memory = loopback.use_memory(64 << 20)
            script_large_answers(loopback)
            peer = await connect_slowly(loopback)
            await peer.send(b"dfirst", b"dsecond", b"dthird")
            await until(lambda: len(loopback.script.waiting) == 3)
            loopback.script.waiting[b"first"].resolve(b"xhuge")
            await until(lambda: memory.used > 0)
            loopback.script.waiting[b"third"].resolve(b"xbig")
            loopback.script.waiting[b"second"].resolve(b"xbig")
            await until(lambda: loopback.only._responses.queue.charged_bytes >= 2 * BIG)
            assert (
                memory.used
                == loopback.only._responses.queue.charged_bytes
                + loopback.only._responses.charged_bytes
            )
            read_on(peer)
            assert await peer.receive() == bytes(HUGE)
            for _ in range(2):
                assert await peer.receive() == bytes(BIG)
            await until(lambda: memory.used == 0)
            await peer.close()

    run(new_loop, main)


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_peer_that_leaves_while_its_pipeline_is_full_is_noticed(
    new_loop: NewLoop, how: str
) -> None:
    """The connection is not read, and unread requests stand before the end of the stream."""

    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(64 << 20)
            script_large_answers(loopback)
            peer = await queue_behind_a_wait(loopback, count=20 * MAX_PIPELINED)
            await asyncio.sleep(0)
            waiting = loopback.script.waiting[b"first"]
            if how == "resets":
                linger = struct.pack("ii", 1, 0)
                sock = peer.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            peer.writer.close()
            await until(lambda: is_released(loopback, memory))
            assert isinstance(waiting, Wait) and waiting.cancelled == 1
            assert loopback.shared.budget.used == 0
            assert len(loopback.script.seen) < MAX_PIPELINED
            waiting.resolve(b"too late")
            await asyncio.sleep(0)

    run(new_loop, main)


def test_a_peer_that_leaves_while_small_requests_wait_is_noticed(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.new_deferred = Wait
            peer = await loopback.connect()
            await peer.send(*[b"d%d" % i for i in range(MAX_PIPELINED + 10)])
            await until(lambda: len(loopback.script.seen) == MAX_PIPELINED)
            await until(lambda: not loopback.only._gate.is_reading)
            await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert [wait.cancelled for wait in loopback.script.waiting.values()] == [  # type: ignore[attr-defined]  # Wait
                1
            ] * MAX_PIPELINED

    run(new_loop, main)


def test_a_peer_that_only_ended_its_requests_gets_its_answers(new_loop: NewLoop) -> None:
    """Half-closed, and reading on: nothing waits but the peer's own reading."""

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            script_large_answers(loopback)
            peer = await connect_slowly(loopback)
            await peer.send(b"xhuge", *[b"xbig"] * 5)
            peer.writer.write_eof()
            await until(lambda: len(loopback.script.seen) >= 1)
            await asyncio.sleep(0.01)
            read_on(peer)
            assert await peer.receive() == bytes(HUGE)
            for _ in range(5):
                assert await peer.receive() == bytes(BIG)
            await peer.close()

    run(new_loop, main)


def test_queued_responses_that_do_not_move_make_room(new_loop: NewLoop) -> None:
    """Queued responses that do not move end their connection only while others wait."""

    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(1 << 20)
            script_large_answers(loopback)
            waiting = await queue_behind_a_wait(loopback)
            assert memory.is_pressed
            now = asyncio.get_running_loop().time()
            loopback.only.sweep(now, 600)
            loopback.only.sweep(now + STUCK_SECONDS + 1, 600)
            assert loopback.shared.connections, "no other connection waits for memory"
            other = await loopback.connect()
            await other.send(b"e other")
            await until(lambda: memory.waiting == 1)
            for at in (now + 100, now + 100 + STUCK_SECONDS + 1):
                for connection in list(loopback.shared.connections):
                    connection.sweep(at, 600)
            assert await other.receive() == b"e other"
            await waiting.close()
            await other.close()

    run(new_loop, main)
