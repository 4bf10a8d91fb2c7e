"""The resources of a simulated node in place of threads and clocks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.simulation.event_loop import START_NS, SimulatedLoop
from kbroker.simulation.network import SimulatedNetwork
from kbroker.simulation.process import THREAD_S, SimulatedProcess, context_of
from kbroker.simulation.resources import InlineExecutor, SimulatedOffload, SimulatedResources


def test_work_of_a_pool_is_run_at_once() -> None:
    executor = InlineExecutor()
    assert executor.submit(int, "7").result() == 7
    with pytest.raises(ValueError, match="invalid literal"):
        executor.submit(int, "x").result()
    assert list(executor.map(int, ["1", "2"])) == [1, 2]


def test_offloaded_work_is_done_later_and_in_order() -> None:
    done: list[object] = []

    def fail() -> None:
        raise OSError("no space")

    async def script() -> None:
        offload = SimulatedOffload()
        offload(lambda: done.append("one"), done.append)
        offload(fail, lambda error: done.append(str(error)))
        assert not done
        await asyncio.sleep(0.1)
        assert done == ["one", None, "no space"]
        offload(lambda: done.append("last"), done.append)
        offload.close()
        assert done[3:] == ["last"]
        offload(lambda: done.append("never"), lambda error: done.append(type(error)))
        await asyncio.sleep(0.1)
        assert done[4:] == [None, OSError]

    loop = SimulatedLoop(SimulatedNetwork(Random(1)))
    loop.run_until_complete(script())
    loop.close()


def test_work_on_a_slow_disk_takes_longer() -> None:
    done: list[float] = []
    process = SimulatedProcess(1)
    loop = SimulatedLoop(SimulatedNetwork(Random(1)))

    async def script() -> None:
        offload = SimulatedOffload()
        offload(lambda: done.append(loop.time()), lambda error: None)
        process.thread_s = 0.3
        await asyncio.sleep(1)
        offload(lambda: done.append(loop.time()), lambda error: None)
        await asyncio.sleep(1)

    loop.run_until_complete(context_of(process).run(loop.create_task, script()))
    loop.close()
    assert done == pytest.approx([THREAD_S, 1.3])


def test_clocks(tmp_path: Path) -> None:
    network = SimulatedNetwork(Random(1))
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path)})
    resources = SimulatedResources(config, network, Random(1))

    async def script() -> None:
        timers = resources.timers()
        assert timers.now_ms() == START_NS // 1_000_000
        await asyncio.sleep(5)
        assert timers.now_ms() == START_NS // 1_000_000 + 5_000
        assert timers.monotonic_ms() == 5_000
        resources.clock_ahead_s = -60.0
        assert timers.now_ms() == START_NS // 1_000_000 - 55_000
        assert timers.monotonic_ms() == 5_000

    loop = SimulatedLoop(network)
    loop.run_until_complete(script())
    loop.close()
    first, second = resources.clock(), resources.clock()
    assert 0 < first < second < 0.01


def test_sockets_are_the_networks(tmp_path: Path) -> None:
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path)})
    resources = SimulatedResources(config, SimulatedNetwork(Random(1)), Random(1))
    bound = resources.bind("127.0.0.1", 9092, -1, -1)
    assert bound.getsockname() == ("127.0.0.1", 9092)
    bound.close()
