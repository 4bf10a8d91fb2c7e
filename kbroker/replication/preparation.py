"""Batches that wait for a thread, in order per partition.

Where a topic has a codec of its own, or its records must be looked at, a batch is unpacked and
perhaps packed again: milliseconds for a megabyte. So is a message set of old (docs/adr/0011). A
thread does that to a copy, with offsets from 0 on; the append itself, which gives the real offsets,
is done on the loop as always. If a batch needs a new segment, another thread makes its files first.
What comes for the same partition meanwhile waits behind it, or a producer's batches would change
places (docs/adr/0010). Neighbours: `log.validator` and `log.roll` do the work, `append` appends.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from kbroker.log.roll import RollDue
from kbroker.log.validator import (
    BATCHES_SINCE_PRODUCE_VERSION,
    AppendOrigin,
    ValidatedBatches,
    is_costly,
    validate_batches,
)
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.legacy_records import is_legacy
from kbroker.replication.maintenance import OffloadPort, ThreadOffload
from kbroker.replication.memory_port import MemoryPort, NoAccount
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

MESSAGE_SET_BYTES: Final = 1024
"""A message set of a client before 0.11 is converted off the loop from this size on."""

MAPPED_BYTES: Final = 128 * 1024

UNKNOWN: Final = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
STOPPED: Final = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

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
    __slots__ = ("append", "config", "data", "is_checked", "origin", "outcome", "produce_version")

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
        self.is_checked = False
        self.outcome: ValidatedBatches | KafkaError = UNKNOWN

    @property
    def batches(self) -> Checked:
        """What is to be appended."""
        return self.outcome if self.is_checked else self.data


class Preparation:
    """See the module. Empty most of the time. check, roll: where that is done. memory: told of the
    copies. unpacking: held while a batch is, so that one worker at a time does.
    """

    __slots__ = ("_check_in", "_closed", "_memory", "_now_ms", "_roll_in", "_unpacking", "queues")

    def __init__(
        self,
        check: OffloadPort,
        roll: OffloadPort,
        now_ms: Callable[[], int],
        memory: MemoryPort | None = None,
        unpacking: AbstractContextManager[object] | None = None,
    ) -> None:
        self._unpacking = unpacking or nullcontext()
        self._check_in = check
        self._roll_in = roll
        self._now_ms = now_ms
        self._memory = memory or NoAccount()
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
        """Whether these batches must wait their turn: for a thread, or behind some that do."""
        if self.queues and key in self.queues:
            return True
        if (
            not config.needs_records
            and produce_version is not None
            and produce_version >= BATCHES_SINCE_PRODUCE_VERSION
        ):
            return False  # message sets of old are refused from there on
        return self._is_costly(batches, config)

    def _is_costly(self, batches: bytearray | memoryview, config: LogConfig) -> bool:
        if len(batches) < MESSAGE_SET_BYTES:
            return False
        if is_legacy(batches):
            return True
        return config.needs_records and is_costly(batches, config)

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
        """Copy the batches and call `append` in their turn. due: what they wait for, if they were
        checked; nobody is before them.
        """
        job = _Job(own_copy(batches), config, origin, produce_version, append)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = deque()
        self._memory.charge(len(job.data))
        queue.append(job)
        if due is not None:
            due.validated.batches = memoryview(job.data)
            self._roll(key, queue, due)
        elif len(queue) == 1:
            self._begin(key, queue)

    def close(self) -> None:
        """Append nothing more; blocks until the threads are done."""
        self._closed = True
        for offload in (self._check_in, self._roll_in):
            if isinstance(offload, ThreadOffload):
                offload.close()

    def _begin(self, key: TopicPartition, queue: deque[_Job]) -> None:
        """Work off what needs no thread, up to the first job that does."""
        while queue:
            job = queue[0]
            if not (self._closed or job.is_checked) and self._is_costly(job.data, job.config):
                self._check_in(partial(self._check, job), lambda failure: self._checked(key, queue))
                return
            try:
                job.append(STOPPED if self._closed else job.batches)
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
        self._memory.release(len(queue.popleft().data))

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
                now_ms=self._now_ms(),
                config=config,
                origin=job.origin,
                compacted=config.compact,
                produce_version=job.produce_version,
                validate_records=config.validate_records,
            )
        except KafkaError as error:
            # its traceback holds what was unpacked, and would go round in a circle with this frame
            job.outcome = error.with_traceback(None)
        except Exception:  # top frame of a thread: logged, answered as UNKNOWN_SERVER_ERROR
            logger.exception("a batch of %d bytes could not be checked", len(job.data))

    def _checked(self, key: TopicPartition, queue: deque[_Job]) -> None:
        queue[0].is_checked = True
        self._begin(key, queue)
