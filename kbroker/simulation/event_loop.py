"""An event loop on simulated time, for several processes in one thread.

A callback belongs to the process in its context (`PROCESS`), as do the tasks, timers and
connections that it creates. The callbacks of a paused process wait until it resumes, those of a
killed one are dropped. Time advances only when no callback is ready. Callbacks that are due at the
same time run in the order in which they were scheduled, so a run is deterministic.

Threads are simulated too: work submitted to an executor runs on the loop after a short delay.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

from kbroker.simulation.network import SimulatedNetwork, SimulatedServer
from kbroker.simulation.process import PROCESS, THREAD_S, SimulatedProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_NS: Final = 1_700_000_000 * 1_000_000_000
"""The wall clock at the start of a simulation."""
FEW_TASKS: Final = 1000
"""When there are this many tasks, ended ones are removed."""
END_TIMEOUT_S: Final = 10.0
"""Simulated time for tasks that are cancelled at the end. Then they are cancelled again: a node
that was killed during its start waits for operations that never end.
"""
MOST_CANCELS: Final = 5


class SimulatedHandle(asyncio.TimerHandle):
    """A scheduled callback."""

    __slots__ = ("process", "run")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        arguments: tuple[object, ...],
        loop: SimulatedLoop,
        context: Context | None,
    ) -> None:
        own = copy_context() if context is None else context
        super().__init__(when, callback, arguments, loop, own)
        self.process = own.get(PROCESS)
        self.run: Callable[[], object] = partial(own.run, callback, *arguments)

    def cancel(self) -> None:
        """See `asyncio.Handle`."""
        super().cancel()
        self.run = _nothing  # and with it the references of the callback


def _nothing() -> None:
    """Replaces a callback that was cancelled."""


class Stalled(Exception):
    """No callback is left to run."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. Any: as in asyncio's signatures."""

    def __init__(self, network: SimulatedNetwork) -> None:
        super().__init__()
        self.network = network
        self._now_s = 0.0
        self._planned: list[tuple[float, int, SimulatedHandle]] = []
        self._due: deque[SimulatedHandle] = deque()
        self._held: dict[SimulatedProcess, list[SimulatedHandle]] = {}
        """Callbacks that became due while their process was paused."""
        self._count = 0
        self._is_ending = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._tasks_limit = FEW_TASKS
        self.step_count = 0

    # -- time -------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimulatedHandle:
        """See asyncio."""
        handle = SimulatedHandle(self._now_s, callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimulatedHandle:
        """See asyncio. There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimulatedHandle:
        """See asyncio."""
        handle = SimulatedHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._planned, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Does nothing: a cancelled handle stays scheduled, without effect."""

    def _run_once(self) -> None:
        """One turn, as `asyncio.BaseEventLoop.run_forever` calls it."""
        planned, due = self._planned, self._due
        if not due:
            while planned and planned[0][2].cancelled():
                heapq.heappop(planned)
            if not planned:
                raise Stalled("no callback is planned")
            self._now_s = max(self._now_s, planned[0][0])
        while planned and planned[0][0] <= self._now_s:
            due.append(heapq.heappop(planned)[2])
        for _ in range(len(due)):
            self._run_handle(due.popleft())

    def _run_handle(self, handle: SimulatedHandle) -> None:
        process = handle.process
        if process is not None and not self._is_ending:
            if not process.is_alive:
                return
            if process.is_paused:
                self._held.setdefault(process, []).append(handle)
                return
        if handle.cancelled():
            return
        self.step_count += 1
        try:
            handle.run()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # as asyncio does
            self.call_exception_handler(
                {"message": f"exception in {handle!r}", "exception": error, "handle": handle}
            )

    # -- processes --------------------------------------------------------------------------------

    def pause(self, process: SimulatedProcess) -> None:
        """Pause a process, as with SIGSTOP."""
        process.is_paused = True

    def resume(self, process: SimulatedProcess) -> None:
        """Resume a process, as with SIGCONT: all due callbacks run now, in order."""
        process.is_paused = False
        self._due.extend(self._held.pop(process, ()))

    def end(self, process: SimulatedProcess) -> None:
        """The process is killed: no callback of it runs any more."""
        process.is_alive = False
        self._held.pop(process, None)
        self.network.process_ended(process)

    async def cancel_all(self) -> None:
        """Cancel every task except the calling one, also those of killed processes, so that the
        loop can be closed.
        """
        self._is_ending = True
        for _ in range(MOST_CANCELS):
            left = [
                task
                for task in self._tasks
                if task is not asyncio.current_task() and not task.done()
            ]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=END_TIMEOUT_S)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """See asyncio. Tasks are kept until they end: those of a killed process never end, and the
        collector would throw GeneratorExit into them at an arbitrary time.
        """
        task = super().create_task(coro, name=name, context=context)
        if len(self._tasks) >= self._tasks_limit:
            self._tasks = {each: None for each in self._tasks if not each.done()}
            self._tasks_limit = 2 * len(self._tasks) + FEW_TASKS
        self._tasks[task] = None
        return task

    # -- threads ----------------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """See asyncio. The executor is not used."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  # raised by the future
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(THREAD_S, run)
        return future

    # -- sockets ----------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]  # no address: a socket of the network
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], **options: Any
    ) -> SimulatedServer:
        """See asyncio. options: `sock` is a `network.SimulatedSocket`."""
        return self.network.listen(self, options["sock"], protocol_factory)

    async def create_connection(  # type: ignore[override]  # to an address of the network only
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """See asyncio. Raises OSError."""
        transport = await self.network.connect(self, port)
        protocol = protocol_factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return transport, protocol

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Nothing: there are no descriptors to wait for."""

    def remove_reader(self, fd: Any) -> bool:
        """Nothing."""
        return False
