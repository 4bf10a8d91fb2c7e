"""Time, processes, threads and exceptions of the simulated loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from kbroker.simulation.event_loop import SimulatedLoop, Stalled
from kbroker.simulation.network import SimulatedNetwork
from kbroker.simulation.process import SimulatedProcess, context_of


def new_loop() -> SimulatedLoop:
    return SimulatedLoop(SimulatedNetwork(Random(1)))


def run(loop: SimulatedLoop, script: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(script)
    loop.run_until_complete(loop.cancel_all())
    loop.close()


def test_time_passes_only_while_nothing_is_due() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert loop.time() == 0.0
        await asyncio.sleep(3600)
        assert loop.time() == 3600.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        assert loop.time() == 3605.0

    run(new_loop(), script())


def test_callbacks_of_the_same_time_run_in_the_order_of_planning() -> None:
    found: list[str] = []

    async def script() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2, found.append, "c")
        for name in "ab":
            loop.call_later(1, found.append, name)
        loop.call_later(1, found.append, "never").cancel()
        loop.call_soon(found.append, "never").cancel()
        await asyncio.sleep(2)

    run(new_loop(), script())
    assert found == ["a", "b", "c"]


def test_a_paused_process_continues_with_what_was_due() -> None:
    loop = new_loop()
    process = SimulatedProcess(1)
    found: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            found.append(loop.time())

    async def script() -> None:
        context_of(process).run(loop.create_task, tick())
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        assert found == [1.0, 2.0]
        loop.resume(process)
        await asyncio.sleep(1.2)
        assert found == [1.0, 2.0, 12.5, 13.5]
        loop.end(process)
        await asyncio.sleep(5)
        assert len(found) == 4

    run(loop, script())


def test_what_a_process_begins_belongs_to_it() -> None:
    loop = new_loop()
    process = SimulatedProcess(1)
    found: list[str] = []

    async def begin() -> None:
        loop.call_soon(found.append, "soon")
        loop.call_later(1, found.append, "later")
        loop.create_task(child())
        future = loop.run_in_executor(None, lambda: "thread")
        future.add_done_callback(lambda done: found.append(done.result()))

    async def child() -> None:
        await asyncio.sleep(0.5)
        found.append("task")

    async def script() -> None:
        context_of(process).run(loop.create_task, begin())
        await asyncio.sleep(0.1)
        assert sorted(found) == ["soon", "thread"]
        loop.end(process)
        await asyncio.sleep(5)
        assert sorted(found) == ["soon", "thread"]

    run(loop, script())


def test_work_of_a_thread_may_fail() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="no space"):
            await loop.run_in_executor(None, fail)

    def fail() -> None:
        raise OSError("no space")

    run(new_loop(), script())


def test_an_exception_of_a_callback_is_reported() -> None:
    loop = new_loop()
    found: list[object] = []
    loop.set_exception_handler(lambda loop, context: found.append(context["exception"]))

    async def script() -> None:
        loop.call_soon([].pop)
        await asyncio.sleep(1)

    run(loop, script())
    assert [type(each) for each in found] == [IndexError]


def test_a_loop_with_nothing_to_do_says_so() -> None:
    loop = new_loop()

    async def script() -> None:
        await asyncio.Event().wait()

    task = loop.create_task(script())
    with pytest.raises(Stalled):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
