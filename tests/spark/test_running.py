"""How a query ends: by itself, by a signal after its batch, by an error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from spark_jobs import running
from spark_jobs.running import StopRequested, await_end, stop_on_signals


class Query:
    """Ends after so many polls. on_poll: called with the number of each."""

    def __init__(self, polls: int, on_poll: Callable[[int], None] = lambda number: None) -> None:
        self.polls = polls
        self.on_poll = on_poll
        self.number = 0
        self.status = {"isTriggerActive": True}
        self.is_stopped = False

    def awaitTermination(self, timeout_s: float) -> bool:
        assert timeout_s == running.POLL_S
        self.number += 1
        self.on_poll(self.number)
        return self.number >= self.polls

    def stop(self) -> None:
        self.is_stopped = True


def end_of(query: Query, stop: threading.Event) -> bool:
    await_end(query, stop)  # type: ignore[arg-type]
    return query.is_stopped


def test_a_query_that_ends_by_itself() -> None:
    assert not end_of(Query(3), threading.Event())


def test_a_query_between_batches_is_stopped() -> None:
    stop = threading.Event()

    def on_poll(number: int) -> None:
        if number == 2:
            stop.set()
        query.status["isTriggerActive"] = number < 4

    query = Query(99, on_poll)
    assert end_of(query, stop)
    assert query.number == 4  # its batch could end


def test_a_query_on_a_server_is_stopped_within_its_batch() -> None:
    stop = threading.Event()
    query = Query(99, lambda number: stop.set() if number == 2 else None)
    await_end(query, stop, cuts_off=True)  # type: ignore[arg-type]
    assert (query.number, query.is_stopped) == (2, True)


def test_a_batch_that_is_not_to_run_ends_the_query() -> None:
    stop = threading.Event()

    def on_poll(number: int) -> None:
        stop.set()
        raise StopRequested

    assert not end_of(Query(99, on_poll), stop)


def test_errors_are_raised() -> None:
    def on_poll(number: int) -> None:
        raise ValueError("of Spark")

    with pytest.raises(ValueError, match="of Spark"):
        end_of(Query(99, on_poll), threading.Event())


def test_signals_set_stop_and_a_second_ctrl_c_interrupts() -> None:
    stop = threading.Event()
    before = signal.getsignal(signal.SIGTERM)

    def on_poll(number: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM if number == 1 else signal.SIGINT)

    query = Query(99, on_poll)
    with stop_on_signals(stop), pytest.raises(KeyboardInterrupt):
        end_of(query, stop)
    assert stop.is_set() and query.is_stopped and query.number == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_in_another_thread_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def block() -> None:
        with stop_on_signals(threading.Event()):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [before]
