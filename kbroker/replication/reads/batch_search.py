"""Searches batches for a timestamp, one after the other in a thread.

ListOffsets finds the batches (`offsets`); the search of one is in `log.time_search`. One batch at a
time is read and unpacked over all requests, so only one takes memory; the batches of several
searches take turns.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from kbroker.log.time_search import Candidate, TimestampOffset, look_or_believe
from kbroker.ports import ClosableOffload, Deferred, Memory, UnlimitedMemory
from kbroker.protocol.errors import ErrorCode, KafkaError


class Look(Deferred[None]):
    """A batch in the queue. Resolves once `found` or `failure` is set, unless it is cancelled."""

    __slots__ = ("candidate", "failure", "found", "is_cancelled", "max_bytes")

    def __init__(self, candidate: Candidate, max_bytes: int) -> None:
        super().__init__()
        self.candidate = candidate
        self.max_bytes = max_bytes
        self.found: TimestampOffset | None = None
        self.failure: KafkaError | OSError | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """The batch is not searched any more."""
        self.is_cancelled = True

    def give_up(self) -> None:
        """Called when the broker stops before the batch is searched."""
        self.failure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.resolve(None)

    @property
    def result(self) -> TimestampOffset | None:
        """The outcome. Raises the exception of the search; may be read once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        return self.found


class BatchSearcher:
    """See the module. memory: charged for the batch in the thread. unpacking: held while the thread
    unpacks, as wherever a worker unpacks.
    """

    __slots__ = ("_closed", "_memory", "_offload", "_queue", "_running", "_unpacking")

    def __init__(
        self,
        offload: ClosableOffload,
        memory: Memory | None = None,
        unpacking: AbstractContextManager[object] | None = None,
    ) -> None:
        self._offload = offload
        self._memory = memory or UnlimitedMemory()
        self._unpacking = unpacking or nullcontext()
        self._queue: deque[Look] = deque()
        self._running: Look | None = None
        self._closed = False

    def look(self, candidate: Candidate, max_bytes: int) -> Look:
        """Queue the search of a batch; see `look_or_believe`."""
        look = Look(candidate, max_bytes)
        if self._closed:
            look.give_up()
            return look
        self._queue.append(look)
        if self._running is None:
            self._begin()
        return look

    def close(self) -> None:
        """Fail the batches that wait with NOT_LEADER_OR_FOLLOWER; blocks until the thread is done
        with its batch.
        """
        self._closed = True
        queue, self._queue = self._queue, deque()
        for look in queue:
            if not look.is_cancelled:
                look.give_up()
        self._offload.close()

    def _begin(self) -> None:
        while self._queue:
            look = self._queue.popleft()
            if not look.is_cancelled:
                self._running = look  # which keeps it out of the thread's hands at the end
                size = look.candidate.size + look.max_bytes
                self._memory.charge(size)
                self._offload(partial(self._work, look), partial(self._done, look, size))
                return

    def _work(self, look: Look) -> None:
        """In the thread: bytes and an open file, nothing of the log."""
        with self._unpacking:
            try:
                look.found = look_or_believe(look.candidate, look.max_bytes)
            except KafkaError as error:
                look.failure = error.with_traceback(None)  # which holds what was unpacked

    def _done(self, look: Look, size: int, failure: OSError | None) -> None:
        self._memory.release(size)
        self._running = None
        if failure is not None:
            look.failure = failure
        self._begin()
        if not look.is_cancelled:
            look.resolve(None)
