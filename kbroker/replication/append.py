"""Appending to one partition: stage one of Produce, and the waiting of those who want more of it.

Checks, the write and the wake-up happen in one call. Four things make a response wait: batches that
are costly to check or need a new segment (`preparation`), flush.messages (docs/adr/0010), and
acks=-1 with followers that have not got the records yet (`purgatory`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kbroker.log.next_batch import append_next_batch
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.roll import RollDue
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import AppendOrigin, InvalidRecords, RecordError, ValidatedBatches
from kbroker.metrics import TopicTraffic
from kbroker.model import InvariantError
from kbroker.ports import Chained, Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.partition import OffsetWaiter, Partition, Role
from kbroker.replication.preparation import Checked, Preparation
from kbroker.replication.purgatory import PendingResponse, Purgatory
from kbroker.replication.remote_replica import NEVER_MS

logger = logging.getLogger(__name__)

_LEADER: Final = Role.LEADER
"""To look a member up in its enum costs ten times as much."""

_NO_ERRORS: Final[tuple[RecordError, ...]] = ()
_BEFORE_THE_LOG: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
)
"""Refusals after which Kafka does not tell where the log starts."""


class PartitionAppendResult:
    """What became of a batch. Offsets are -1 if there is an error; last_offset is inclusive.

    log_append_time_ms: -1 unless the topic stamps records. record_errors: the records that were
    refused (KIP-467).
    """

    __slots__ = (
        "base_offset",
        "error",
        "error_message",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
    )

    def __init__(
        self,
        error: ErrorCode,
        base_offset: int = -1,
        last_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error_message: str | None = None,
        record_errors: Sequence[RecordError] = _NO_ERRORS,
    ) -> None:
        self.error = error
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.record_errors = record_errors

    def __repr__(self) -> str:
        return (
            f"PartitionAppendResult({self.error.name}, {self.base_offset}..{self.last_offset}, "
            f"{self.error_message!r})"
        )


class Appender:
    """Appends to partitions led here.

    when_flushed: calls back with whether a log is on disk up to an offset. on_storage_error: told
    of a log that could not be written; its directory goes offline.
    """

    __slots__ = (
        "_on_storage_error",
        "_preparation",
        "_purgatory",
        "_timers",
        "_traffic",
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
        traffic: TopicTraffic,
    ) -> None:
        self._traffic = traffic
        self._timers = timers
        self._purgatory = purgatory
        self._preparation = preparation
        self._when_flushed = when_flushed
        self._on_storage_error = on_storage_error

    def close(self) -> None:
        """Stop checking batches off the loop."""
        self._preparation.close()

    def append_next(
        self,
        partition: Partition,
        batches: memoryview,
        produce_version: int,
        now_ms: int,
    ) -> int:
        """`append_to` for the batch that nearly every batch is (`log.next_batch`), outside of a
        transaction, where this replica is the only one: its base offset, and all is done. Negative:
        nothing has happened, `append_to` is to be asked.
        """
        if not partition.commits_alone or self._preparation.queues:
            return -1
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        try:
            offset = append_next_batch(
                log,
                batches,
                produce_version,
                partition.leader_epoch,
                now_ms,
            )
        except LogDirectoryError:
            return -1  # the log keeps it in mind and says so again
        if offset >= 0:
            size = len(batches)
            partition.after_append(size, NEVER_MS)
            traffic = self._traffic
            traffic.bytes_in += size
            traffic.messages_in += log.log_end_offset - offset
        return offset

    def append_to(
        self,
        partition: Partition,
        batches: bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
        admit: Callable[[], ErrorCode] | None = None,
        now_ms: int | None = None,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Stage one: check, write, wake. acks: 0, 1, or -1 (every member of the ISR).

        now_ms: the wall clock, where the caller has just read it.
        transaction_version: of the transaction that a marker ends, or of its producer. admit: asked
        again if batches are written later than in this call; anything but NONE refuses them.

        The response is there at once unless acks is -1 and a follower has not got the records yet.
        Never raises for what the client or the disk did: the result says it.
        """
        if partition.role is not _LEADER:
            return PartitionAppendResult(partition.check_leader())
        if acks == -1:
            if len(partition.isr) < partition.min_isr:
                return PartitionAppendResult(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    error_message=f"{partition.topic_partition} has {len(partition.isr)} replicas "
                    f"in sync, acks=all needs {partition.min_isr}",
                )
        elif acks != 0 and acks != 1:
            return PartitionAppendResult(ErrorCode.INVALID_REQUIRED_ACKS)
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        due: RollDue | None = None
        if origin is not AppendOrigin.CLIENT or not self._preparation.concerns(
            partition.topic_partition, batches, log.config, produce_version
        ):
            try:
                return self._append_now(
                    partition,
                    batches,
                    acks=acks,
                    timeout_ms=timeout_ms,
                    origin=origin,
                    produce_version=produce_version,
                    transaction_version=transaction_version,
                    now_ms=self._timers.now_ms() if now_ms is None else now_ms,
                )
            except RollDue as raised:
                due = raised.with_traceback(None)  # which holds this frame, and so itself
                batches = due.validated.batches
        answer: Chained[PartitionAppendResult] = Chained()
        self._preparation.add(
            partition.topic_partition,
            batches,
            log.config,
            origin=origin,
            produce_version=produce_version,
            append=partial(
                self._append_later,
                answer,
                partition,
                admit,
                acks=acks,
                timeout_ms=timeout_ms,
                origin=origin,
                produce_version=produce_version,
                transaction_version=transaction_version,
            ),
            due=due,
        )
        return answer.value if answer.done else answer

    def _append_later(
        self,
        answer: Chained[PartitionAppendResult],
        partition: Partition,
        admit: Callable[[], ErrorCode] | None,
        checked: Checked,
        *,
        acks: int,
        timeout_ms: int,
        origin: AppendOrigin,
        produce_version: int | None,
        transaction_version: int,
    ) -> None:
        """The batches have had their turn; leadership may have gone while they waited. Answers
        whatever happens, but for RollDue: those behind them have their turn next.
        """
        outcome: PartitionAppendResult | Deferred[PartitionAppendResult]
        try:
            refusal = (ErrorCode.NONE if admit is None else admit()) or partition.check_leader()
            if refusal:
                outcome = PartitionAppendResult(refusal)
            else:
                outcome = self._append_now(
                    partition,
                    checked,
                    acks=acks,
                    timeout_ms=timeout_ms,
                    origin=origin,
                    produce_version=produce_version,
                    transaction_version=transaction_version,
                    now_ms=self._timers.now_ms(),
                )
        except (InvariantError, RollDue):
            raise
        except Exception:  # the request's own top frame has gone
            logger.exception("%s: a batch was not appended", partition.topic_partition)
            outcome = PartitionAppendResult(ErrorCode.UNKNOWN_SERVER_ERROR)
        if not isinstance(outcome, Deferred):
            answer.resolve(outcome)
        elif answer.is_cancelled:
            outcome.cancel()
        else:
            answer.waits_for = outcome
            outcome.on_done(answer.resolve, answer.fail)

    def _append_now(
        self,
        partition: Partition,
        batches: bytearray | memoryview | Checked,
        *,
        acks: int,
        timeout_ms: int,
        origin: AppendOrigin,
        produce_version: int | None,
        transaction_version: int,
        now_ms: int,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Write and wake, in this partition's turn; it is led here, but perhaps in another log than
        when the batches came. Raises RollDue for those of a client.
        """
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        if isinstance(batches, KafkaError):
            return self._refused(log, batches)  # not raised: its traceback would hold this frame
        try:
            info = log.append_as_leader(
                batches,
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                produce_version=produce_version,
                transaction_version=transaction_version,
                defer_roll=origin is AppendOrigin.CLIENT,
            )
        except KafkaError as failure:
            return self._refused(log, failure)
        except LogDirectoryError as failure:
            self._on_storage_error(partition, failure)
            return PartitionAppendResult(ErrorCode.KAFKA_STORAGE_ERROR)
        if not info.duplicate:
            size = len(batches.batches if isinstance(batches, ValidatedBatches) else batches)
            partition.after_append(
                size, self._timers.monotonic_ms() if partition.remotes else NEVER_MS
            )
            traffic = self._traffic
            traffic.bytes_in += size
            traffic.messages_in += info.last_offset - info.base_offset + 1
        result = PartitionAppendResult(
            ErrorCode.NONE,
            info.base_offset,
            info.last_offset,
            info.log_append_time_ms,
            info.log_start_offset,
        )
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            return self._answer_when_flushed(partition, log, result, acks, timeout_ms)
        if acks != -1 or partition.high_watermark > info.last_offset:
            return result
        return _PendingAppend(self._purgatory, partition, result).start(timeout_ms)

    def _refused(self, log: PartitionLog, failure: KafkaError) -> PartitionAppendResult:
        """The result for batches that the log or their validation refuses."""
        self._traffic.failed_produces += 1
        return PartitionAppendResult(
            failure.code,
            log_start_offset=-1 if failure.code in _BEFORE_THE_LOG else log.log_start_offset,
            error_message=failure.message or None,
            record_errors=failure.record_errors
            if isinstance(failure, InvalidRecords)
            else _NO_ERRORS,
        )

    def _answer_when_flushed(
        self,
        partition: Partition,
        log: PartitionLog,
        result: PartitionAppendResult,
        acks: int,
        timeout_ms: int,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """flush.messages is reached: requests with acks get their response after the fsync, which
        runs off the loop (docs/adr/0010).
        """
        answer: Chained[PartitionAppendResult] = Chained()

        def flushed(is_on_disk: bool) -> None:
            if not is_on_disk:
                error = partition.check_leader() or ErrorCode.NOT_LEADER_OR_FOLLOWER
                answer.resolve(PartitionAppendResult(error))
            elif acks != -1 or partition.high_watermark > result.last_offset:
                answer.resolve(result)
            elif not answer.is_cancelled:
                waiting = _PendingAppend(self._purgatory, partition, result).start(timeout_ms)
                answer.waits_for = waiting
                waiting.on_done(answer.resolve, answer.fail)

        self._when_flushed(log, result.last_offset + 1, flushed)
        if acks == 0:
            return result
        return answer.value if answer.done else answer


class _PendingAppend(OffsetWaiter):
    """An append with acks=-1 that followers have not got yet."""

    __slots__ = ("_partition", "_result", "response")

    def __init__(
        self, purgatory: Purgatory, partition: Partition, result: PartitionAppendResult
    ) -> None:
        super().__init__(purgatory)
        self._partition = partition
        self._result = result
        self.response: PendingResponse[PartitionAppendResult] = PendingResponse(self)

    def start(self, timeout_ms: int) -> PendingResponse[PartitionAppendResult]:
        self._partition.wait_for(self, self._result.last_offset + 1)
        self.set_deadline(max(0, timeout_ms))
        return self.response

    def complete(self) -> None:
        """Committed, or no longer ours to commit."""
        partition = self._partition
        if partition.high_watermark >= self.required_offset:
            if partition.is_under_min_isr:
                self._result.error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self.response.resolve(self._result)
            return
        error = partition.check_leader()
        self.response.resolve(PartitionAppendResult(error or ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def expire(self) -> None:
        self.response.resolve(PartitionAppendResult(ErrorCode.REQUEST_TIMED_OUT))
