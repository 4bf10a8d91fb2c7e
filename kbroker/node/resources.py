"""Resources that the components of one node share, separate for each node of a process.

A process may run several nodes, each on its own thread or all on one. So there are no module
globals: `node` creates one `NodeResources` per node and passes its members to the constructors that
need them. Only `run` sets properties of the process itself (signal handlers, the garbage
collector's thresholds, the limit on open files), and only it provides `set_log_level`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random
from typing import Final

from kbroker.log.storage.open_files import OpenFiles, default_open_file_limit
from kbroker.node.loop.offload import ExecutorOffload
from kbroker.node.loop.timers import LoopTimers
from kbroker.ports import ClosableOffload, SetLogLevel
from kbroker.server.network.listener import Bind, bind_socket
from kbroker.server.network.page_cache import PageCache
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.network import INDEX_SHARE, MEMORY_LIMIT

WORKER_THREADS: Final = 4
"""Threads for operations that requests wait for: reads that are not in the page cache, conversions
(docs/adr/0007).
"""


Clock = Callable[[], float]


class NodeResources:
    """random: for all random choices of the node, on its loop thread; a fixed seed makes a test
    repeatable. open_files: limits the open segments of the node's partitions and the memory of
    their indexes. page_cache: tells whether sendfile would wait for the disk. workers: threads for
    operations that requests wait for. clock: in seconds, for work that is sliced. stall_clocks:
    monotonic time and CPU time of the loop's thread, in seconds. bind: creates the sockets of
    listeners. set_log_level: None unless the process is the node's own. A simulated node replaces
    some of these (`kbroker/simulation`).

    max_open_files: how many segments keep their file open; None for half of the process's limit.
    """

    __slots__ = (
        "_node_id",
        "_offloads",
        "bind",
        "clock",
        "open_files",
        "page_cache",
        "random",
        "set_log_level",
        "stall_clocks",
        "workers",
    )

    def __init__(
        self,
        config: BrokerConfig,
        *,
        random: Random | None = None,
        max_open_files: int | None = None,
    ) -> None:
        self._node_id = config.node_id
        self._offloads: list[Executor] = []
        self.clock: Clock = time.monotonic
        self.stall_clocks: tuple[Clock, Clock] = time.monotonic, time.thread_time
        self.bind: Bind = bind_socket
        self.set_log_level: SetLogLevel | None = None
        self.random = random or Random()
        self.open_files = OpenFiles(
            default_open_file_limit() if max_open_files is None else max_open_files,
            index_bytes=int(config.get_int(MEMORY_LIMIT) * INDEX_SHARE),
        )
        self.page_cache = PageCache.of_system()
        self.workers = self.threads("worker", WORKER_THREADS)

    def timers(self) -> LoopTimers:
        """The clocks of the node, over the running loop."""
        return LoopTimers(asyncio.get_running_loop())

    def offload(self, name: str, threads: int) -> ClosableOffload:
        """An Offload with its own threads (`ports.OffloadFactory`), which are started on demand."""
        executor = self.threads(name, threads)
        self._offloads.append(executor)
        return ExecutorOffload(executor)

    def threads(self, name: str, count: int) -> Executor:
        """A pool of named threads (`ports.ThreadPools`); all pools of the node are created here."""
        return ThreadPoolExecutor(count, thread_name_prefix=f"kbroker-{self._node_id}-{name}")

    def close(self) -> None:
        """Let the threads end after the submitted work. Does not wait for them. Can be called more
        than once.
        """
        for executor in (self.workers, *self._offloads):
            executor.shutdown(wait=False)
