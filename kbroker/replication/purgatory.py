"""Requests that cannot be answered yet, woken by the partition they wait for, never by polling.

A partition tells its watchers when its high watermark or last stable offset moves (`replica_ends`).
A waiter whose condition is met is queued in the purgatory, which completes its queue in a later
turn of the loop: a response never leaves from inside the append that made it possible, and a
request that appends to six partitions wakes a consumer of all six once. Each waiting request has
one timer, for its deadline. Neighbours: waiting fetches are in `reads/fetch`, waiting produce
requests in `appends/append`.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import KafkaError

T = TypeVar("T")


class Watcher(Protocol):
    """Is told when the high watermark or last stable offset of a partition moves."""

    def moved(self, high_watermark_bytes: int, stable_bytes: int) -> None:
        """New bytes below the high watermark and below the last stable offset, both estimates.

        0 and 0: no new bytes, but something else that a fetch reports has changed (log start,
        leader). The next fetch reports it; a waiting one need not end for it.
        """
        ...

    def lost(self) -> None:
        """The partition cannot be read here as before, so a waiting fetch is answered now."""
        ...


class StartWatcher(Protocol):
    """Is told when the low watermark of a partition may have moved."""

    def starts_moved(self) -> None:
        """The log start offset of a follower moved, or the replicas or the leadership changed."""
        ...


class DelayedResponse(Deferred[T], Generic[T]):
    """The response of a `Waiter`. Its connection calls `cancel` when it is closed."""

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
        """Answer, since the condition is met. Called once, by the purgatory."""
        raise NotImplementedError  # abstract: each kind of request answers in its own way

    def expire(self) -> None:
        """Answer with what is there: the deadline has passed. Called instead of `complete`."""
        self.complete()

    def withdraw(self) -> None:
        """Leave the partitions' lists. Called once, however the wait ends, before the response."""

    def set_deadline(self, delay_ms: int) -> None:
        """End the wait after delay_ms at the latest. Replaces an earlier deadline."""
        if self._timer is None:
            self._purgatory.waiting += 1
        else:
            self._timer.cancel()
        self._timer = self._purgatory.timers.call_later(delay_ms, self._deadline)

    def ready(self) -> None:
        """The condition is met: queue it for the purgatory's next turn. Can be called more than
        once.
        """
        if not self.is_ready and not self.ended:
            self.is_ready = True
            self._purgatory.enqueue(self)

    def cancel(self) -> None:
        """End without a response."""
        self._end()

    def finish(self) -> None:
        """End with the response. Called by the purgatory."""
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
    """The queue of waiters that are ready; one turn of the loop completes all of them. waiting: the
    number of waiters with a deadline that has not passed.
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
        """Complete all waiters that are ready. Those that become ready during this turn are
        completed in the next one.

        If a waiter raises, the others are completed in the next turn.
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
