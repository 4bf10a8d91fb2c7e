"""Appends to one partition: stage one of Produce, and the wait for flushes and followers.

Checks, the write and the wake-up happen in one call. Four things make a response wait: batches that
are costly to check or need a new segment (`preparation`), flush.messages (docs/adr/0010), and
acks=-1 while followers do not have the records yet (`purgatory`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from kbroker.log.append_cost import LoopBudget
from kbroker.log.append_request import AppendRequest
from kbroker.log.appending import Postponed
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import Appended, FlushDue, Refused
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import AppendOrigin, ValidatedBatches
from kbroker.model import InvariantError
from kbroker.ports import Chained, Deferred, Timers, follow
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.appends.preparation import Preparation, Ready
from kbroker.replication.leaders.remote_replica import NEVER_MS
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import DelayedResponse, OffsetWaiter, Purgatory
from kbroker.replication.role import Role

logger = logging.getLogger(__name__)

_LEADER: Final = Role.LEADER
"""To look a member up in its enum costs ten times as much."""

_BEFORE_THE_LOG: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Refusals after which Kafka does not tell where the log starts."""

PartitionAppendResult = Appended | Refused
"""The outcome of an append to a partition."""


class Appender:
    """Appends to partitions led here.

    when_flushed: calls back with whether a log is on disk up to an offset. on_storage_error: told
    of a log that could not be written; its directory goes offline.
    """

    __slots__ = (
        "_budget",
        "_on_storage_error",
        "_preparation",
        "_purgatory",
        "_queues",
        "_timers",
        "_when_flushed",
    )

    def __init__(
        self,
        timers: Timers,
        purgatory: Purgatory,
        preparation: Preparation,
        *,
        when_flushed: Callable[[PartitionLog, int, Callable[[bool], None]], None],
        on_storage_error: Callable[[Partition, OSError], None],
    ) -> None:
        self._budget = LoopBudget(timers)
        self._timers = timers
        self._purgatory = purgatory
        self._preparation = preparation
        self._queues = preparation.queues
        self._when_flushed = when_flushed
        self._on_storage_error = on_storage_error

    def close(self) -> None:
        """Stop checking batches off the loop."""
        self._preparation.close()

    def append(
        self, partition: Partition, batches: bytearray | memoryview, request: AppendRequest
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Stage one: check, write, wake.

        The result is resolved at once unless the batches have to wait, flush.messages is reached,
        or acks is -1 and a follower does not have the records yet. Never raises for errors of the
        client or the disk: the result has them.
        """
        traffic = partition.traffic
        traffic.produces += 1
        if not partition.commits_alone or not request.is_plain or self._queues:
            refused = _check_partition(partition, batches, request)
            if refused is not None:
                return refused
            key = partition.topic_partition
            if key in self._queues and request.origin is AppendOrigin.CLIENT:
                return self._wait(partition, batches, request, None)
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        try:
            outcome = log.append(batches, partition.leader_epoch, request, self._budget)
        except LogDirectoryError as failure:
            return self._disk_failed(partition, failure)
        if type(outcome) is Appended and partition.commits_alone:  # no Duplicate
            size = len(batches)
            partition.after_append(size, NEVER_MS)
            traffic.bytes_in += size
            traffic.messages_in += log.log_end_offset - outcome.base_offset
            return outcome
        if isinstance(outcome, Postponed):
            return self._wait(partition, batches, request, outcome)
        return self._settle(partition, log, len(batches), outcome, request)

    def _wait(
        self,
        partition: Partition,
        batches: bytearray | memoryview,
        request: AppendRequest,
        postponed: Postponed | None,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Queue batches: the log postponed them, or (None) earlier ones of the partition are
        queued.
        """
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        key = partition.topic_partition
        answer: Chained[PartitionAppendResult] = Chained()
        reverify = None if request.reverify is None else request.reverify(key, batches)
        append = partial(self._append_later, answer, partition, request, reverify)
        if postponed is None:
            self._preparation.wait_behind(key, batches, log.config, request, append)
        else:
            self._preparation.wait(key, batches, log.config, request, append, postponed)
        return answer.value if answer.done else answer

    def _append_later(
        self,
        answer: Chained[PartitionAppendResult],
        partition: Partition,
        request: AppendRequest,
        reverify: Callable[[], ErrorCode] | None,
        ready: Ready,
    ) -> Postponed | None:
        """Append batches when their turn comes; leadership may have been lost since. Resolves
        answer in every case but one: if the log postpones the batches again, they and those behind
        them stay queued.
        """
        outcome: PartitionAppendResult | Deferred[PartitionAppendResult] | Postponed
        try:
            error = (ErrorCode.NONE if reverify is None else reverify()) or partition.check_leader()
            outcome = Refused(error) if error else self._append_ready(partition, request, ready)
        except InvariantError:
            raise
        except Exception:  # the request's own top frame has gone
            logger.exception("%s: a batch was not appended", partition.topic_partition)
            outcome = Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        if isinstance(outcome, Postponed):
            return outcome
        if answer.is_cancelled and isinstance(outcome, Deferred):
            outcome.cancel()
        else:
            follow(answer, outcome)
        return None

    def _append_ready(
        self, partition: Partition, request: AppendRequest, ready: Ready
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult] | Postponed:
        """Append to a partition that is led here, perhaps to another log than when the batches were
        queued.
        """
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        if isinstance(ready, Refused):
            return _refused(partition, log, ready)
        if isinstance(ready, LogDirectoryError):
            return self._disk_failed(partition, ready)
        request = request.at(self._timers.now_ms())
        epoch = partition.leader_epoch
        outcome: Appended | FlushDue | Refused | Postponed
        try:
            if isinstance(ready, ValidatedBatches):
                size = len(ready.batches)
                outcome = log.append_checked(ready, epoch, request, may_wait=True)
            else:
                size = len(ready)
                outcome = log.append(ready, epoch, request, self._budget)
        except LogDirectoryError as failure:
            return self._disk_failed(partition, failure)
        if isinstance(outcome, Postponed):
            return outcome
        return self._settle(partition, log, size, outcome, request)

    def _disk_failed(self, partition: Partition, failure: LogDirectoryError) -> Refused:
        self._on_storage_error(partition, failure)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR)

    def _settle(
        self,
        partition: Partition,
        log: PartitionLog,
        size: int,
        outcome: Appended | FlushDue | Refused,
        request: AppendRequest,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Count and announce batches of size bytes that were appended. Returns the result, once
        they are on disk and replicated as far as flush.messages and the producer ask for.
        """
        if isinstance(outcome, Refused):
            return _refused(partition, log, outcome)
        appended = outcome.appended if isinstance(outcome, FlushDue) else outcome
        if not appended.duplicate:
            now_ms = self._timers.monotonic_ms() if partition.remotes else NEVER_MS
            partition.after_append(size, now_ms)
            traffic = partition.traffic
            traffic.bytes_in += size
            traffic.messages_in += appended.last_offset - appended.base_offset + 1
        if isinstance(outcome, FlushDue):
            return self._answer_when_flushed(partition, log, appended, request)
        if request.acks != -1 or partition.high_watermark > appended.last_offset:
            return appended
        return _PendingAppend(self._purgatory, partition, appended).start(request.timeout_ms)

    def _answer_when_flushed(
        self, partition: Partition, log: PartitionLog, appended: Appended, request: AppendRequest
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Called when flush.messages is reached. Requests with acks are answered after the fsync,
        which runs off the loop (docs/adr/0010).
        """
        answer: Chained[PartitionAppendResult] = Chained()
        truncation_count = log.truncation_count

        def flushed(is_on_disk: bool) -> None:
            # A follower may have cut the records off, and others are at their offsets now.
            is_lost = partition.role is not _LEADER or log.truncation_count != truncation_count
            if not is_on_disk or (request.acks == -1 and is_lost):
                error = partition.check_leader() or ErrorCode.NOT_LEADER_OR_FOLLOWER
                answer.resolve(Refused(error))
            elif request.acks != -1 or partition.high_watermark > appended.last_offset:
                answer.resolve(appended)
            elif not answer.is_cancelled:
                pending = _PendingAppend(self._purgatory, partition, appended)
                follow(answer, pending.start(request.timeout_ms))

        self._when_flushed(log, appended.last_offset + 1, flushed)
        if request.acks == 0:
            return appended
        return answer.value if answer.done else answer


def _refused(partition: Partition, log: PartitionLog, refused: Refused) -> Refused:
    """The result for batches that the log or their validation refuses."""
    if refused.error is not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        partition.traffic.failed_produces += 1
    if refused.error not in _BEFORE_THE_LOG:
        refused.log_start_offset = log.log_start_offset
    return refused


def _check_partition(
    partition: Partition, batches: bytearray | memoryview, request: AppendRequest
) -> Refused | None:
    """Why batches are not appended to a partition now: leadership, min.insync.replicas, acks."""
    if request.lacks_transaction(batches):
        return Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if partition.role is not _LEADER:
        return Refused(partition.check_leader())
    if request.acks == -1:
        if partition.is_under_min_isr:
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{partition.topic_partition} has {len(partition.isr)} replicas "
                f"in sync, acks=all needs {partition.min_isr}",
            )
    elif request.acks != 0 and request.acks != 1:
        return Refused(ErrorCode.INVALID_REQUIRED_ACKS)
    return None


class _PendingAppend(OffsetWaiter):
    """An append with acks=-1 whose records the ISR does not have yet."""

    __slots__ = ("_appended", "_partition", "response")

    def __init__(self, purgatory: Purgatory, partition: Partition, appended: Appended) -> None:
        super().__init__(purgatory)
        self._partition = partition
        self._appended = appended
        self.response: DelayedResponse[PartitionAppendResult] = DelayedResponse(self)

    def start(self, timeout_ms: int | None) -> DelayedResponse[PartitionAppendResult]:
        self._partition.wait_for(self, self._appended.last_offset + 1)
        if timeout_ms is not None:
            self.set_deadline(max(0, timeout_ms))
        return self.response

    def complete(self) -> None:
        """Answer: the records are committed, or this broker no longer leads."""
        partition = self._partition
        if partition.high_watermark < self.required_offset:
            error = partition.check_leader()
            self.response.resolve(Refused(error or ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif partition.is_acknowledged_under_min_isr:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self.response.resolve(Refused(error, appended=self._appended))
        else:
            self.response.resolve(self._appended)

    def expire(self) -> None:
        self.response.resolve(Refused(ErrorCode.REQUEST_TIMED_OUT))
