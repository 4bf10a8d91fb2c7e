"""Work in a thread: its result is passed to the loop, even if the thread has ended."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from kbroker.node.loop.offload import ExecutorOffload


def test_the_thread_hands_back_to_the_loop() -> None:
    async def run() -> list[str]:
        offload = ExecutorOffload(ThreadPoolExecutor(1))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        heard: list[str] = []

        def fail() -> None:
            raise OSError(5, "broken")

        offload(lambda: None, lambda failure: heard.append(str(failure)))
        offload(lambda: print(1 // 0), lambda failure: heard.append(type(failure).__name__))
        offload(fail, lambda failure: (heard.append(str(failure)), done.set_result(None)))
        await asyncio.wait_for(done, 5)
        offload.close()
        return heard

    assert asyncio.run(run()) == ["None", "OSError", "[Errno 5] broken"]


def test_work_that_is_given_after_the_end_fails() -> None:
    async def run() -> OSError | None:
        offload = ExecutorOffload(ThreadPoolExecutor(1))
        offload.close()
        told: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        offload(lambda: None, told.set_result)
        assert not told.done(), "the caller goes on first"
        return await asyncio.wait_for(told, 5)

    assert isinstance(asyncio.run(run()), OSError)
