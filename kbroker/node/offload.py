"""The `Offload` port of request handlers over the broker's worker threads (docs/adr/0007).

Flushes have a thread of their own, see `replication/maintenance`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

logger = logging.getLogger(__name__)


class ExecutorOffload:
    """`ports.Offload` over an executor and the running loop."""

    __slots__ = ("_executor",)

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(self, work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        def done(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                then(_as_os_error(future.exception()))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, work).add_done_callback(done)


def _as_os_error(error: BaseException | None) -> OSError | None:
    if error is None or isinstance(error, OSError):
        return error
    logger.error("unexpected exception in a worker thread", exc_info=error)
    return OSError(f"{type(error).__name__}: {error}")
