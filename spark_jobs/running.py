"""A query from its start to its end: signals end it after its batch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

POLL_S: Final = 0.3


class StopRequested(Exception):
    """Raised at the beginning of a batch that is not to run; a restart runs it."""


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set `stop` in this block; a second SIGINT raises KeyboardInterrupt.

    Has no effect outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def await_end(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until the query ends, or `stop` is set and its batch has ended.

    A query that is between two batches is stopped; one that begins another batch ends by the
    StopRequested of its batch function. Raises what ended the query, unless `stop` was set before.
    """
    try:
        while not query.awaitTermination(POLL_S):
            if stop.is_set() and not query.status["isTriggerActive"]:
                query.stop()
                return
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception:  # StreamingQueryException, or py4j's where the JVM was ended too
        if not stop.is_set():
            raise
