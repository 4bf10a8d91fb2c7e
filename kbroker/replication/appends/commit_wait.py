"""Waiting until all of a partition's log is committed, for a coordinator that has loaded it.

The wait of an append for its followers is in `append`.
"""

from __future__ import annotations

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import OffsetWaiter, Purgatory


def when_committed(partition: Partition, purgatory: Purgatory) -> Deferred[ErrorCode]:
    """NONE once the high watermark reaches the present log end offset, however long that takes; an
    error if the partition is not led here, or no longer before that. Never fails.
    """
    error = partition.check_leader()
    end = partition.log.log_end_offset
    if error or partition.high_watermark >= end:
        return Deferred.of(error)
    wait = _CommitWait(purgatory, partition)
    partition.wait_for(wait, end)
    return wait.outcome


class _CommitWait(OffsetWaiter):
    """Waits without a deadline; ends when the partition commits the offset or abandons waiters."""

    __slots__ = ("_partition", "outcome")

    def __init__(self, purgatory: Purgatory, partition: Partition) -> None:
        super().__init__(purgatory)
        self._partition = partition
        self.outcome: Deferred[ErrorCode] = Deferred()

    def complete(self) -> None:
        partition = self._partition
        if partition.high_watermark >= self.required_offset:
            self.outcome.resolve(ErrorCode.NONE)
        else:
            self.outcome.resolve(partition.check_leader() or ErrorCode.NOT_LEADER_OR_FOLLOWER)
