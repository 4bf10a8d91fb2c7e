"""The low watermark, which DeleteRecords waits for: the lowest log start offset of all live
replicas (KIP-107; Kafka's DelayedDeleteRecords).

Followers send their log start offset with each Fetch; `partition` keeps it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.protocol.errors import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import DelayedResponse, Purgatory, Waiter

NO_LOW_WATERMARK: Final = -1


class LowWatermark(NamedTuple):
    """offset: NO_LOW_WATERMARK if this broker does not lead the partition any more."""

    error: ErrorCode
    offset: int


def low_watermark_of(partition: Partition) -> int:
    """The low watermark of a partition led here."""
    return partition.in_sync.lowest_start(partition.log.log_start_offset)


def await_low_watermark(
    partition: Partition, required_offset: int, timeout_ms: int, purgatory: Purgatory
) -> LowWatermark | DelayedResponse[LowWatermark]:
    """The low watermark of a partition led here once it has reached required_offset, or
    REQUEST_TIMED_OUT after timeout_ms.
    """
    offset = low_watermark_of(partition)
    if offset >= required_offset:
        return LowWatermark(ErrorCode.NONE, offset)
    return _PendingDeletion(purgatory, partition, required_offset).start(timeout_ms)


class _PendingDeletion(Waiter):
    """A deletion that followers have not carried out yet."""

    __slots__ = ("_partition", "_required_offset", "response")

    def __init__(self, purgatory: Purgatory, partition: Partition, required_offset: int) -> None:
        super().__init__(purgatory)
        self._partition = partition
        self._required_offset = required_offset
        self.response: DelayedResponse[LowWatermark] = DelayedResponse(self)

    def start(self, timeout_ms: int) -> DelayedResponse[LowWatermark]:
        partition = self._partition
        if partition.start_watchers is None:
            partition.start_watchers = {}
        partition.start_watchers[self] = None
        self.set_deadline(max(0, timeout_ms))
        return self.response

    def starts_moved(self) -> None:
        """See `purgatory.StartWatcher`."""
        partition = self._partition
        if not partition.is_leader or low_watermark_of(partition) >= self._required_offset:
            self.ready()

    def withdraw(self) -> None:
        watchers = self._partition.start_watchers
        if watchers is not None:
            watchers.pop(self, None)

    def complete(self) -> None:
        """Answer: the low watermark reached the offset, or this broker no longer leads."""
        partition = self._partition
        error = partition.check_leader()
        if partition.removed:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        offset = NO_LOW_WATERMARK if error else low_watermark_of(partition)
        self.response.resolve(LowWatermark(error, offset))

    def expire(self) -> None:
        """Answer REQUEST_TIMED_OUT: a follower is slow or down."""
        partition = self._partition
        offset = low_watermark_of(partition) if partition.is_leader else NO_LOW_WATERMARK
        self.response.resolve(LowWatermark(ErrorCode.REQUEST_TIMED_OUT, offset))
