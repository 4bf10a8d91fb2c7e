"""Connections on real sockets and the memory of the broker: large requests take turns, slow peers
make room.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter

import pytest

from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.server.network.peer_progress import GRACE_SWEEPS, STUCK_SECONDS
from tests.e2e.wire import frame_of
from tests.server.loopback import LOOPS, Loopback, NewLoop, frame, run, until

pytestmark = pytest.mark.parametrize("new_loop", LOOPS)

HEARTBEAT = b"\0\x0c heartbeat"
"""A light request; data that begins with a letter is not a request."""


def test_large_requests_take_turns(new_loop: NewLoop) -> None:
    """Ten clients with requests of which the limit admits three at a time: all are answered, small
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

            def unfinished() -> int:
                started = Counter(body[1:2] for body in script.seen)
                return sum(started[b"%d" % number] < count for number in range(len(peers)))

            while len(answered) < 2 * count:
                # one may be done before the other, which then waits alone
                await until(lambda: memory.waiting == unfinished())
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
    """Also if no connection was waiting when the request was complete."""

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
            client = await loopback.connect_raw()
            await asyncio.get_running_loop().sock_sendall(client, frame(b"xbig"))
            await until(lambda: memory.is_pressed)
            other = await loopback.connect()
            await other.send(b"e other")
            await until(lambda: memory.waiting == 1)
            assert len(loopback.script.seen) == 1
            slow = await loopback.read_from(client, limit=1 << 22)
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
