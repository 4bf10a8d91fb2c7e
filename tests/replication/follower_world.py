"""A `FollowedPartitions` core with logs in memory, for tests: its requests are answered by hand,
and what it wants done to a log is done at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kbroker.model import TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.followers.followed_partition import (
    AppendFetched,
    Effect,
    FollowedPartition,
    FollowState,
    ReportFailed,
    SendFetch,
    SendListOffsets,
    StartOverAt,
    TruncateTo,
)
from kbroker.replication.followers.follower import FollowedPartitions
from kbroker.replication.followers.follower_session import PartitionKey, ReplicaFetchLimits
from kbroker.replication.partition import Partition
from kbroker.replication.throttle import ReplicationThrottle
from tests.replication.batch_log import BatchLog

NODE_ID = 2
LEADER_ID = 1
BROKER_EPOCH = 77
BACKOFF_MS = 1_000
SESSION_ID = 5
TOPIC_ID: Uuid = bytes(15) + b"\x01"

FetchedPartition = FetchResponse.PartitionData


def failed_count(follower: FollowedPartitions) -> int:
    """How many partitions have failed."""
    return sum(each.state is FollowState.FAILED for each in follower._followed.values())


def key_of(index: int = 0) -> PartitionKey:
    """The key of a partition of the one topic."""
    return TOPIC_ID, index


def fetched(
    index: int = 0,
    *,
    records: bytes = b"",
    error: ErrorCode = ErrorCode.NONE,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    diverging: tuple[int, int] = (-1, -1),
) -> FetchedPartition:
    """What the leader answers for a partition. diverging: epoch, end offset."""
    return FetchedPartition(
        partition_index=index,
        error_code=int(error),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        diverging_epoch=FetchResponse.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        records=records,
    )


class FollowerWorld:
    """See the module. done: the changes of logs, as they were asked for. `now_ms` stands still
    unless a test moves it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ms = 0
        self.throttle = ReplicationThrottle()
        self.follower = FollowedPartitions(
            NODE_ID,
            ReplicaFetchLimits(),
            backoff_ms=BACKOFF_MS,
            broker_epoch=lambda: BROKER_EPOCH,
            throttle=self.throttle,
        )
        self.partitions: dict[int, Partition] = {}
        self.logs: dict[int, BatchLog] = {}
        self.done: list[Effect] = []
        self.failed: list[str] = []

    def host(
        self,
        index: int = 0,
        *,
        epoch: int = 5,
        batches: Sequence[tuple[int, int]] = (),
        start: int = 0,
        high_watermark: int = 0,
    ) -> BatchLog:
        """A replica that follows broker 1. batches: (epoch, records)."""
        log = self.logs[index] = BatchLog(self.folder, start)
        for batch_epoch, count in batches:
            log.append(batch_epoch, count)
        self.partitions[index] = Partition(
            TopicPartition("t", index),
            TOPIC_ID,
            NODE_ID,
            log,  # type: ignore[arg-type]  # as much of a log as is asked for
            high_watermark=high_watermark,
        )
        self.lead(index, epoch=epoch)
        return log

    def lead(self, index: int = 0, *, epoch: int) -> None:
        """Broker 1 leads in that epoch."""
        self.partitions[index].become_follower(
            leader=LEADER_ID, leader_epoch=epoch, partition_epoch=epoch, replicas=(1, 2), isr=(1,)
        )
        self.follower.follow(self.partitions[index])

    def followed(self, index: int = 0) -> FollowedPartition:
        """The state of a partition."""
        found = self.follower.get(key_of(index))
        assert found is not None
        return found

    # -- requests ---------------------------------------------------------------------------------

    def poll(self) -> list[Effect]:
        """What is to be sent, after all changes of logs."""
        while True:
            effects = self.follower.poll(self.now_ms)
            if not effects or isinstance(effects[0], SendFetch | SendListOffsets):
                return effects
            self.carry_out(effects)

    def fetch(self) -> FetchRequest:
        """The Fetch that is to be sent now."""
        (effect,) = self.poll()
        assert isinstance(effect, SendFetch)
        return effect.request

    def list_offsets(self) -> ListOffsetsRequest:
        """The ListOffsets that is to be sent now."""
        (effect,) = self.poll()
        assert isinstance(effect, SendListOffsets)
        return effect.request

    def answer(
        self, *partitions: FetchedPartition, session_id: int = SESSION_ID, error: int = 0
    ) -> list[Effect]:
        """Answer a Fetch; the changes that follow are done."""
        topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))
        response = FetchResponse(
            error_code=error, session_id=session_id, responses=[topic] if partitions else []
        )
        effects = list(self.follower.fetch_answered(response, self.now_ms))
        self.carry_out(effects)
        return effects

    def answer_offsets(self, offset: int, error: ErrorCode = ErrorCode.NONE) -> list[Effect]:
        """Answer a ListOffsets for partition 0."""
        data = ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=0, error_code=int(error), offset=offset
        )
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[data])
        response = ListOffsetsResponse(topics=[topic])
        effects = self.follower.offsets_answered(response, self.now_ms)
        self.carry_out(effects)
        return effects

    # -- changes of logs --------------------------------------------------------------------------

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Do to the logs what is asked for. Records are (epoch, count) as two bytes."""
        for effect in effects:
            self.done.append(effect)
            if isinstance(effect, ReportFailed):
                self.failed.append(effect.reason)
                continue
            assert isinstance(effect, AppendFetched | TruncateTo | StartOverAt)
            partition = effect.followed.partition
            log: BatchLog = partition.log  # type: ignore[assignment]  # as hosted here
            if isinstance(effect, TruncateTo):
                log.truncate_to(effect.offset)
                partition.truncated()
            elif isinstance(effect, StartOverAt):
                log.truncate_fully(effect.offset)
                partition.truncated()
            else:
                records = bytes(effect.records)  # type: ignore[arg-type]  # bytes of a test
                for at in range(0, len(records), 2):
                    log.append(records[at], records[at + 1])
                partition.follower_advanced(effect.high_watermark, len(records))
            self.follower.changed(effect.followed)
