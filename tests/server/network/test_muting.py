"""A muted connection: no request is started, and arriving requests wait."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.protocol.errors import MalformedRequest
from kbroker.replication.rates import QuotaWindow
from kbroker.server.network.muting import Muting
from kbroker.server.network.peer_progress import GRACE_SWEEPS, MIN_BYTES_PER_SWEEP
from kbroker.server.quotas.connection_rates import ConnectionRates
from tests.server.loopback import LOOPS, Loopback, NewLoop, frame, run, until


class Clock:
    """A loop whose time the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None], Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        handle = SimpleNamespace(cancelled=False)
        handle.cancel = lambda: setattr(handle, "cancelled", True)
        self.timers.append((when, callback, handle))
        return handle

    @property
    def pending(self) -> list[float]:
        return [when for when, _, handle in self.timers if not handle.cancelled]


def muting(clock: Clock, over: list[float]) -> Muting:
    loop = cast(asyncio.AbstractEventLoop, clock)
    return Muting(loop, lambda: over.append(clock.now))


def test_the_longer_time_counts() -> None:
    clock = Clock()
    muted = muting(clock, [])
    assert not muted.is_muted
    muted.begin(1000)
    muted.begin(500)
    assert clock.pending == [101.0]
    muted.begin(3000)
    assert clock.pending == [103.0]
    assert muted.is_muted


def test_it_is_muted_until_the_owner_ends_it() -> None:
    clock = Clock()
    over: list[float] = []
    muted = muting(clock, over)
    muted.begin(1000)
    clock.now = 101.0
    clock.timers[0][1]()
    assert over == [101.0]
    assert muted.is_muted
    muted.end()
    assert not muted.is_muted
    muted.begin(10)
    assert muted.is_muted


def test_a_closed_one_is_muted_no_more() -> None:
    clock = Clock()
    muted = muting(clock, [])
    muted.begin(1000)
    muted.close()
    muted.begin(1000)
    assert clock.pending == []
    assert not muted.is_muted


# On real sockets

MUTE_MS = 100
TOLERANCE_MS = 20
OTHER = b"e other" + bytes(100_000)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_requests_wait_while_their_connection_is_muted(new_loop: NewLoop) -> None:
    """Also those that are in the buffer already; other connections continue."""

    async def main() -> None:
        async with Loopback() as loopback:
            script, loop = loopback.script, asyncio.get_running_loop()
            peer, other = await loopback.connect(), await loopback.connect()

            def mute(body: bytes) -> None:
                if body == b"e mute":
                    script.sessions[-1].mute(MUTE_MS)

            script.on_request = mute
            started = loop.time()
            await peer.send(b"e mute", b"e second", b"e third")
            assert await peer.receive() == b"e mute"
            await other.send(b"e other")
            assert await other.receive() == b"e other"
            assert script.seen == [b"e mute", b"e other"]
            await peer.send(b"e fourth")
            assert [await peer.receive() for _ in range(3)] == [
                b"e second", b"e third", b"e fourth",
            ]  # fmt: skip
            assert (loop.time() - started) * 1000 >= MUTE_MS - TOLERANCE_MS
            await peer.close()
            await other.close()

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_muted_connection_that_is_closed_stays_closed(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            script = loopback.script
            peer = await loopback.connect()

            def mute(body: bytes) -> None:
                script.sessions[-1].mute(60_000)
                if body == b"m bad":
                    raise MalformedRequest("no request")

            script.on_request = mute
            await peer.send(b"m bad", b"e late")
            assert await peer.ended()
            await until(lambda: not loopback.shared.connections)
            script.sessions[-1].mute(60_000)  # by a response that is charged later
            assert script.seen == [b"m bad"]
            await peer.close()

    run(new_loop, main)


def sweep(loopback: Loopback, passed: float) -> None:
    now = asyncio.get_running_loop().time() + passed
    for connection in list(loopback.shared.connections):
        connection.sweep(now, 600)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_muted_connection_does_not_keep_memory_that_others_wait_for(new_loop: NewLoop) -> None:
    """Its pipelined requests are started, and mute it again."""

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            memory = loopback.use_memory(400_000)
            muted, other = await loopback.connect(), await loopback.connect()

            def mute(body: bytes) -> None:
                if body != OTHER:
                    loopback.script.sessions[-1].mute(60_000)

            loopback.script.on_request = mute
            first, second, third = (b"e %d" % number + bytes(30_000) for number in range(3))
            await muted.send(first, second, third)
            assert await muted.receive() == first
            await until(lambda: memory.requests == 64 * 1024)
            await other.send(OTHER)
            await until(lambda: memory.waiting == 1)
            sweep(loopback, 1)
            assert await other.receive() == OTHER
            assert await muted.receive() == second
            assert loopback.script.seen == [first, second, OTHER]
            sweep(loopback, 2)
            assert len(loopback.script.seen) == 3, "no other waits"
            await muted.close()
            await other.close()

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_muted_connection_is_not_closed_for_its_pace(new_loop: NewLoop) -> None:
    """The broker is the one that does not read it. Half of a request has arrived."""

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            memory = loopback.use_memory(1_200_000)
            muted, other = await loopback.connect(), await loopback.connect()
            request = b"e" + bytes(400_000)
            await muted.send(b"e first")
            assert await muted.receive() == b"e first"
            muted.writer.write(frame(request)[:200_000])
            await until(lambda: memory.requests > 400_000)
            other.writer.write(frame(b"n" + bytes(700_000))[:100_000])
            await until(lambda: memory.waiting == 1)
            for passed in range(1, GRACE_SWEEPS):
                sweep(loopback, passed)
            loopback.script.sessions[0].mute(60_000)  # by a response that is charged late
            for passed in range(GRACE_SWEEPS, GRACE_SWEEPS + 2):
                sweep(loopback, passed)
            muted.writer.write(frame(request)[200_000:])
            assert await muted.receive() == request
            await muted.close()
            await other.close()

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_sender_that_is_muted_again_and_again_is_closed_for_its_pace(new_loop: NewLoop) -> None:
    """It sends half of a request, and has earlier ones that are answered one by one."""

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            memory = loopback.use_memory(1_200_000)
            slow, other = await loopback.connect(), await loopback.connect()
            await slow.send(b"e first")
            assert await slow.receive() == b"e first"
            slow.writer.write(frame(b"n" + bytes(400_000))[:200_000])
            await until(lambda: memory.requests > 400_000)
            await other.send(b"e" + bytes(700_000))
            for passed in range(GRACE_SWEEPS + 200_000 // MIN_BYTES_PER_SWEEP + 3):
                loopback.script.sessions[0].mute(60_000)
                slow.writer.write(b"x")
                await asyncio.sleep(0.01)
                sweep(loopback, passed)
            assert await slow.ended()
            assert await other.receive() == b"e" + bytes(700_000)
            await slow.close()
            await other.close()

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_client_that_leaves_while_it_is_muted_is_noticed(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            script = loopback.script
            peer = await loopback.connect()
            script.on_request = lambda body: script.sessions[-1].mute(60_000)
            await peer.send(b"e one", b"e two")
            assert await peer.receive() == b"e one"
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.writer.transport.abort()
            await until(lambda: not loopback.shared.connections)

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_connection_above_the_rate_of_its_address_is_closed_later(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            shared = loopback.shared
            shared.rates = ConnectionRates(QuotaWindow(2, 300))
            shared.rates.change({(("ip", "127.0.0.1"),): {"connection_creation_rate": 3.4}})
            accepted, refused = await loopback.connect(), await loopback.connect()
            await refused.send(b"e refused")
            await accepted.send(b"e accepted")
            assert await accepted.receive() == b"e accepted"
            assert await refused.ended()
            assert loopback.script.seen == [b"e accepted"]
            assert shared.limits.count == shared.descriptors.used == 1
            await accepted.close()
            await refused.close()

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_connection_for_which_the_backlog_has_no_room_is_closed_at_once(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            shared = loopback.shared
            shared.rates = ConnectionRates(QuotaWindow(2, 60_000), broker_rate=0, backlog=1)
            waiting, refused = await loopback.connect(), await loopback.connect()
            assert await refused.ended()
            assert "socket.listen.backlog.size connections wait" in caplog.text
            assert shared.limits.count == shared.descriptors.used == 1
            await waiting.close()
            await refused.close()

    run(new_loop, main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_refused_connection_does_not_outlive_its_listener(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            shared = loopback.shared
            shared.rates = ConnectionRates(QuotaWindow(2, 60_000))
            shared.rates.change({(("ip", "127.0.0.1"),): {"connection_creation_rate": 0.0001}})
            refused = await loopback.connect()
            await until(lambda: shared.held)
        assert await refused.ended()
        assert not shared.held
        assert shared.descriptors.used == 0
        await refused.close()

    run(new_loop, main)
