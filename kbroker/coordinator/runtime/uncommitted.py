"""The records of a shard's log above the high watermark, and the responses that wait for their
commit.

A shard's state includes its whole log. Records above the high watermark may still be lost with this
leadership, so a response that depends on them is sent only when all of them are committed: the
response to a write, to a read, and to a request that changes nothing. Kafka's names:
CoordinatorRuntime's DeferredEventQueue and OperationTimeout.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from kbroker.coordinator.runtime.coordinator_log import is_written
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import ErrorCode

_NONE: Final = ErrorCode.NONE
"""Looking up an enum member costs ten times as much."""


class Write:
    """One write, or the uncommitted records found when the shard was loaded. error: its outcome,
    None while that is unknown.
    """

    __slots__ = ("error",)

    def __init__(self, error: ErrorCode | None = None) -> None:
        self.error = error


class _Waiting(NamedTuple):
    """A response that waits for a write and all writes before it, until deadline_ms at most."""

    deadline_ms: int
    write: Write
    answer: Deferred[ErrorCode]


class Uncommitted:
    """The writes of one shard that are in the log and not known to be committed, oldest first.

    writes: empty if the whole log is committed. A failed write is never removed: until the shard is
    loaded again, no response that depends on it is sent. timeout_ms: how long a response waits;
    then it fails with REQUEST_TIMED_OUT, and the write stays in the list.
    """

    __slots__ = ("_committed", "_timeout_ms", "_timer", "_timers", "_waiting", "writes")

    def __init__(self, timers: Timers, timeout_ms: int) -> None:
        self.writes: deque[Write] = deque()
        self._timers = timers
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self._timer: TimerHandle | None = None
        self._committed = Deferred.of(_NONE)

    def add(self) -> Write:
        """Records were written; call `settle` with the outcome."""
        write = Write()
        self.writes.append(write)
        return write

    def settle(self, write: Write, error: ErrorCode) -> None:
        """The write is committed (NONE), or failed, or its replication is insufficient."""
        write.error = error
        writes = self.writes
        while writes and (known := writes[0].error) is not None and is_written(known):
            writes.popleft()
        waiting = self._waiting
        answers = []
        while waiting and (known := waiting[0].write.error) is not None:
            answers.append((waiting.popleft().answer, known))
        for answer, known in answers:
            answer.resolve(known)

    def wait(self) -> Deferred[ErrorCode]:
        """NONE once all records that are in the log now are committed; otherwise REQUEST_TIMED_OUT
        or the error of the newest write.
        """
        if not self.writes:
            return self._committed
        newest = self.writes[-1]
        if newest.error is not None:
            return Deferred.of(newest.error)
        answer: Deferred[ErrorCode] = Deferred()
        deadline_ms = self._timers.monotonic_ms() + self._timeout_ms
        self._waiting.append(_Waiting(deadline_ms, newest, answer))
        if self._timer is None:
            self._timer = self._timers.call_later(self._timeout_ms, self._on_timer)
        return answer

    def close(self, error: ErrorCode) -> None:
        """The shard is unloaded: all waiting responses fail with error, and so does every later
        `wait`.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        self.writes = deque([Write(error)])
        for one in waiting:
            one.answer.resolve(error)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._timers.monotonic_ms()
        waiting = self._waiting
        late = []
        while waiting and waiting[0].deadline_ms <= now_ms:
            late.append(waiting.popleft().answer)
        if waiting:
            self._timer = self._timers.call_later(waiting[0].deadline_ms - now_ms, self._on_timer)
        for answer in late:
            answer.resolve(ErrorCode.REQUEST_TIMED_OUT)
