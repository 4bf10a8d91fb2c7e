"""Who promises a large request and does not send it, while others wait for memory: how long they
wait. Time is the test's own.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from kbroker.server.network.connection import Connection
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.peer_progress import GRACE_SWEEPS, MIN_BYTES_PER_SWEEP
from tests.server.loopback import LOOPS, Loopback, NewLoop, frame, run, until

SIZE = 300_000
PART = 100_000
AT_ONCE = 3
LIMIT = 4 * 310_000
"""Three quarters of it are three requests."""

SWEEP_SECONDS = 1


pytestmark = pytest.mark.parametrize("new_loop", LOOPS)


class ClockedLoop:
    """The running loop, but for what it says the time is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def sweep(loopback: Loopback, clock: ClockedLoop) -> None:
    """A second later."""
    clock.now += SWEEP_SECONDS
    for connection in list(loopback.shared.connections):
        connection.sweep(clock.now, 600)


def has_bytes(connection: Connection, count: int = PART) -> bool:
    return connection.buffered_bytes >= count


def parts_are(loopback: Loopback, count: int) -> bool:
    return sum(map(has_bytes, loopback.shared.connections)) == count


def fewer_wait(memory: MemoryPool, before: int) -> bool:
    return memory.waiting < before


@pytest.mark.parametrize("count", [2, 3, 10, 12])
def test_behind_half_senders_the_wait_is_what_the_formula_says(
    new_loop: NewLoop, count: int
) -> None:
    """n // k rounds of the grace time and a sweep, for n of them of whom k fit (ADR 16)."""

    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(LIMIT)
            clock = ClockedLoop()
            loopback.shared.loop = clock  # type: ignore[assignment]  # a loop with another clock
            halves = [await loopback.connect() for _ in range(count)]
            for number, peer in enumerate(halves):
                peer.writer.write(frame(bytes(SIZE))[:PART])
                await until(lambda number=number: memory.waits >= number + 1 - AT_ONCE)  # type: ignore[misc]  # bound now
                if number < AT_ONCE:
                    await until(lambda number=number: memory.requests > number * SIZE)  # type: ignore[misc]  # bound now
            honest = await loopback.connect()
            honest.writer.write(frame(b"e" * SIZE))
            await until(lambda: memory.waiting == max(count - AT_ONCE, 0) + (count >= AT_ONCE))
            began = clock.now
            left = count
            round_seconds = (GRACE_SWEEPS + 1) * SWEEP_SECONDS
            allowed = count // AT_ONCE * round_seconds
            while memory.waiting and clock.now - began < allowed:
                before = memory.waiting
                await until(partial(parts_are, loopback, min(left, AT_ONCE)))
                sweep(loopback, clock)
                if (clock.now - began) % round_seconds == 0:
                    left -= AT_ONCE
                    await until(partial(fewer_wait, memory, before))
            assert clock.now - began == allowed
            assert await honest.receive() == b"e" * SIZE
            for peer in [*halves, honest]:
                await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert memory.used == 0

    run(new_loop, main)


def test_one_that_sends_too_slowly_ends_without_a_pause(new_loop: NewLoop) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(LIMIT // AT_ONCE)
            clock = ClockedLoop()
            loopback.shared.loop = clock  # type: ignore[assignment]  # a loop with another clock
            slow = await loopback.connect()
            slow.writer.write(frame(bytes(SIZE))[:PART])
            await until(lambda: any(map(has_bytes, loopback.shared.connections)))
            connection = loopback.only
            honest = await loopback.connect()
            honest.writer.write(frame(b"e" * SIZE))
            await until(lambda: memory.waiting == 1)
            began = clock.now
            sent = PART
            while memory.waiting and clock.now - began < 60:
                slow.writer.write(bytes(1000))
                sent += 1000
                await until(partial(has_bytes, connection, sent))
                sweep(loopback, clock)
                if (clock.now - began - GRACE_SWEEPS) * MIN_BYTES_PER_SWEEP > sent:
                    await until(lambda: not memory.waiting)
            assert clock.now - began <= GRACE_SWEEPS + SIZE / MIN_BYTES_PER_SWEEP + SWEEP_SECONDS
            assert await honest.receive() == b"e" * SIZE
            for peer in (slow, honest):
                await peer.close()

    run(new_loop, main)


def test_a_slow_loop_closes_no_connection(new_loop: NewLoop) -> None:
    """Minutes between two looks, in which little was read: the sender is not to blame."""

    async def main() -> None:
        async with Loopback() as loopback:
            memory = loopback.use_memory(LIMIT // AT_ONCE)
            clock = ClockedLoop()
            loopback.shared.loop = clock  # type: ignore[assignment]  # a loop with another clock
            body = b"e" * SIZE
            first, second = await loopback.connect(), await loopback.connect()
            first.writer.write(frame(body)[:PART])
            await until(lambda: any(map(has_bytes, loopback.shared.connections)))
            connection = next(filter(has_bytes, loopback.shared.connections))
            second.writer.write(frame(body))
            await until(lambda: memory.waiting == 1)
            for sent in range(PART, SIZE, PART):
                clock.now += 60
                sweep(loopback, clock)
                first.writer.write(frame(body)[sent : sent + PART])
                if sent + PART < SIZE:
                    await until(partial(has_bytes, connection, sent + PART))
            first.writer.write(frame(body)[SIZE:])
            for peer in (first, second):
                assert await peer.receive() == body
                await peer.close()

    run(new_loop, main)
