"""Connections on real sockets: order, pipelining, back-pressure, limits, and reasons to close
one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

import pytest

from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.server.network import connection as connection_module
from kbroker.server.network.connection import FRAMES_PER_TURN
from kbroker.server.network.responses import MAX_PIPELINED
from tests.server.loopback import LOOPS, Loopback, NewLoop, frame, run, until

pytestmark = pytest.mark.parametrize("new_loop", LOOPS)


def test_requests_byte_by_byte_and_together(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            peer = await loopback.connect()
            for byte in frame(b"e one") + frame(b"e two"):
                peer.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert [await peer.receive() for _ in range(2)] == [b"e one", b"e two"]
            await peer.send(b"e three", b"n", b"e four")
            assert [await peer.receive() for _ in range(2)] == [b"e three", b"e four"]
            assert loopback.script.seen[3] == b"n"
            await peer.close()

    run(new_loop, main)


def test_responses_leave_in_order(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            script = loopback.script
            peer = await loopback.connect()
            await peer.send(b"dfirst", b"e second", b"dthird", b"e fourth")
            await until(lambda: len(script.seen) == 4)
            script.waiting[b"third"].resolve(b"third")
            await asyncio.sleep(0.01)
            assert not peer.reader._buffer, "the first is not there yet"  # type: ignore[attr-defined]  # of asyncio
            script.waiting[b"first"].resolve(b"first")
            assert [await peer.receive() for _ in range(4)] == [
                b"first", b"e second", b"third", b"e fourth",
            ]  # fmt: skip
            await peer.close()

    run(new_loop, main)


def test_pipelining_is_bounded_per_connection(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            script = loopback.script
            peer = await loopback.connect()
            await peer.send(b"dfirst", *[b"e %d" % i for i in range(3 * MAX_PIPELINED)])
            await until(lambda: len(script.seen) == MAX_PIPELINED)
            await asyncio.sleep(0.02)
            assert len(script.seen) == MAX_PIPELINED
            script.waiting[b"first"].resolve(b"first")
            assert await peer.receive() == b"first"
            for i in range(3 * MAX_PIPELINED):
                assert await peer.receive() == b"e %d" % i
            assert loopback.shared.budget.used == 0
            await peer.close()

    run(new_loop, main)


def test_pipelining_is_bounded_over_all_connections(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback(queued=3) as loopback:
            script = loopback.script
            greedy = await loopback.connect()
            await greedy.send(b"dgreedy", *[b"e %d" % i for i in range(10)])
            await until(lambda: len(script.seen) == 4)
            other = await loopback.connect()
            await other.send(b"e hello")
            assert await other.receive() == b"e hello", (
                "the first request of a connection has a place"
            )
            assert len(script.seen) == 5
            script.waiting[b"greedy"].resolve(b"greedy")
            assert await greedy.receive() == b"greedy"
            assert [await greedy.receive() for _ in range(10)] == [b"e %d" % i for i in range(10)]
            assert loopback.shared.budget.used == 0
            await greedy.close()
            await other.close()

    run(new_loop, main)


def test_a_slow_reader_holds_one_response_only(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            script = loopback.script
            script.api_key = ApiKey.METADATA  # an API whose responses may be large
            big = bytes(300_000)
            script.parts[b"big"] = lambda: [struct.pack(">i", len(big)), big]
            client = await loopback.connect_raw()
            await asyncio.get_running_loop().sock_sendall(client, frame(b"xbig") * 40)
            await until(lambda: script.rendered >= 1)
            await asyncio.sleep(0.05)
            assert script.rendered == 1
            assert len(script.seen) <= FRAMES_PER_TURN, "and stops reading"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            peer = await loopback.read_from(client, limit=1 << 22)
            for _ in range(40):
                assert await peer.receive() == big
            await peer.close()

    run(new_loop, main)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(frame(b"m"), "no request", id="malformed"),
        pytest.param(frame(b"c"), "acks=0 failed", id="a handler closes"),
        pytest.param(b"\xff\xff\xff\xfe", "length of -2", id="negative length"),
        pytest.param(struct.pack(">i", (1 << 20) + 1), "socket.request.max.bytes", id="too long"),
        pytest.param(bytes.fromhex("16030100f5010000f10303"), "TLS", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP", id="HTTP"),
    ],
)
def test_what_is_no_request_ends_one_connection(
    new_loop: NewLoop, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            bystander = await loopback.connect()
            peer = await loopback.connect()
            peer.writer.write(data)
            assert await peer.ended()
            await bystander.send(b"e still here")
            assert await bystander.receive() == b"e still here"
            await peer.close()
            await bystander.close()

    with caplog.at_level(logging.INFO, connection_module.__name__):
        run(new_loop, main)
    (line,) = [record.getMessage() for record in caplog.records]
    assert reason in line and "127.0.0.1" in line and "TEST" in line


def test_earlier_responses_leave_before_the_end(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            peer = await loopback.connect()
            await peer.send(b"e one", b"m", b"e never")
            assert await peer.receive() == b"e one"
            assert await peer.ended()
            assert loopback.script.seen == [b"e one", b"m"]
            await peer.close()

    run(new_loop, main)


def test_limits_refuse_new_connections(new_loop: NewLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Loopback(per_host=1) as loopback:
            first = await loopback.connect()
            await first.send(b"e here")
            assert await first.receive() == b"e here"
            second = await loopback.connect()
            assert await second.ended()
            await first.close()
            await until(lambda: loopback.shared.limits.count == 0)
            third = await loopback.connect()
            await third.send(b"e again")
            assert await third.receive() == b"e again"
            await second.close()
            await third.close()

    run(new_loop, main)
    assert "max.connections.per.ip=1" in caplog.text


def test_the_sweep_ends_idle_connections_only(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            waiting = await loopback.connect()
            await waiting.send(b"dlong")
            await until(lambda: loopback.script.seen == [b"dlong"])
            half = await loopback.connect()
            half.writer.write(frame(b"e half")[:7])
            await until(lambda: len(loopback.shared.connections) == 2)
            await asyncio.sleep(0.01)
            now = asyncio.get_running_loop().time()
            for connection in list(loopback.shared.connections):
                connection.sweep(now + 50, 100)
            assert len(loopback.shared.connections) == 2
            for connection in list(loopback.shared.connections):
                connection.sweep(now + 200, 100)
            assert await half.ended()
            loopback.script.waiting[b"long"].resolve(b"long")
            assert await waiting.receive() == b"long", "a request in progress is no idleness"
            await half.close()
            await waiting.close()

    run(new_loop, main)


def test_stop_answers_what_waits(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            peer = await loopback.connect()
            await peer.send(b"dlast")
            await until(lambda: loopback.script.seen == [b"dlast"])
            loopback.only.stop()
            await peer.send(b"e too late")
            loopback.script.waiting[b"last"].resolve(b"last")
            assert await peer.receive() == b"last"
            await until(lambda: not loopback.shared.connections)
            assert loopback.script.seen == [b"dlast"]
            await peer.close()

    run(new_loop, main)


def test_a_broken_invariant_reaches_the_broker(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:

            def fail(body: bytes) -> None:
                raise InvariantError("impossible")

            loopback.script.on_request = fail
            peer = await loopback.connect()
            await peer.send(b"e")
            assert await peer.ended()
            assert [str(error) for error in loopback.fatal] == ["impossible"]
            await peer.close()

    run(new_loop, main)


def test_a_peer_that_leaves_takes_its_waiting_requests_along(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            peer = await loopback.connect()
            await peer.send(b"da", b"db", b"dc")
            await until(lambda: len(loopback.script.seen) == 3)
            assert loopback.shared.budget.used == 2
            await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert loopback.shared.budget.used == 0
            loopback.script.waiting[b"a"].resolve(b"a")
            await asyncio.sleep(0)

    run(new_loop, main)


def test_what_waits_is_cancelled_when_its_connection_goes(new_loop: NewLoop) -> None:
    cancelled: list[int] = []

    class Wait(Deferred[bytes]):
        def cancel(self) -> None:
            cancelled.append(id(self))

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.new_deferred = Wait
            waiting = loopback.script.waiting
            for how in (b"n nothing wrong", b"m no request"):
                cancelled.clear()
                peer = await loopback.connect()
                await peer.send(b"da", b"db")
                await until(lambda: {b"a", b"b"} <= waiting.keys())
                await peer.send(how)
                await peer.close()
                await until(lambda: not loopback.shared.connections)
                assert sorted(cancelled) == sorted(id(one) for one in waiting.values())
                waiting.clear()

    run(new_loop, main)
