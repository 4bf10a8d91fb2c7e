"""Batches that wait for a thread, in order per partition.

Where a topic has a codec of its own, or its records must be decoded, a batch is unpacked and
perhaps compressed again: milliseconds for a megabyte. So is a message set of magic 0 or 1
(docs/adr/0011). A thread does that to a copy, with offsets from 0 on; the append itself, which
gives the real offsets, is done on the loop as always. Only batches that unpack to little are
checked on the loop, and only so many of them in one turn of the loop. If a batch needs a new
segment, another thread makes its files first. Later batches for the same partition queue behind it,
which preserves a producer's order (docs/adr/0010). Neighbours: `log.append_cost` estimates the
work, `log.validator` and `log.state.roll` do it, `append` appends.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from kbroker.log.append_cost import A_WORKERS, LOOP_BYTES, loop_cost
from kbroker.log.state.roll import RollDue
from kbroker.log.validator import (
    MAX_RECORD_ERRORS,
    RECORD_ERROR_BYTES,
    AppendOrigin,
    InvalidRecords,
    ValidatedBatches,
    validate_batches,
)
from kbroker.model import TopicPartition
from kbroker.ports import ClosableOffload, Memory, Timers, UnlimitedMemory
from kbroker.protocol.batch_header import BATCH_OVERHEAD, RECORD_COUNT_FIELD
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

LOOP_TURN_BYTES: Final = 4 * LOOP_BYTES
"""What the batches of all requests may cost the loop in one of its turns (`append_cost`); a worker
checks those beyond it, however small they are.
"""

MAPPED_BYTES: Final = 128 * 1024

APPEND_TURN_BYTES: Final = 4 << 20
"""What one turn of the loop appends of a queue; the rest has further turns."""


Checked = ValidatedBatches | KafkaError | bytearray | memoryview
Append = Callable[[Checked], None]
"""Called on the loop in its turn: with the checked batches, with why they are refused, or with the
bytes themselves, still to be checked. Raises RollDue to be called once more.
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
    __slots__ = (
        "append",
        "charged_bytes",
        "config",
        "data",
        "is_checked",
        "needs_thread",
        "origin",
        "outcome",
        "produce_version",
    )

    def __init__(
        self,
        data: bytearray | memoryview,
        config: LogConfig,
        origin: AppendOrigin,
        produce_version: int | None,
        append: Append,
    ) -> None:
        self.data = data
        self.config = config
        self.origin = origin
        self.produce_version = produce_version
        self.append = append
        self.charged_bytes = 0
        self.is_checked = False
        self.needs_thread = False  # known before its turn came
        self.outcome: ValidatedBatches | KafkaError | None = None  # of the check

    @property
    def batches(self) -> Checked:
        """What is to be appended."""
        if not self.is_checked:
            return self.data
        # without an outcome the check ended with a surprise, which is logged
        return self.outcome or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)


class Preparation:
    """See the module. Empty most of the time. check, roll: where that is done. memory: charged for
    the copies, for what a check may and then does make of them, until they have been appended, and
    released on the loop. unpacking: held while a batch is, so that one worker at a time does.
    """

    __slots__ = (
        "_check_in",
        "_closed",
        "_left_bytes",
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
        self._left_bytes = LOOP_TURN_BYTES  # for this turn of the loop
        self._memory = memory or UnlimitedMemory()
        self.queues: dict[TopicPartition, deque[_Job]] = {}
        """Batches that wait their turn."""
        self._closed = False

    def concerns(
        self,
        key: TopicPartition,
        batches: bytearray | memoryview,
        config: LogConfig,
        produce_version: int | None,
    ) -> bool:
        """Whether these batches must wait their turn: for a thread, or behind some that do. Where
        they need not, the caller checks them now, which is counted.
        """
        if self.queues and key in self.queues:
            return True
        return not self._fits_this_turn(batches, config, produce_version)

    def _fits_this_turn(
        self, batches: bytearray | memoryview, config: LogConfig, produce_version: int | None
    ) -> bool:
        """Whether the loop may check these batches now; what that costs is spent then."""
        limit = min(LOOP_BYTES, self._left_bytes)
        cost = loop_cost(batches, config, produce_version, self._timers.now_ms(), limit=limit)
        if not cost:
            return True
        if cost == A_WORKERS:
            return False
        if self._left_bytes == LOOP_TURN_BYTES:
            self._timers.call_later(0, self._next_turn)
        self._left_bytes -= min(cost, limit)
        return cost <= limit

    def _next_turn(self) -> None:
        self._left_bytes = LOOP_TURN_BYTES

    def add(
        self,
        key: TopicPartition,
        batches: bytearray | memoryview,
        config: LogConfig,
        *,
        origin: AppendOrigin,
        produce_version: int | None,
        append: Append,
        due: RollDue | None = None,
    ) -> None:
        """Copy the batches, which `concerns` this queue, and call `append` in their turn. due: what
        they wait for, if they are checked already; then no other batches are queued.
        """
        job = _Job(own_copy(batches), config, origin, produce_version, append)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = deque()
        queue.append(job)
        if due is not None:
            self._charge(job, len(job.data))
            due.validated.batches = memoryview(job.data)
            self._roll(key, queue, due)
            return
        self._charge(job, len(job.data) + _most_error_bytes(job.data, config))
        if len(queue) == 1:
            job.needs_thread = True
            self._begin(key, queue)

    def close(self) -> None:
        """Append nothing more; blocks until the threads are done."""
        self._closed = True
        for offload in (self._check_in, self._roll_in):
            offload.close()

    def _begin(self, key: TopicPartition, queue: deque[_Job]) -> None:
        """Work off what needs no thread, up to the first job that does, or for one turn."""
        begun_bytes = 0
        while queue:
            if begun_bytes >= APPEND_TURN_BYTES and not self._closed:
                self._timers.call_later(0, partial(self._begin, key, queue))
                return
            job = queue[0]
            begun_bytes += job.charged_bytes
            if not (self._closed or job.is_checked) and (
                job.needs_thread
                or not self._fits_this_turn(job.data, job.config, job.produce_version)
            ):
                self._check_in(partial(self._check, job), lambda failure: self._checked(key, queue))
                return
            try:
                job.append(
                    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER) if self._closed else job.batches
                )
            except RollDue as due:
                self._roll(key, queue, due)
                return
            except BaseException:
                self._leave(queue)
                self._begin(key, queue)
                raise
            self._leave(queue)
        del self.queues[key]

    def _leave(self, queue: deque[_Job]) -> None:
        self._charge(queue.popleft(), 0)

    def _charge(self, job: _Job, held_bytes: int) -> None:
        """Charge what a job holds now, in place of what it held before."""
        self._memory.charge(held_bytes)
        self._memory.release(job.charged_bytes)
        job.charged_bytes = held_bytes

    def _roll(self, key: TopicPartition, queue: deque[_Job], due: RollDue) -> None:
        """Have the first one's new segment made, then let it append."""
        job, roll = queue[0], due.roll
        job.outcome, job.is_checked = due.validated, True

        def made(failure: OSError | None) -> None:
            roll.end(failure)
            self._begin(key, queue)

        self._roll_in(roll.work, made)

    def _check(self, job: _Job) -> None:
        """In the thread, in its turn: nothing but the job's own bytes is touched."""
        with self._unpacking:
            self._validate(job)

    def _validate(self, job: _Job) -> None:
        config = job.config
        try:
            job.outcome = validate_batches(
                job.data,
                next_offset=0,
                leader_epoch=0,
                now_ms=self._timers.now_ms(),
                config=config,
                origin=job.origin,
                compacted=config.compact,
                produce_version=job.produce_version,
                validate_records=config.validate_records,
            )
        except KafkaError as error:
            # tracebacks hold what was unpacked, and would form a cycle with this frame
            error.__cause__ = error.__context__ = None
            job.outcome = error.with_traceback(None)
        except Exception:  # top frame of a thread: logged, answered as UNKNOWN_SERVER_ERROR
            logger.exception("a batch of %d bytes could not be checked", len(job.data))

    def _checked(self, key: TopicPartition, queue: deque[_Job]) -> None:
        job = queue[0]
        job.is_checked = True
        job.data = bytearray()  # where it became the batches to append, they hold it
        self._charge(job, _held_bytes(job.outcome))
        self._begin(key, queue)


def _most_error_bytes(batches: bytearray | memoryview, config: LogConfig) -> int:
    """What the refused records of a batch may take, if all it says it has are refused."""
    if not config.needs_records or len(batches) < BATCH_OVERHEAD:
        return 0
    count: int = RECORD_COUNT_FIELD.unpack_from(batches)[0]
    return RECORD_ERROR_BYTES * min(max(count, 0), MAX_RECORD_ERRORS)


def _held_bytes(outcome: ValidatedBatches | KafkaError | None) -> int:
    if isinstance(outcome, ValidatedBatches):
        return len(outcome.batches)
    if isinstance(outcome, InvalidRecords):
        return RECORD_ERROR_BYTES * len(outcome.record_errors)
    return 0
