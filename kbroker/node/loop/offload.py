"""The `Offload` port over threads (docs/adr/0007). `resources` creates the threads of a node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

logger = logging.getLogger(__name__)


class ExecutorOffload:
    """`ports.ClosableOffload` over an executor and the running loop."""

    __slots__ = ("_executor",)

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(self, work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._executor.submit(_run, loop, work, then)
        except RuntimeError as error:  # the executor is shut down
            loop.call_soon(then, OSError(str(error)))

    def close(self) -> None:
        """Wait for the work in progress. Work submitted later fails with OSError. Blocks."""
        self._executor.shutdown(wait=True)


def _run(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[], None],
    then: Callable[[OSError | None], None],
) -> None:
    """Run work in the thread, and post its result to the loop."""
    failure: OSError | None = None
    try:
        work()
    except OSError as error:
        failure = error
    except Exception as error:  # top frame of a thread: the caller gets the error
        logger.exception("unexpected exception in a worker thread")
        failure = OSError(f"{type(error).__name__}: {error}")
    try:
        if not loop.is_closed():
            loop.call_soon_threadsafe(then, failure)
    finally:
        del failure  # its traceback holds this frame
