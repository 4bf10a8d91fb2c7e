"""What a follower does to its log: appending what the leader sent, truncation (Kafka's
ReplicaFetcherThread).

`follower` decides, `fetchers` calls this. Everything happens within the call, so a new segment and
a truncation block the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol, assert_never

from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.any_magic import read_any_header
from kbroker.protocol.batch_header import (
    LENGTH_OVERHEAD,
    LENGTH_POSITION,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import Records
from kbroker.replication.followed_partition import (
    AppendFetched,
    LogChange,
    StartOverAt,
    TruncateTo,
)
from kbroker.replication.partition import Partition

logger = logging.getLogger(__name__)

_LENGTH_AND_EPOCH: Final = Struct(">ii")

CORRUPT: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})
"""Errors of records that are fetched again."""


class TruncatableLogs(Protocol):
    """The logs of this broker; `log.manager.LogManager` is one."""

    def truncate(self, topic_partition: TopicPartition, offset: int) -> bool: ...
    def truncate_fully(self, topic_partition: TopicPartition, offset: int) -> None: ...


class FollowerLogs:
    """logs: truncate and keep the checkpoints right. on_log_start: told of partitions whose log
    starts later now. now_ms: the wall clock.
    """

    __slots__ = ("_logs", "_now_ms", "_on_log_start")

    def __init__(
        self,
        logs: TruncatableLogs,
        *,
        on_log_start: Callable[[Partition], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._on_log_start = on_log_start
        self._now_ms = now_ms

    def carry_out(self, change: LogChange) -> None:
        """Change the log. Raises KafkaError (one of CORRUPT: nothing is appended, and the same may
        be fetched again), LogDirectoryError.
        """
        partition = change.followed.partition
        match change:
            case AppendFetched():
                self._append(partition, change)
            case TruncateTo():
                self._truncate(partition, change.offset)
            case StartOverAt():
                self._start_over(partition, change.offset)
            case _:
                assert_never(change)

    def _append(self, partition: Partition, change: AppendFetched) -> None:
        log: PartitionLog = partition.log  # type: ignore[assignment]  # only PartitionLogs are hosted
        batches = acceptable_batches(change.records, change.followed.leader_epoch)
        if batches:
            if log.log_end_offset == log.log_start_offset:
                self._start_before(partition, read_any_header(batches))
            log.append_as_follower(batches, now_ms=self._now_ms())
        partition.follower_advanced(change.high_watermark, len(batches))
        start = min(change.log_start_offset, partition.high_watermark)
        if start > log.log_start_offset and log.delete_records_before(start):
            self._on_log_start(partition)

    def _start_before(self, partition: Partition, first: BatchHeader) -> None:
        """Let an empty log begin at its first batch, if the leader's log starts within that batch
        (KAFKA-6975).
        """
        if first.base_offset < partition.log.log_end_offset < first.next_offset:
            self._start_over(partition, first.base_offset)

    def _truncate(self, partition: Partition, offset: int) -> None:
        if offset < partition.high_watermark:
            logger.warning(
                "node %d, %s: truncating to offset %d, below the high watermark %d",
                partition.node_id,
                partition.topic_partition,
                offset,
                partition.high_watermark,
            )
        self._logs.truncate(partition.topic_partition, offset)
        partition.truncated()

    def _start_over(self, partition: Partition, offset: int) -> None:
        self._logs.truncate_fully(partition.topic_partition, offset)
        partition.truncated()
        self._on_log_start(partition)


def acceptable_batches(records: Records, leader_epoch: int) -> memoryview:
    """The first part of fetched records that may be appended: without a last batch that is cut
    short by the limit of the response, and without batches of a newer epoch than the one they were
    asked for in (KAFKA-18723): the leader has changed, and may yet truncate them.

    Raises KafkaError(CORRUPT_MESSAGE) for a length that no batch can have.
    """
    if not isinstance(records, bytes | bytearray | memoryview):
        raise TypeError(f"{type(records).__name__} are not fetched records")
    view = memoryview(records)
    position, end = 0, len(view)
    while end - position > MAGIC_POSITION:
        length, epoch = _LENGTH_AND_EPOCH.unpack_from(view, position + LENGTH_POSITION)
        following = position + LENGTH_OVERHEAD + length
        if following <= position + MAGIC_POSITION:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of length {length}")
        if following > end or (view[position + MAGIC_POSITION] >= MAGIC and epoch > leader_epoch):
            break
        position = following
    return view[:position]
