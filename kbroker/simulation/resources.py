"""The resources of a simulated node, in place of the system's threads, sockets and clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Final, ParamSpec, TypeVar, cast

from kbroker.node.loop.timers import LoopTimers
from kbroker.node.resources import NodeResources
from kbroker.server.network.listener import Bind
from kbroker.server.network.page_cache import PageCache
from kbroker.settings.broker import BrokerConfig
from kbroker.simulation.event_loop import START_NS
from kbroker.simulation.network import SimulatedNetwork
from kbroker.simulation.process import PROCESS, THREAD_S

P = ParamSpec("P")
T = TypeVar("T")

MAX_OPEN_FILES: Final = 64
STEP_S: Final = 0.0002
"""How long a step of computing takes for the slicing of long work; it takes no simulated time."""


class InlineExecutor(Executor):
    """Runs work within `submit`."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor`."""
        future: Future[T] = Future()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # raised by the future
            future.set_exception(error)
        else:
            future.set_result(result)
        return future


class SimulatedOffload:
    """`ports.ClosableOffload`: runs work on the loop after a short delay, in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
        self._is_closed = False

    def __call__(self, work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            loop.call_soon(then, OSError("the executor is shut down"))
            return
        self._waiting.append((work, then))
        process = PROCESS.get()
        loop.call_later(THREAD_S if process is None else process.thread_s, self._run_next)

    def _run_next(self) -> None:
        if not self._waiting:
            return  # done by `close`
        work, then = self._waiting.pop(0)
        then(_outcome(work))

    def close(self) -> None:
        """See `ports.ClosableOffload`."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        for work, then in waiting:
            asyncio.get_running_loop().call_soon(then, _outcome(work))


def _outcome(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None


class SimulatedResources(NodeResources):
    """clock_ahead_s: the error of the node's wall clock."""

    __slots__ = ("_computing_s", "clock_ahead_s")

    def __init__(self, config: BrokerConfig, network: SimulatedNetwork, random: Random) -> None:
        super().__init__(config, random=random, max_open_files=MAX_OPEN_FILES)
        self.clock_ahead_s = 0.0
        self.page_cache = PageCache(None)
        self._computing_s = 0.0
        self.clock = self._compute
        self.stall_clocks = _loop_time, _no_time
        # The node only reads its address and closes it.
        self.bind = cast(Bind, lambda host, port, send_bytes, receive_bytes: network.bind(port))

    def timers(self) -> LoopTimers:
        """See `NodeResources`."""
        loop = asyncio.get_running_loop()
        return LoopTimers(
            loop, lambda: START_NS + int((loop.time() + self.clock_ahead_s) * 1_000_000_000)
        )

    def offload(self, name: str, threads: int) -> SimulatedOffload:
        """See `NodeResources`."""
        return SimulatedOffload()

    def threads(self, name: str, count: int) -> Executor:
        """See `NodeResources`."""
        return InlineExecutor()

    def close(self) -> None:
        """There are no threads to end."""

    def _compute(self) -> float:
        """The clock of sliced work: each reading counts as a step of that work."""
        self._computing_s += STEP_S
        return self._computing_s


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _no_time() -> float:
    """Computing takes no simulated time."""
    return 0.0
