"""Batches that wait for a thread, in order per partition.

Where a topic has a codec of its own, or its records must be decoded, a batch is unpacked and
perhaps compressed again: milliseconds for a megabyte. So is a message set of magic 0 or 1
(docs/adr/0011). A thread does that to a copy, with offsets from 0 on; the append itself, which
gives the real offsets, is done on the loop as always. If a batch needs a new segment, another
thread creates the segment's files first. The log says which of the two a batch waits for
(`log.appending`), and continues where it stopped. Later batches for the same partition queue behind
it, which preserves a producer's order (docs/adr/0010). Neighbours: `log.validator` and
`log.state.roll` do the work, `append` appends.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from kbroker.log.append_request import AppendRequest
from kbroker.log.appending import Postponed, check_batches
from kbroker.log.results import Refused
from kbroker.log.state.roll import RollDue
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import MAX_RECORD_ERRORS, RECORD_ERROR_BYTES, ValidatedBatches
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import ClosableOffload, Memory, Timers, UnlimitedMemory
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, RECORD_COUNT_FIELD
from kbroker.protocol.errors import ErrorCode
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)

MAPPED_BYTES: Final = 128 * 1024

APPEND_TURN_BYTES: Final = 4 << 20
"""Bytes of a queue that one turn of the loop appends; the rest is appended in later turns."""


Ready = ValidatedBatches | Refused | LogDirectoryError | bytearray | memoryview
Append = Callable[[Ready], Postponed | None]
"""Called on the loop in its turn: with the checked batches, with why they are refused, with why
their segment was not made, or with the bytes themselves, still to be checked. Returns why it has to
be called once more.
"""


def own_copy(batches: bytearray | memoryview) -> bytearray | memoryview:
    """A writable copy; a large one in a mapping of its own, which goes back to the system with it:
    many of them come and go, and would leave the heap full of holes.
    """
    if len(batches) < MAPPED_BYTES:
        return bytearray(batches)
    copy = memoryview(mmap.mmap(-1, len(batches)))
    copy[:] = batches
    return copy


class _Job:
    """Queued batches. ready: what is appended when their turn comes. checked: the result of a
    thread, which sets no other field.
    """

    __slots__ = ("append", "charged_bytes", "checked", "config", "ready", "request")

    def __init__(
        self,
        ready: ValidatedBatches | bytearray | memoryview,
        config: LogConfig,
        request: AppendRequest,
        append: Append,
    ) -> None:
        self.ready: Ready = ready
        self.checked: ValidatedBatches | Refused = Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        self.config = config
        self.request = request
        self.append = append
        self.charged_bytes = 0


class Preparation:
    """See the module. It is empty most of the time. check, roll: the Offloads that do that work.
    memory: charged until the batches are appended, for the copies and for what a check makes of
    them, first as estimated, then as measured. unpacking: held while a batch is unpacked, so that
    only one worker of the broker unpacks at a time.
    """

    __slots__ = (
        "_check_in",
        "_closed",
        "_memory",
        "_roll_in",
        "_timers",
        "_unpacking",
        "queues",
    )

    def __init__(
        self,
        check: ClosableOffload,
        roll: ClosableOffload,
        timers: Timers,
        memory: Memory | None = None,
        unpacking: AbstractContextManager[object] | None = None,
    ) -> None:
        self._unpacking = unpacking or nullcontext()
        self._check_in = check
        self._roll_in = roll
        self._timers = timers
        self._memory = memory or UnlimitedMemory()
        self.queues: dict[TopicPartition, deque[_Job]] = {}
        """The queued batches of each partition."""
        self._closed = False

    def wait(
        self,
        key: TopicPartition,
        batches: bytearray | memoryview,
        config: LogConfig,
        request: AppendRequest,
        append: Append,
        postponed: Postponed,
    ) -> None:
        """Start a queue with a copy of batches that the log postponed, and call `append` when the
        work that they wait for is done. batches: as they were received.
        """
        checked = postponed.checked if isinstance(postponed, RollDue) else None
        data = own_copy(batches if checked is None else checked.batches)
        job = _Job(data, config, request, append)
        queue = self.queues[key] = deque((job,))
        if checked is None:
            self._charge(job, len(data) + _most_error_bytes(data, config))
        else:
            checked.batches = memoryview(data)
            self._charge(job, len(data))
        self._prepare(key, queue, postponed)

    def wait_behind(
        self,
        key: TopicPartition,
        batches: bytearray | memoryview,
        config: LogConfig,
        request: AppendRequest,
        append: Append,
    ) -> None:
        """Put a copy of the batches at the end of their partition's queue, which is in `queues`."""
        data = own_copy(batches)
        job = _Job(data, config, request, append)
        self._charge(job, len(data) + _most_error_bytes(data, config))
        self.queues[key].append(job)

    def close(self) -> None:
        """Append no more batches. Blocks until the threads are done."""
        self._closed = True
        for offload in (self._check_in, self._roll_in):
            offload.close()

    def _begin(self, key: TopicPartition, queue: deque[_Job]) -> None:
        """Append jobs up to the first that waits for a thread, or as much as one turn allows."""
        begun_bytes = 0
        while queue:
            if begun_bytes >= APPEND_TURN_BYTES and not self._closed:
                self._timers.call_later(0, partial(self._begin, key, queue))
                return
            job = queue[0]
            begun_bytes += job.charged_bytes
            try:
                postponed = job.append(
                    Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER) if self._closed else job.ready
                )
            except BaseException:
                self._leave(queue)
                self._begin(key, queue)
                raise
            if postponed is not None:
                self._prepare(key, queue, postponed)
                return
            self._leave(queue)
        del self.queues[key]

    def _leave(self, queue: deque[_Job]) -> None:
        self._charge(queue.popleft(), 0)

    def _charge(self, job: _Job, held_bytes: int) -> None:
        """Charge what a job holds now, in place of what it held before."""
        self._memory.charge(held_bytes)
        self._memory.release(job.charged_bytes)
        job.charged_bytes = held_bytes

    def _prepare(self, key: TopicPartition, queue: deque[_Job], postponed: Postponed) -> None:
        """Have a thread do what the first job waits for, then let it append."""
        job = queue[0]
        if isinstance(postponed, RollDue):
            job.ready = postponed.checked
            roll = postponed.roll

            def made(failure: OSError | None) -> None:
                roll.end(failure)
                if roll.failure is not None:
                    job.ready = roll.failure  # not tried again: a lack of descriptors may last
                self._begin(key, queue)

            self._roll_in(roll.work, made)
        elif self._closed:
            self._begin(key, queue)
        else:

            def checked(failure: OSError | None) -> None:
                job.ready = job.checked
                self._charge(job, _held_bytes(job.checked))
                self._begin(key, queue)

            self._check_in(partial(self._check, job), checked)

    def _check(self, job: _Job) -> None:
        """In the thread, in its turn: nothing but the job's own bytes is touched."""
        batches = job.ready
        if not isinstance(batches, bytearray | memoryview):
            raise InvariantError("batches that are checked already")
        with self._unpacking:
            try:
                request = job.request.at(self._timers.now_ms())
                job.checked = check_batches(batches, job.config, request)
            except Exception:  # top frame of a thread: logged, answered as UNKNOWN_SERVER_ERROR
                logger.exception("a batch of %d bytes could not be checked", len(batches))


def _most_error_bytes(batches: bytearray | memoryview, config: LogConfig) -> int:
    """Size of the error messages of a batch if all the records it claims to have are refused."""
    if not config.needs_records or len(batches) < BATCH_OVERHEAD:
        return 0
    count: int = RECORD_COUNT_FIELD.unpack_from(batches)[0]
    return RECORD_ERROR_BYTES * min(max(count, 0), MAX_RECORD_ERRORS)


def _held_bytes(outcome: ValidatedBatches | Refused) -> int:
    if isinstance(outcome, ValidatedBatches):
        return len(outcome.batches)
    return RECORD_ERROR_BYTES * len(outcome.record_errors)
