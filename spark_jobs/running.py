"""A query from its start to its end: signals end it after its batch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final

from .errors import JobError, first_cause, job_error_in
from .progress import Progress, listen
from .session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S: Final = 0.3


class StopRequested(Exception):
    """Raised at the beginning of a batch that is not to run; a restart runs it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came where nothing waits for the end of a batch."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM raises Terminated in this block, so that what was begun is ended and removed, as it
    is by Ctrl-C. Has no effect outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


def await_end(query: StreamingQuery, stop: threading.Event, *, cuts_off: bool = False) -> None:
    """Wait until the query ends, or `stop` is set and its batch has ended.

    A query that is between two batches is stopped; one that begins another batch ends by the
    StopRequested of its batch function. cuts_off: it is stopped within its batch too, since the
    function does not see `stop` (Spark Connect). Raises what ended the query, unless `stop` was set
    before.
    """
    try:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # it takes floats too
            if stop.is_set() and (cuts_off or not query.status["isTriggerActive"]):
                query.stop()
                return
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception:  # StreamingQueryException, or py4j's where the JVM was ended too
        if not stop.is_set():
            raise


def run_query(
    spark: SparkSession,
    start: Callable[[], StreamingQuery],
    failure_of_batch: Callable[[], Exception | None],
    progress: Progress,
    *,
    query_name: str,
    job: str,
    stop: threading.Event,
) -> None:
    """Start a query and watch it to its end. failure_of_batch: what its batch function has raised.

    Raises JobError if it failed: what the batch function raised, if that was it.
    """
    listener = listen(spark, progress, query_name=query_name)
    try:
        query = start()
        try:
            await_end(query, stop, cuts_off=is_remote(spark))
        except Exception as error:  # StreamingQueryException, or py4j's
            raise _reason(job, error, failure_of_batch()) from error
        failure = failure_of_batch()  # while it was being stopped
        # ConnectionError: the JVM was ended by the same signal.
        if isinstance(failure, JobError | OSError) and not isinstance(failure, ConnectionError):
            raise _reason(job, failure, failure)
        progress.wait()
    finally:
        with suppress(Exception):  # py4j's, where the JVM has ended
            spark.streams.removeListener(listener)


def _reason(job: str, error: Exception, failure: Exception | None) -> JobError:
    """What to raise for a query that failed: what its batch function raised, if that was it."""
    if isinstance(failure, JobError):
        return failure
    if failure is None and (raised := job_error_in(error)) is not None:  # in another process
        return raised
    return JobError(f"{job} stopped: {first_cause(failure or error)}")
