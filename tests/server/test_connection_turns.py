"""When a connection takes up its requests: whenever bytes came, and not while the peer takes
nothing.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.server.timers import LoopTimers
from tests.server.loopback import LOOPS, Loopback, run, until

NewLoop = Callable[[], asyncio.AbstractEventLoop]

pytestmark = pytest.mark.parametrize("new_loop", LOOPS)


class CountedTimers(LoopTimers):
    """Each time a connection takes up its requests it looks at the clock once."""

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
    """Behind an answer that does not leave, a request whose own may be large waits to be woken."""

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
