"""Connections on real sockets: order, pipelining, back-pressure, limits, and what ends one."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codec import Part
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.server.network import connection as connection_module
from kbroker.server.network import response_writer
from kbroker.server.network.connection import FRAMES_PER_TURN
from kbroker.server.network.page_cache import PageCache
from kbroker.server.network.peer_progress import GRACE_SWEEPS, STUCK_SECONDS
from kbroker.server.network.responses import MAX_PIPELINED
from tests.e2e.wire import frame_of
from tests.server.loopback import LOOPS, FileRange, Loopback, Peer, frame, run, until

HEARTBEAT = b"\0\x0c heartbeat"
"""A light request; what begins with a letter is none."""

NewLoop = Callable[[], asyncio.AbstractEventLoop]

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
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", loopback.server.bound.port))
            await loop.sock_sendall(client, frame(b"xbig") * 40)
            await until(lambda: script.rendered >= 1)
            await asyncio.sleep(0.05)
            assert script.rendered == 1
            assert len(script.seen) <= FRAMES_PER_TURN, "and stops reading"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            reader, writer = await asyncio.open_connection(sock=client, limit=1 << 22)
            peer = Peer(reader, writer)
            for _ in range(40):
                assert await peer.receive() == big
            await peer.close()

    run(new_loop, main)


@pytest.mark.parametrize("sendfile", [True, False], ids=["sendfile", "pread"])
def test_file_ranges_leave_in_order(new_loop: NewLoop, sendfile: bool, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1024
    path = tmp_path / "log"
    path.write_bytes(content)

    async def main() -> None:
        async with Loopback(send_buffer_bytes=16_384) as loopback:
            script = loopback.script

            def parts() -> list[Part]:
                ranges = [
                    FileRange(path, 5, 250_000),
                    FileRange(path, 77, 0),
                    FileRange(path, 1, 100_001),
                ]
                middle = b"<middle>" * 2_000
                size = 4 + 250_000 + len(middle) + 100_001 + 3
                return [struct.pack(">i", size), b"head", ranges[0], middle, *ranges[1:], b"end"]

            script.parts[b"file"] = parts
            peer = await loopback.connect()
            await until(lambda: len(loopback.shared.connections) == 1)
            loopback.only._responses.writer.use_sendfile = sendfile
            expected = (
                b"head" + content[5:250_005] + b"<middle>" * 2_000 + content[1:100_002] + b"end"
            )
            await peer.send(b"xfile", b"e between", b"xfile", b"dlater", b"xfile")
            assert await peer.receive() == expected
            assert await peer.receive() == b"e between"
            assert await peer.receive() == expected
            await until(lambda: b"later" in script.waiting)
            script.waiting[b"later"].resolve(b"later")
            assert await peer.receive() == b"later"
            assert await peer.receive() == expected
            await peer.close()

    run(new_loop, main)


def test_a_file_that_became_shorter_ends_the_connection(new_loop: NewLoop, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(1000))

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.parts[b"file"] = lambda: [
                struct.pack(">i", 2000), FileRange(path, 0, 2000),
            ]  # fmt: skip
            peer = await loopback.connect()
            await peer.send(b"xfile")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await peer.receive()
            await until(lambda: not loopback.shared.connections)
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


def test_large_requests_take_turns(new_loop: NewLoop) -> None:
    """Ten clients with requests of which the limit lets in three at a time: all are answered, small
    requests meanwhile.
    """

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            memory = loopback.use_memory(4 * 310_000)
            order: list[bytes] = []
            loopback.script.on_request = lambda body: order.append(body[:3])
            size = 300_000
            bodies = [b"e %d" % i + bytes(size) for i in range(10)]
            peers = [await loopback.connect() for _ in bodies]
            for number, (peer, body) in enumerate(zip(peers, bodies, strict=True)):
                peer.writer.write(frame(body)[:100_000])
                await until(lambda number=number: memory.waits + 3 >= number + 1)  # type: ignore[misc]  # bound now
                await until(lambda number=number: memory.requests >= min(number + 1, 3) * size)  # type: ignore[misc]  # bound now
            assert memory.waiting == 7
            small = await loopback.connect()
            await small.send(HEARTBEAT)
            assert await small.receive() == HEARTBEAT
            order.clear()
            for peer, body in zip(peers, bodies, strict=True):
                peer.writer.write(frame(body)[100_000:])
            for peer, body in zip(peers, bodies, strict=True):
                assert await peer.receive() == body
            assert sorted(order[:3]) == [b"e 0", b"e 1", b"e 2"], "those who were first"
            assert sorted(order) == [b"e %d" % i for i in range(10)]
            assert memory.peak <= memory.limit
            for peer in [*peers, small]:
                await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert memory.used == 0

    run(new_loop, main)


def test_requests_whose_copies_wait_fill_no_more_than_the_limit(new_loop: NewLoop) -> None:
    """As pipelined batches that wait for a worker: a connection that keeps its buffer for the next
    request would bring one after the other, and never ask for memory again.
    """

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            size, count = 300_000, 20
            memory = loopback.use_memory(4 * 310_000)
            script = loopback.script
            script.on_request = lambda body: memory.charge(len(body))
            peers = [await loopback.connect() for _ in range(2)]
            for peer in peers:
                name = b"%d" % peers.index(peer)
                bodies = (b"d%s %02d" % (name, i) + bytes(size) for i in range(count))
                peer.writer.write(b"".join(map(frame, bodies)))
            answered: list[bytes] = []
            while len(answered) < 2 * count:
                await until(lambda: memory.waiting == 2 or len(script.seen) == 2 * count)
                assert memory.used <= memory.limit + 2 * size
                for body, waiting in list(script.waiting.items()):
                    del script.waiting[body]
                    memory.release(len(body) + 1)
                    waiting.resolve(body[:4])
                    answered.append(body)
                await asyncio.sleep(0)
            for peer in peers:
                for _ in range(count):
                    await peer.receive()
                await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert memory.peak <= memory.limit + 2 * size
            assert memory.used == 0

    run(new_loop, main)


def test_who_does_not_send_its_request_makes_room(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            memory = loopback.use_memory(1_400_000)
            idle = await loopback.connect()
            await idle.send(b"e" * 100_000)
            await idle.receive()
            slow = await loopback.connect()
            slow.writer.write(frame(bytes(800_000))[:400_000])
            await until(lambda: memory.requests >= 800_000)
            other = await loopback.connect()
            other.writer.write(frame(b"e" * 500_000))
            await until(lambda: memory.waiting == 1)
            now = asyncio.get_running_loop().time()
            for passed in range(2 * GRACE_SWEEPS):  # every second one comes too soon to count
                for connection in list(loopback.shared.connections):
                    connection.sweep(now + passed / 2, 600)
            await asyncio.sleep(0.01)
            assert memory.waiting == 1, "it still has time"
            for connection in list(loopback.shared.connections):
                connection.sweep(now + GRACE_SWEEPS, 600)
            assert await other.receive() == b"e" * 500_000
            assert await slow.ended()
            await idle.send(b"e again")
            assert await idle.receive() == b"e again"
            for peer in (idle, other, slow):
                await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert memory.used == 0

    run(new_loop, main)
    assert "kbroker.memory.limit.bytes" in caplog.text


def test_who_sent_its_request_has_all_the_time_again(new_loop: NewLoop) -> None:
    """Also if nobody was waiting at the moment in which it was whole."""

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            memory = loopback.use_memory(1_400_000)
            sender = await loopback.connect()
            (connection,) = loopback.shared.connections
            request = frame(b"n" * 800_000)  # not to be answered
            now = asyncio.get_running_loop().time()
            for number in range(3):
                sender.writer.write(request[:400_000])
                await until(lambda: connection._buffer.pending_bytes == 400_000)
                other = memory.wait(700_000, lambda: None, held=0)
                for _ in range(GRACE_SWEEPS - 1):
                    now += 1
                    connection.sweep(now, 600)
                memory.withdraw(other)
                assert not memory.contended
                sender.writer.write(request[400_000:])
                await until(lambda: len(loopback.script.seen) > number)  # noqa: B023 - at once
            await sender.close()

    run(new_loop, main)


def test_each_part_of_a_file_is_looked_for_in_memory_once(
    new_loop: NewLoop, tmp_path: Path
) -> None:
    """Wherever a full socket cuts what is sent."""
    probed: list[range] = []
    warmed: list[range] = []

    def holds(fd: int, position: int, count: int) -> bool:
        probed.append(range(position, position + count))
        return len(probed) % 2 == 0

    def read(fd: int, position: int, count: int) -> None:
        warmed.append(range(position, position + count))

    pages = SimpleNamespace(holds=holds, was_read=read)
    size = 2_000_000
    path = tmp_path / "records"
    path.write_bytes(bytes(size))

    async def main() -> None:
        async with Loopback(send_buffer_bytes=20_000) as loopback:
            loopback.shared.page_cache = cast(PageCache, pages)
            loopback.script.parts[b""] = lambda: [
                struct.pack(">i", size),
                FileRange(path, 0, size),
            ]
            peer = await loopback.connect()
            await peer.send(b"x")
            assert await peer.receive() == bytes(size)
            await peer.close()

    run(new_loop, main)
    assert len(probed) > size // response_writer.CHUNK_BYTES
    assert [each for part in probed for each in (part.start, part.stop)] == [
        0, *(part.start for part in probed[1:] for _ in range(2)), size,
    ]  # fmt: skip
    assert warmed == probed[::2]


def test_a_large_request_of_small_fields_is_refused(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """At its first bytes, and also where there is room for all of it."""

    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            loopback.shared.max_list_bytes = 50_000
            produce, metadata = b"\0\0" + bytes(200_000), b"\0\3" + bytes(200_000)
            half = await loopback.connect()
            await half.send(metadata[:50_000])
            assert await half.receive() == metadata[:50_000]
            half.writer.write(frame(metadata)[:10_000])
            assert await half.ended()
            whole = await loopback.connect()
            await whole.send(produce)
            assert await whole.receive() == produce
            whole.writer.write(frame(metadata[:50_001]))
            assert await whole.ended()
            for peer in (half, whole):
                await peer.close()
            assert len(loopback.script.seen) == 2

    run(new_loop, main)
    assert "may have 50000" in caplog.text


def test_a_produce_request_of_very_many_partitions_is_refused(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Loopback(max_frame_bytes=1 << 20) as loopback:
            loopback.shared.max_list_bytes = 20_000
            peer = await loopback.connect()
            for count in (600, 700):
                data = [
                    ProduceRequest.PartitionProduceData(index=index, records=bytes(100))
                    for index in range(count)
                ]
                topic = ProduceRequest.TopicProduceData(name="t", partition_data=data)
                request = frame_of(ProduceRequest(topic_data=[topic]), 12)
                peer.writer.write(request)
                if count == 600:
                    assert await peer.receive() == request[4:]
            assert await peer.ended()
            await peer.close()

    run(new_loop, main)
    assert "very many partitions" in caplog.text


def test_a_response_that_is_not_taken_is_accounted_for(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            memory = loopback.use_memory(1 << 20)
            big = b"e" + bytes(1_000_000)
            loopback.script.parts[b"big"] = lambda: [struct.pack(">i", len(big)), big]
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", loopback.server.bound.port))
            await loop.sock_sendall(client, frame(b"xbig"))
            await until(lambda: memory.is_pressed)
            other = await loopback.connect()
            await other.send(b"e other")
            await until(lambda: memory.waiting == 1)
            assert len(loopback.script.seen) == 1
            reader, writer = await asyncio.open_connection(sock=client, limit=1 << 22)
            slow = Peer(reader, writer)
            assert await slow.receive() == big
            assert await other.receive() == b"e other"
            await slow.close()
            await other.close()
            await until(lambda: not loopback.shared.connections)
            assert memory.used == 0

    run(new_loop, main)


def test_who_takes_nothing_makes_room(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            memory = loopback.use_memory(1 << 20)
            big = b"e" + bytes(8_000_000)
            loopback.script.parts[b"big"] = lambda: [struct.pack(">i", len(big)), big]
            slow = await loopback.connect()
            slow.reader._transport.pause_reading()  # type: ignore[attr-defined]  # of asyncio
            await slow.send(b"xbig")
            await until(lambda: memory.is_pressed)
            now = asyncio.get_running_loop().time()
            loopback.only.sweep(now, 600)
            loopback.only.sweep(now + STUCK_SECONDS + 1, 600)
            assert loopback.shared.connections, "nobody waits for it"
            other = await loopback.connect()
            await other.send(b"e other")
            await until(lambda: memory.waiting == 1)
            for at in (now + 100, now + 100 + STUCK_SECONDS + 1):
                for connection in list(loopback.shared.connections):
                    connection.sweep(at, 600)
            assert await other.receive() == b"e other"
            await until(lambda: len(loopback.shared.connections) == 1)
            slow.writer.transport.abort()
            await other.close()

    run(new_loop, main)


def test_an_idle_connection_holds_little(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            peer = await loopback.connect()
            await peer.send(b"e" * 100_000)
            await peer.receive()
            assert loopback.only.buffered_bytes >= 100_000
            now = asyncio.get_running_loop().time()
            loopback.only.sweep(now, 100)
            loopback.only.sweep(now, 100)
            assert loopback.only.buffered_bytes <= 4096
            await peer.close()

    run(new_loop, main)
