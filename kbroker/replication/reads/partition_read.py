"""Reads one partition for Fetch: checks leader and epoch, and reads the records that the client may
see.

KIP-98 (read_committed: up to the last stable offset, with the aborted transactions), KIP-320
(epochs), KIP-392 (consumers read from followers), KIP-595 (diverging epoch). Which partitions are
read and when is in fetch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.ports import Timers
from kbroker.protocol.codecs.schema import Records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.leaders.replica_log import ReplicaLog
from kbroker.replication.partition import Partition
from kbroker.replication.reads.fetch_set import FetchPartition, FetchSet
from kbroker.replication.reads.replica_selector import ClosestReplica
from kbroker.replication.role import Role
from kbroker.replication.throttle import ReplicationThrottle

PartitionData = FetchResponse.PartitionData

# Defaults of the response, shared by all partitions and never changed in place.
NO_EPOCH: Final = FetchResponse.EpochEndOffset()
NO_LEADER: Final = FetchResponse.LeaderIdAndEpoch()
NO_SNAPSHOT: Final = FetchResponse.SnapshotId()

NOT_FOUND: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors that do not end a wait, as in Kafka: the metadata may be about to arrive."""

_NONE: Final = int(ErrorCode.NONE)
_NOT_LEADER: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
_LEADER: Final = Role.LEADER


def read_partition(
    partition: Partition,
    wanted: FetchPartition,
    max_bytes: int,
    min_one_batch: bool,
    counted_ms: int | None,
) -> PartitionData:
    """counted_ms: the time at which the fetch of a follower counts; None: it has counted already,
    and is read again after a wait. Raises KafkaError for this partition, OSError if its log cannot
    be read.
    """
    owner = wanted.owner
    offset = wanted.fetch_offset
    log = partition.log
    known_epoch = wanted.current_leader_epoch
    if partition.role is not _LEADER or known_epoch not in (-1, partition.leader_epoch):
        _check_follower_read(partition, wanted)
        if log.frozen:  # it is truncated now, which ends soon
            return _without_records(partition, wanted)
    start, end = log.log_start_offset, log.log_end_offset
    high_watermark = partition.high_watermark
    last_stable_offset = partition.last_stable_offset
    aborted: list[FetchResponse.AbortedTransaction] | None = None
    records: Records = b""
    replica_id = owner.replica_id
    if replica_id >= 0:
        upper = end
        if replica_id not in partition.in_sync.remotes:
            raise _unassigned(wanted)
    elif owner.read_committed:
        upper = last_stable_offset
        aborted = []
    else:
        upper = high_watermark
    diverging = NO_EPOCH
    fetched_epoch = wanted.last_fetched_epoch
    if fetched_epoch >= 0 and (fetched_epoch != log.leader_epochs.latest_epoch or offset > end):
        diverging = _diverging_epoch(partition, wanted)
    if diverging is NO_EPOCH:
        if not start <= offset <= end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset < upper:
            if max_bytes > 0 or min_one_batch:
                read = log.read(
                    offset,
                    max_bytes=min(max_bytes, wanted.max_bytes),
                    upper_offset=upper,
                    min_one_batch=min_one_batch,
                )
                records = read.records
                if aborted is not None and records:
                    aborted = _aborted_transactions(log, offset, read.end_offset)
        elif offset == end:
            # no records there, but the log caches the position for waiting fetches
            log.read(offset, max_bytes=0, upper_offset=end)
        if replica_id >= 0 and counted_ms is not None:
            _follower_fetched(partition, wanted, replica_id, counted_ms)
    return PartitionData(
        partition_index=wanted.index,
        error_code=_NONE,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=start,
        diverging_epoch=diverging,
        current_leader=NO_LEADER,
        snapshot_id=NO_SNAPSHOT,
        aborted_transactions=aborted,
        records=records,
    )


def read_throttled(
    throttle: ReplicationThrottle,
    partition: Partition,
    wanted: FetchPartition,
    max_bytes: int,
    min_one_batch: bool,
    counted_ms: int | None,
    *,
    now_ms: int,
) -> PartitionData:
    """As `read_partition`, for a follower; without records while the throttle holds it back."""
    is_in_sync = wanted.owner.replica_id in partition.isr
    if throttle.holds_back(partition.topic_partition, is_in_sync, now_ms):
        max_bytes, min_one_batch = 0, False
    return read_partition(partition, wanted, max_bytes, min_one_batch, counted_ms)


def _check_follower_read(partition: Partition, wanted: FetchPartition) -> None:
    """Raise KafkaError unless this broker leads the partition, or follows and the client may read
    from followers.
    """
    error = partition.check_leader(wanted.current_leader_epoch)
    if error and (
        error is not _NOT_LEADER
        or not wanted.owner.from_followers
        or partition.role is not Role.FOLLOWER
    ):
        raise KafkaError(error)


def _aborted_transactions(
    log: ReplicaLog, offset: int, end_offset: int
) -> list[FetchResponse.AbortedTransaction]:
    """Those that a reader of [offset, end_offset) must filter out."""
    return [
        FetchResponse.AbortedTransaction(
            producer_id=found.producer_id, first_offset=found.first_offset
        )
        for found in log.aborted_transactions(offset, end_offset)
    ]


def _without_records(
    partition: Partition, wanted: FetchPartition, preferred_read_replica: int = -1
) -> PartitionData:
    return PartitionData(
        partition_index=wanted.index,
        error_code=_NONE,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        diverging_epoch=NO_EPOCH,
        current_leader=NO_LEADER,
        snapshot_id=NO_SNAPSHOT,
        preferred_read_replica=preferred_read_replica,
        records=b"",
    )


def refused(wanted: FetchPartition, error: ErrorCode) -> PartitionData:
    """The response for a partition that is not read."""
    return PartitionData(
        partition_index=wanted.index,
        error_code=int(error),
        high_watermark=-1,
        diverging_epoch=NO_EPOCH,
        current_leader=NO_LEADER,
        snapshot_id=NO_SNAPSHOT,
        # Kafka's two ways of failing: not found before the log was asked, or refused by it.
        aborted_transactions=[] if error in NOT_FOUND else None,
        records=b"",
    )


def tell_diverged_again(told: Mapping[FetchPartition, PartitionData]) -> None:
    """Have the session repeat the high watermark and log start that came with a diverging epoch: a
    follower does not apply them (KAFKA-14704). Kafka repeats neither until one of them moves.
    """
    for wanted, data in told.items():
        if data.diverging_epoch is not NO_EPOCH:
            wanted.sent_high_watermark = wanted.sent_log_start_offset = -1


def read_elsewhere(
    partition: Partition, wanted: FetchPartition, closest: ClosestReplica, timers: Timers
) -> PartitionData | None:
    """The response that sends a consumer to its preferred read replica; None if it reads here.
    Raises KafkaError for its epoch.
    """
    preferred = closest.of(partition, wanted.fetch_offset, timers.monotonic_ms())
    if preferred is None:
        return None
    error = partition.check_leader(wanted.current_leader_epoch)
    if error:
        raise KafkaError(error)
    return _without_records(partition, wanted, preferred)


def _unassigned(wanted: FetchPartition) -> KafkaError:
    """Only an assigned replica may fetch as a follower, which retries after either error."""
    return KafkaError(
        ErrorCode.UNKNOWN_LEADER_EPOCH
        if wanted.current_leader_epoch >= 0
        else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _follower_fetched(
    partition: Partition, wanted: FetchPartition, replica_id: int, now_ms: int
) -> None:
    """Count the fetch of a follower, unless its broker has registered anew since (KIP-903)."""
    broker_epoch = wanted.owner.replica_epoch
    if partition.in_sync.is_stale(replica_id, broker_epoch):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partition.follower_fetched(
        replica_id,
        fetch_offset=wanted.fetch_offset,
        log_start_offset=wanted.log_start_offset,
        broker_epoch=broker_epoch,
        now_ms=now_ms,
    )


def is_settled(wanted: FetchPartition, partition: Partition) -> bool:
    """Whether there is nothing to tell a follower that is at the log's end, and nothing to learn
    from its next fetch, until the partition moves: everything is committed, the follower knows
    that, and is in the ISR.
    """
    return (
        wanted.fetch_offset == partition.high_watermark == wanted.sent_high_watermark
        and partition.in_sync.pending is None
        and wanted.owner.replica_id in partition.isr
    )


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> FetchResponse.EpochEndOffset:
    """Where the log of the reader diverges from this one; NO_EPOCH if it does not. KIP-595.

    A reader behind the log's start begins anew, whatever its epochs: OFFSET_OUT_OF_RANGE.
    """
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset_for(
        wanted.last_fetched_epoch, log.log_end_offset
    )
    if epoch < 0 or end_offset < 0 or wanted.fetch_offset < log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return NO_EPOCH


def readable_end(partition: Partition, fetch_set: FetchSet) -> int:
    if fetch_set.replica_id >= 0:
        return partition.log.log_end_offset
    if fetch_set.read_committed:
        return partition.last_stable_offset
    return partition.high_watermark
