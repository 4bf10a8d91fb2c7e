"""Changes of a follower's log: appends of fetched records, and truncation (Kafka's
ReplicaFetcherThread).

`follower` decides, and `fetchers` runs the steps of this module in turns of the loop
(`FairSlices`). Workers truncate logs, create new segments and check the CRCs of large batches; the
loop appends piece by piece. A log has at most one change in progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.cut import Cut
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import ValidatedBatches, validate_replicated
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import ClosableOffload, Deferred, broker_stopping
from kbroker.protocol.batches.any_magic import read_any_header
from kbroker.protocol.batches.batch_header import (
    LENGTH_AND_EPOCH,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
)
from kbroker.protocol.codecs.schema import Records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.followers.followed_partition import (
    AppendFetched,
    FollowedPartition,
    FollowState,
    LogChange,
    TruncateTo,
)
from kbroker.replication.partition import Partition
from kbroker.replication.time_slices import SlicedSteps, Steps
from kbroker.settings.views.log_config import NEVER

logger = logging.getLogger(__name__)

BELOW_HIGH_WATERMARK: Final = "node %d, %s: truncating to offset %d, below the high watermark %d"
"""Logged when records below the high watermark are truncated, which consumers may have read. It
needs an unclean election.
"""
CORRUPT: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})
"""Errors after which the records are fetched again."""

PIECE_BATCHES: Final = 128
PIECE_BYTES: Final = 512 * 1024
"""The most that one step appends, but at least one batch: a millisecond or less."""

LOOP_CHECK_BYTES: Final = 2 << 20
"""The loop checks CRCs of up to so many bytes at once; a worker checks those of a larger batch."""


class TruncatableLogs(Protocol):
    """The logs of this broker; `log.manager.LogManager` is one."""

    def begin_cut(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        is_full: bool,
        then: Callable[[], None],
    ) -> Cut | None: ...


class FollowerLogs:
    """Changes the logs of followed partitions. logs: truncates logs. offload: the workers.
    when_flushed: `Maintenance.when_flushed`. on_log_start: called with a partition whose log start
    offset may have moved. now_ms: the wall clock.
    """

    __slots__ = (
        "_is_closed",
        "_logs",
        "_now_ms",
        "_offload",
        "_on_log_start",
        "_under_way",
        "_when_flushed",
    )

    def __init__(
        self,
        logs: TruncatableLogs,
        *,
        offload: ClosableOffload,
        when_flushed: Callable[[PartitionLog, int, Callable[[bool], None]], None],
        on_log_start: Callable[[Partition], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._offload = offload
        self._when_flushed = when_flushed
        self._on_log_start = on_log_start
        self._now_ms = now_ms
        self._under_way: dict[Partition, list[Callable[[], None]]] = {}
        self._is_closed = False

    def close(self) -> None:
        """Submit no more work to the workers, and wait for them. Blocks. A truncation that they
        have not begun is left to the close of its log.
        """
        self._is_closed = True
        self._offload.close()

    def is_changing(self, partition: Partition) -> bool:
        """Whether a change of the partition's log is in progress, perhaps one of an earlier
        leadership.
        """
        return partition in self._under_way

    def when_idle(self, partition: Partition, then: Callable[[], None]) -> None:
        """Call back once the change in progress has ended."""
        self._under_way[partition].append(then)

    def steps(self, change: LogChange) -> SlicedSteps:
        """Return the steps of a change of the log.

        They raise KafkaError (one of CORRUPT: the append stops there, and the records may be
        fetched again) and LogDirectoryError. An append ends early, without an error, if the
        partition is no longer followed in the same leader epoch.
        """
        if _is_over(change.followed):
            return
        partition = change.followed.partition
        if partition in self._under_way:
            raise InvariantError(f"{change.followed}: two changes of its log at a time")
        waiting: list[Callable[[], None]] = []
        self._under_way[partition] = waiting
        try:
            if isinstance(change, AppendFetched):
                yield from self._append(partition, change)
            else:
                is_full = not isinstance(change, TruncateTo)
                yield from self._cut(change.followed, change.offset, is_full=is_full)
        finally:
            del self._under_way[partition]
            for then in waiting:
                then()

    # -- appending --------------------------------------------------------------------------------

    def append_next(self, change: AppendFetched) -> AppendFetched | None:
        """Append what the log accepts in one step (`AppendableLog.append_next_replicated`), nearly
        always all records. Returns None if it was all, otherwise the append that is left for
        `steps`.

        Raises KafkaError, LogDirectoryError as `steps` do.
        """
        followed, records, high_watermark, log_start_offset = change
        partition = followed.partition
        if partition in self._under_way or _is_over(followed):
            return change
        view = memoryview(records)  # type: ignore[arg-type]  # `pieces_of` refuses others
        size = len(view)
        if size:
            log = _log_of(partition)
            if log.config.flush_messages != NEVER:
                return change
            done = log.append_next_replicated(
                view, followed.leader_epoch, self._now_ms(), max_batches=PIECE_BATCHES
            )
            if not done:
                return change
            partition.traffic.replication_bytes_in += done
            if done < size:
                partition.follower_advanced(high_watermark, done)
                return AppendFetched(followed, view[done:], high_watermark, log_start_offset)
        partition.follower_advanced(high_watermark, size)
        self._move_log_start(partition, log_start_offset)
        return None

    def _append(self, partition: Partition, change: AppendFetched) -> Steps[None]:
        followed = change.followed
        is_first = True
        for piece in pieces_of(change.records, followed.leader_epoch):
            if not is_first:
                yield None
            if _is_over(followed):
                return
            if is_first and partition.log.log_end_offset == partition.log.log_start_offset:
                yield from self._start_before(followed, read_any_header(piece))
            is_first = False
            yield from self._append_piece(followed, piece)
            if _is_over(followed):
                return
            yield from self._flush_if_due(partition)
            if _is_over(followed):
                return
            partition.traffic.replication_bytes_in += len(piece)
            partition.follower_advanced(change.high_watermark, len(piece))
        if is_first:
            partition.follower_advanced(change.high_watermark, 0)
        self._move_log_start(partition, change.log_start_offset)

    def _move_log_start(self, partition: Partition, leader_start: int) -> None:
        """Move the log start to the leader's, but not beyond the high watermark of this replica."""
        log = _log_of(partition)
        if leader_start > log.log_start_offset:
            start = min(leader_start, partition.high_watermark)
            if start > log.log_start_offset and log.delete_records_before(start):
                self._on_log_start(partition)

    def _append_piece(self, followed: FollowedPartition, piece: memoryview) -> Steps[None]:
        partition = followed.partition
        if len(piece) > LOOP_CHECK_BYTES:
            checked = yield from self._check(partition, piece)
        else:
            checked = validate_replicated(piece, next_offset=partition.log.log_end_offset)
        while not _is_over(followed):  # perhaps another log each time: the mover replaces it
            log = _log_of(partition)
            due = log.append_replicated(checked, now_ms=self._now_ms(), may_wait=True)
            if due is None:
                return
            roll = due.roll
            made = self._in_worker(roll.work)
            yield made
            roll.end(made.value)
            if roll.failure is not None:
                raise roll.failure

    def _flush_if_due(self, partition: Partition) -> Steps[None]:
        """flush.messages: the records are on disk before the next Fetch tells the leader that this
        replica has them, as in Kafka. A disk that fails ends the following by itself.
        """
        log = _log_of(partition)
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            flushed: Deferred[bool] = Deferred()
            self._when_flushed(log, log.log_end_offset, flushed.resolve)
            yield flushed

    def _check(
        self, partition: Partition, piece: memoryview
    ) -> Generator[Deferred[Any] | None, None, ValidatedBatches]:
        """`validate_replicated` in a worker."""
        next_offset = partition.log.log_end_offset
        found: list[ValidatedBatches | KafkaError] = []

        def check() -> None:
            try:
                found.append(validate_replicated(piece, next_offset=next_offset))
            except KafkaError as error:
                found.append(error)

        done = self._in_worker(check)
        yield done
        _require_done(done.value)
        checked = found.pop()
        if isinstance(checked, KafkaError):
            raise checked
        return checked

    def _start_before(self, followed: FollowedPartition, first: BatchHeader) -> Steps[None]:
        """Restart an empty log at the base offset of its first batch, if the leader's log start
        offset lies within that batch (KAFKA-6975).
        """
        if first.base_offset < followed.partition.log.log_end_offset < first.next_offset:
            yield from self._cut(followed, first.base_offset, is_full=True)

    # -- cutting ----------------------------------------------------------------------------------

    def _cut(self, followed: FollowedPartition, offset: int, *, is_full: bool) -> Steps[None]:
        partition = followed.partition
        if not is_full and offset < partition.high_watermark:
            logger.warning(
                BELOW_HIGH_WATERMARK,
                partition.node_id,
                partition.topic_partition,
                offset,
                partition.high_watermark,
            )
        while not (log := _log_of(partition)).jobs.is_idle:
            done = self._in_worker(log.jobs.work)
            yield done
            log.jobs.collect()
            _require_done(done.value)
            if _is_over(followed):
                return
        cut = self._logs.begin_cut(
            partition.topic_partition, offset, is_full=is_full, then=partition.truncated
        )
        if cut is None:
            partition.truncated()
        else:
            done = self._in_worker(cut.work)
            yield done
            cut.end(done.value)
            _require_done(done.value)
            if cut.failure is not None:
                raise cut.failure
        if partition.role:
            self._on_log_start(partition)

    def _in_worker(self, work: Callable[[], None]) -> Deferred[OSError | None]:
        """Run work in a worker. Resolves with its OSError, or None. Raises
        KafkaError(BROKER_NOT_AVAILABLE) after `close`.
        """
        if self._is_closed:
            raise broker_stopping()
        done: Deferred[OSError | None] = Deferred()
        self._offload(work, done.resolve)
        return done


def _log_of(partition: Partition) -> PartitionLog:
    return partition.log  # type: ignore[return-value]  # only PartitionLogs are hosted


def _is_over(followed: FollowedPartition) -> bool:
    """Whether fetched records must no longer be appended: there is a newer leader epoch, or the
    partition is no longer hosted.
    """
    return followed.state is FollowState.REMOVED or not followed.partition.role


def _require_done(failure: OSError | None) -> None:
    """Raise a worker's failure, as LogDirectoryError or KafkaError(KAFKA_STORAGE_ERROR)."""
    if isinstance(failure, LogDirectoryError):
        raise failure
    if failure is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))


def pieces_of(records: Records, leader_epoch: int) -> Iterator[memoryview]:
    """The fetched batches that may be appended, in pieces of PIECE_BATCHES or PIECE_BYTES: without
    a last batch that is cut short by the limit of the response, and without batches of a newer
    epoch than the one they were asked for in (KAFKA-18723): the leader has changed, and may yet
    truncate them.

    Raises KafkaError(CORRUPT_MESSAGE) for a length that no batch can have.
    """
    if not isinstance(records, bytes | bytearray | memoryview):
        raise TypeError(f"{type(records).__name__} are not fetched records")
    view = memoryview(records)
    begin = position = count = 0
    end = len(view)
    while end - position > MAGIC_POSITION:
        length, epoch = LENGTH_AND_EPOCH.unpack_from(view, position)
        following = position + LENGTH_OVERHEAD + length
        if following <= position + MAGIC_POSITION:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of length {length}")
        if following > end or (view[position + MAGIC_POSITION] >= MAGIC and epoch > leader_epoch):
            break
        if count and (count == PIECE_BATCHES or following - begin > PIECE_BYTES):
            yield view[begin:position]
            begin, count = position, 0
        position = following
        count += 1
    if count:
        yield view[begin:position]
