"""How a handler's heavy work leaves the loop thread (docs/adr/0007).

The work gets bytes and file handles, never live objects; what follows from it is done back on the
loop. Flushes have a thread of their own, see `replication/maintenance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

Offload = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Called with (work, then): then gets what work raised, or None. A test does both at once."""


class ExecutorOffload:
    """The port over the broker's worker threads."""

    __slots__ = ("_executor",)

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(
        self, work: Callable[[], None], then: Callable[[BaseException | None], None]
    ) -> None:
        def done(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                then(future.exception())

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, work).add_done_callback(done)
