"""Requests that cannot be answered yet, woken by the partition they wait for, never by polling.

A partition knows its watchers and tells them that one of its ends moved (`partition`). Who has seen
enough is put on the purgatory's list, and the list is worked off in a turn of the loop of its own:
a response never leaves from inside the append that made it possible, and a request that appends to
six partitions wakes a consumer of all six once. A deadline is one timer per waiting request.
Neighbours: the fetch that waits is in `fetch`, the produce in `manager`.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import KafkaError

T = TypeVar("T")


class Watcher(Protocol):
    """Who wants to know that a partition's ends moved."""

    def moved(self, high_watermark_bytes: int, stable_bytes: int) -> None:
        """New bytes below the high watermark and below the last stable offset, both estimates.

        0 and 0: something else changed that a fetch reports (log start, leader), no hurry.
        """
        ...

    def lost(self) -> None:
        """This partition cannot be read here any more as it could before: answer now."""
        ...


class StartWatcher(Protocol):
    """Who wants to know where the logs of a partition's live replicas begin."""

    def starts_moved(self) -> None:
        """A follower's log begins elsewhere now, or the replicas or the leadership changed."""
        ...


class PendingResponse(Deferred[T], Generic[T]):
    """A Deferred whose owner may lose interest: `cancel` when the connection has gone."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Waiter) -> None:
        super().__init__()
        self._waiter: Waiter | None = waiter

    def resolve(self, value: T) -> None:
        self._waiter = None  # leaves no reference cycle: a waiter holds its response
        super().resolve(value)

    def fail(self, error: KafkaError) -> None:
        self._waiter = None
        super().fail(error)

    def cancel(self) -> None:
        """Stop waiting, see `Deferred.cancel`. Harmless once this is done."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._callbacks = self._on_failed = None
            waiter.cancel()


class Waiter:
    """One request that waits. It ends once: ready, at its deadline, or cancelled.

    waiting -> ready (queued in the purgatory) -> ended; waiting -> ended (deadline, cancel); ready
    -> ended (cancel).
    """

    __slots__ = ("_purgatory", "_timer", "ended", "is_ready")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._timer: TimerHandle | None = None
        self.is_ready = False
        self.ended = False

    def complete(self) -> None:
        """The condition is met: answer. Called once, by the purgatory."""
        raise NotImplementedError  # abstract: each kind of request answers in its own way

    def expire(self) -> None:
        """The deadline passed first: answer with what there is. Called instead of `complete`."""
        self.complete()

    def withdraw(self) -> None:
        """Leave the partitions' lists. Called once, however the wait ends, before the response."""

    def set_deadline(self, delay_ms: int) -> None:
        """Wait no longer than this; an earlier word on it does not count any more."""
        if self._timer is None:
            self._purgatory.waiting += 1
        else:
            self._timer.cancel()
        self._timer = self._purgatory.timers.call_later(delay_ms, self._deadline)

    def ready(self) -> None:
        """It has seen enough; it ends in the purgatory's next turn. Harmless when repeated."""
        if not self.is_ready and not self.ended:
            self.is_ready = True
            self._purgatory.enqueue(self)

    def cancel(self) -> None:
        """End without a response."""
        self._end()

    def finish(self) -> None:
        """End with the response: the purgatory calls it."""
        if self._end():
            self.complete()

    def _deadline(self) -> None:
        if self._end():
            self.expire()

    def _end(self) -> bool:
        if self.ended:
            return False
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._purgatory.waiting -= 1
        self.withdraw()
        return True


class OffsetWaiter(Waiter):
    """Waits until the high watermark of one partition reaches an offset (acks=all)."""

    __slots__ = ("required_offset",)

    required_offset: int


class Purgatory:
    """The waiters that are ready, and the one turn of the loop in which they end. waiting: how many
    have a deadline.
    """

    __slots__ = ("_planned", "_ready", "timers", "waiting")

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.waiting = 0
        self._ready: deque[Waiter] = deque()
        self._planned = False

    def enqueue(self, waiter: Waiter) -> None:
        """Called by `Waiter.ready`."""
        self._ready.append(waiter)
        self._plan()

    def run(self) -> None:
        """End all that are ready; those that become ready meanwhile have their turn later.

        A waiter that raises does not hold up the others: they have the next turn.
        """
        self._planned = False
        ready = self._ready
        count = len(ready)
        try:
            while count:
                count -= 1
                ready.popleft().finish()
        finally:
            if ready:
                self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self.timers.call_later(0, self.run)
