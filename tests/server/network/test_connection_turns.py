"""When a connection handles its requests: whenever bytes have arrived, but not while the peer does
not read.
"""

from __future__ import annotations

import asyncio
import struct

import pytest

from kbroker.node.loop.timers import LoopTimers
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.server.network.connection import FRAMES_PER_TURN, LARGE_FRAME_BYTES
from kbroker.server.requests import LARGE_REQUEST_BYTES, LargePendingResponse, PendingResponse
from kbroker.server.session import Session
from tests.server.loopback import LOOPS, Loopback, NewLoop, run, until

pytestmark = pytest.mark.parametrize("new_loop", LOOPS)


class CountedTimers(LoopTimers):
    """A connection reads the clock once each time it handles requests."""

    looks = 0

    def now_ms(self) -> int:
        self.looks += 1
        return super().now_ms()


def test_requests_that_came_before_a_planned_turn_have_room(new_loop: NewLoop) -> None:
    """uvloop reads many times between two turns of the loop: with a turn planned and nothing taken
    out of it the buffer was full, and the connection ended.
    """

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.api_key = ApiKey.METADATA
            peer = await loopback.connect()
            bodies = [b"e %d " % number + bytes(90) for number in range(3000)]
            sending = asyncio.ensure_future(peer.send(*bodies))
            for body in bodies:
                assert await peer.receive() == body
            await sending
            await peer.close()

    run(new_loop, main)


def test_no_turn_is_taken_while_the_peer_takes_nothing(new_loop: NewLoop) -> None:
    """A request with a possibly large response waits behind a response that cannot be sent."""

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            timers = loopback.shared.timers = CountedTimers(loopback.shared.loop)
            big = bytes(8 << 20)
            loopback.script.parts[b"big"] = lambda: [struct.pack(">i", len(big)), big]
            peer = await loopback.connect()
            await peer.send(b"xbig")
            await until(lambda: loopback.script.rendered == 1)
            await peer.send(b"e second")
            await until(lambda: timers.looks >= 2)
            before = timers.looks
            for _ in range(300):
                await asyncio.sleep(0)
            assert timers.looks - before < 10
            assert await peer.receive() == big
            assert await peer.receive() == b"e second"
            await peer.close()

    run(new_loop, main)


@pytest.mark.parametrize("spare", [0, 4, 4096])
def test_a_large_request_is_a_turn_by_itself(new_loop: NewLoop, spare: int) -> None:
    """A producer with many of them under way would keep the loop for the length of all of them.
    spare: bytes of the next one that come with it.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        turns: list[int] = []

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(next_turn)

        async with Loopback() as loopback:
            loopback.script.on_request = lambda body: turns.append(turn)
            peer = await loopback.connect()
            frames = [b"n" + bytes(LARGE_FRAME_BYTES)] * 6 + [b"e"]
            together = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
            first = 3 * (LARGE_FRAME_BYTES + 5) + spare
            loop.call_soon(next_turn)
            for part in (together[:first], together[first:]):
                peer.writer.write(part)
                await peer.writer.drain()
                await until(lambda: len(turns) >= 3)
            assert await peer.receive() == b"e"
            await peer.close()
        assert len(turns) == len(frames) and len(set(turns[:-1])) == len(frames) - 1

    run(new_loop, main)


def test_a_surprise_in_a_planned_turn_ends_the_connection(new_loop: NewLoop) -> None:
    async def main() -> None:
        surprises: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: surprises.append(context.get("exception")))
        async with Loopback() as loopback:

            def fail(body: bytes) -> None:
                if body == b"e boom":
                    raise ZeroDivisionError

            loopback.script.on_request = fail
            peer = await loopback.connect()
            await peer.send(*[b"e %d" % number for number in range(FRAMES_PER_TURN)], b"e boom")
            for number in range(FRAMES_PER_TURN):
                assert await peer.receive() == b"e %d" % number
            assert await peer.ended()
            await peer.close()
        assert [type(error) for error in surprises] == [ZeroDivisionError]

    run(new_loop, main)


def test_a_surprise_in_a_planned_answer_ends_the_connection(new_loop: NewLoop) -> None:
    async def main() -> None:
        surprises: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: surprises.append(context.get("exception")))
        async with Loopback() as loopback:
            peer = await loopback.connect()
            await peer.send(b"dlater")
            await until(lambda: loopback.script.waiting)
            loopback.script.waiting[b"later"].resolve(b"xno such parts")
            assert await peer.ended()
            await peer.close()
        assert [type(error) for error in surprises] == [KeyError]

    run(new_loop, main)


def test_no_request_starts_while_a_large_one_before_it_is_handled(new_loop: NewLoop) -> None:
    """Its slices are stage one: a fetch of offsets behind a large commit must see the commit. A
    Produce request of any size is handled at once.
    """

    async def main() -> None:
        async with Loopback() as loopback:
            script = loopback.script
            large: list[LargePendingResponse] = []

            def in_slices(session: Session, frame: memoryview, arrived_ms: int) -> PendingResponse:
                large.append(LargePendingResponse(int(ApiKey.METADATA), 0, 0))
                large[-1].deferred = Deferred()
                return large[-1]

            script.dispatch_in_slices = in_slices  # type: ignore[method-assign]  # the script's own
            peer = await loopback.connect()
            produce = b"\0\0" + bytes(LARGE_REQUEST_BYTES)
            await peer.send(b"e before", b"e" + bytes(LARGE_REQUEST_BYTES), b"e behind", b"e last")
            assert await peer.receive() == b"e before"
            await until(lambda: large)
            for _ in range(5):
                await asyncio.sleep(0)
            assert script.seen == [b"e before"]
            assert large[0].deferred is not None
            large[0].deferred.resolve(b"e large")
            for body in (b"e large", b"e behind", b"e last"):
                assert await peer.receive() == body
            await peer.send(produce)
            assert await peer.receive() == produce
            assert len(large) == 1
            await peer.close()

    run(new_loop, main)
