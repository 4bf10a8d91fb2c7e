"""The Timers port over a loop."""

from __future__ import annotations

import asyncio
import time

from kbroker.node.loop.timers import LoopTimers


def test_callbacks_come_in_order_and_can_be_cancelled() -> None:
    async def main() -> list[str]:
        timers = LoopTimers(asyncio.get_running_loop())
        seen: list[str] = []
        done = asyncio.Event()
        timers.call_later(20, done.set)
        timers.call_later(5, lambda: seen.append("second"))
        timers.call_later(0, lambda: seen.append("first"))
        timers.call_later(1, lambda: seen.append("never")).cancel()
        await done.wait()
        return seen

    assert asyncio.run(main()) == ["first", "second"]


def test_monotonic_time_goes_with_the_loop() -> None:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        before = int(loop.time() * 1000)
        assert before <= LoopTimers(loop).monotonic_ms() <= loop.time() * 1000


def test_now_is_the_wall_clock_in_ms() -> None:
    before = time.time_ns() // 1_000_000
    with asyncio.Runner() as runner:
        now_ms = LoopTimers(runner.get_loop()).now_ms()
    assert before <= now_ms <= time.time_ns() // 1_000_000
