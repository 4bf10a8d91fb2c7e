"""The share coordinator (KIP-932): passes requests about the states of share partitions to shards
of `__share_group_state`.

The hash of group id, topic id and partition determines the shard of a share partition. Each
partition of a request is decided separately by its shard (`shard`) and answered when its records
are committed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kbroker.coordinator.runtime.coordinator_log import CoordinatorLog
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.key_hash import partition_of, partition_of_extended
from kbroker.coordinator.runtime.key_partitions import KeyPartitions
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.coordinator.share_state.shard import ShareStateShard, ShareTopics, StateSettings
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.coordinator.topics import ClusterTopic
from kbroker.model import TopicIdPartition, TopicPartition, Uuid, uuid_to_string
from kbroker.ports import Deferred, TimerHandle, Timers, gather
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateSummary, StateWrite

logger = logging.getLogger(__name__)

T = TypeVar("T")


PRUNE_RECORDS: Final = 1000
"""A log with fewer records is not pruned."""

TURN_SNAPSHOTS: Final = 600
"""Approximate number of states, and batches of states, whose snapshots are written in one turn of
the loop during pruning.
"""

TURN_TOMBSTONES: Final = 600
"""Approximate number of tombstones written in one turn of the loop after topics were deleted."""
BATCH_TOMBSTONES: Final = 20
"""The cost of writing a batch, in units of tombstones."""


class StateLog(CoordinatorLog, Protocol):
    """The logs of `__share_group_state`, which are pruned: records before the latest snapshots are
    deleted.
    """

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """The log end offset. Raises KafkaError."""
        ...

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        """Set the log start offset to offset, which is committed. Raises KafkaError."""
        ...


class ShareCoordinatorSettings(StateSettings, Protocol):
    """The part of the broker's configuration that the share coordinator reads."""

    @property
    def share_coordinator_state_topic_num_partitions(self) -> int: ...
    @property
    def share_coordinator_state_topic_compression_codec(self) -> int: ...
    @property
    def share_coordinator_state_topic_prune_interval_ms(self) -> int: ...
    @property
    def share_coordinator_write_timeout_ms(self) -> int: ...


class StateTopics(ShareTopics, Protocol):
    """The topics of the cluster; metadata's MetadataImage is one."""

    @property
    def topics(self) -> Mapping[str, ClusterTopic]: ...


class _Tombstones(NamedTuple):
    """The tombstones to write to one shard after topics were deleted."""

    host: Host[ShareStateShard]
    batches: Iterator[Sequence[CoordinatorRecord]]


class _Pruning:
    """The pruning of one log. end_offset: the log end offset before the first snapshot.
    record_count: that of the log up to there.
    """

    __slots__ = ("batches", "end_offset", "host", "record_count", "written")

    def __init__(self, host: Host[ShareStateShard], end_offset: int) -> None:
        self.host = host
        self.end_offset = end_offset
        self.record_count = host.shard.record_count
        self.batches = host.shard.snapshots()
        self.written: list[Deferred[None]] = []


class ShareCoordinator:
    """States of share partitions. An error is part of each result; no Deferred fails."""

    def __init__(
        self,
        config: ShareCoordinatorSettings,
        *,
        log: StateLog,
        timers: Timers,
        topics: Callable[[], StateTopics],
    ) -> None:
        self._config = config
        self._log = log
        self._timers = timers
        self._prune_timer: TimerHandle | None = None
        self._prunings: deque[_Pruning] = deque()
        self._snapshot_timer: TimerHandle | None = None
        self._tombstones: deque[_Tombstones] = deque()
        self._tombstone_timer: TimerHandle | None = None
        self._partitions = KeyPartitions(
            SHARE_TOPIC, topics, config.share_coordinator_state_topic_num_partitions
        )
        self.runtime: CoordinatorRuntime[ShareStateShard] = CoordinatorRuntime(
            SHARE_TOPIC,
            log=log,
            timers=timers,
            make_shard=lambda: ShareStateShard(config, timers.now_ms, topics),
            compression=Compression(config.share_coordinator_state_topic_compression_codec),
            write_timeout_ms=config.share_coordinator_write_timeout_ms,
        )

    def partition_for(self, key: str) -> int:
        """The partition of `__share_group_state` whose leader coordinates this key."""
        return partition_of(key, self._partitions.count())

    def partition_of(self, key: SharePlace) -> int:
        """`partition_for` the key of a share partition: group id, topic id and partition. A request
        may name 250,000 partitions of a group whose id has 32,767 characters.
        """
        topic_id, partition = key.place
        rest = f":{uuid_to_string(topic_id)}:{partition}"
        return partition_of_extended(key.group_id, rest, self._partitions.count())

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads that partition of `__share_group_state` from epoch on, or (None) does
        not lead it any more.
        """
        self._partitions.count()  # before the topic grows
        self.runtime.on_leadership(partition, epoch)
        if self._prune_timer is None:
            self._arm()

    def on_topics_deleted(self) -> None:
        """Delete the states of topics that no longer exist, some in each turn of the loop. A shard
        that is loading does so after it is loaded.
        """
        for host in list(self.runtime.hosts()):
            self._schedule_tombstones(host)
        if self._tombstone_timer is None:
            self._write_tombstones()

    def _schedule_tombstones(self, host: Host[ShareStateShard]) -> None:
        if host.status is HostStatus.ACTIVE:
            self._tombstones.append(_Tombstones(host, host.shard.tombstones_of_deleted_topics()))
        elif host.status is HostStatus.LOADING:
            host.shard.has_deleted_topics = True

    def _write_tombstones(self) -> None:
        """Write about `TURN_TOMBSTONES`, and schedule the next turn if some are left."""
        self._tombstone_timer = None
        left = TURN_TOMBSTONES
        while self._tombstones:
            if left <= 0:
                self._tombstone_timer = self._timers.call_later(0, self._write_tombstones)
                return
            host, batches = self._tombstones[0]
            if host.status is not HostStatus.ACTIVE:
                self._tombstones.popleft()
                for successor in list(self.runtime.hosts()):
                    if successor.topic_partition == host.topic_partition:
                        self._schedule_tombstones(successor)
                continue
            batch = next(batches, None)
            if batch is None:
                self._tombstones.popleft()
                continue
            left -= len(batch) + BATCH_TOMBSTONES
            if batch:
                self.runtime.carry_out(host, [CoordinatorResult(batch, None)])

    def close(self) -> None:
        """Unload all shards, since the broker stops."""
        if self._prune_timer is not None:
            self._prune_timer.cancel()
        if self._tombstone_timer is not None:
            self._tombstone_timer.cancel()
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
        self._tombstones.clear()
        self._prunings.clear()
        self.runtime.close()

    # -- pruning -----------------------------------------------------------------------------

    def _arm(self) -> None:
        interval_ms = self._config.share_coordinator_state_topic_prune_interval_ms
        self._prune_timer = self._timers.call_later(interval_ms, self._on_prune)

    def _on_prune(self) -> None:
        self._arm()
        self.prune()

    def prune(self, min_records: int = PRUNE_RECORDS) -> None:
        """Prune logs that hold at least min_records and three times as many records as states:
        write a snapshot of every state, some in each turn of the loop, then delete the records
        before these snapshots. A log that is being pruned is skipped.
        """
        unfinished = {pruning.host for pruning in self._prunings}
        for host in list(self.runtime.hosts()):
            if host.status is not HostStatus.ACTIVE or host in unfinished:
                continue
            if host.shard.record_count >= max(min_records, 3 * len(host.shard.states)):
                try:
                    end_offset = self._log.end_offset(host.topic_partition)
                except KafkaError as error:
                    logger.warning("%s was not pruned: %s", host.topic_partition, error)
                    continue
                self._prunings.append(_Pruning(host, end_offset))
        if self._snapshot_timer is None:
            self._write_snapshots()

    def _write_snapshots(self) -> None:
        """Write about `TURN_SNAPSHOTS`, and schedule the next turn if some are left."""
        self._snapshot_timer = None
        left = TURN_SNAPSHOTS
        while self._prunings:
            if left <= 0:
                self._snapshot_timer = self._timers.call_later(0, self._write_snapshots)
                return
            pruning = self._prunings[0]
            if pruning.host.status is not HostStatus.ACTIVE:
                self._prunings.popleft()
                continue
            batch = next(pruning.batches, None)
            if batch is None:
                self._prunings.popleft()
                self._delete_before_snapshots(pruning)
                continue
            left -= batch.weight
            result = CoordinatorResult(batch.records, None)
            pruning.written.append(self.runtime.handle(pruning.host, result))

    def _delete_before_snapshots(self, pruning: _Pruning) -> None:
        """Delete the records before the first snapshot, once all snapshots are committed."""
        host, partition, offset = pruning.host, pruning.host.topic_partition, pruning.end_offset

        def delete_before(_: object) -> None:
            if host.status is not HostStatus.ACTIVE:
                return
            try:
                self._log.delete_before(partition, offset)
            except KafkaError as error:
                logger.warning("%s was not pruned: %s", partition, error)
                return
            host.shard.record_count -= pruning.record_count
            logger.info(
                "%s pruned: log start offset is %d, %d states",
                partition,
                offset,
                len(host.shard.states),
            )

        def not_written(error: KafkaError) -> None:
            logger.debug("%s was not pruned: %s", partition, error)

        gather(pruning.written).on_done(delete_before, not_written)

    # -- requests ----------------------------------------------------------------------------

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """ReadShareGroupState, one partition."""
        return self._decide(key, StateFound, lambda shard: shard.read(key, leader_epoch))

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """WriteShareGroupState, one partition."""
        return self._decide(key, _same, lambda shard: shard.write(key, write))

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> Deferred[ErrorCode]:
        """InitializeShareGroupState, one partition."""
        return self._decide(
            key, _same, lambda shard: shard.initialize(key, state_epoch, start_offset)
        )

    def delete(self, key: SharePlace) -> Deferred[ErrorCode]:
        """DeleteShareGroupState, one partition."""
        return self._decide(key, _same, lambda shard: shard.delete(key))

    def summarize(self, key: SharePlace) -> Deferred[StateSummary]:
        """ReadShareGroupStateSummary, one partition."""
        return self._decide(key, StateSummary, lambda shard: shard.summarize(key))

    def _decide(
        self,
        key: SharePlace,
        failed: Callable[[ErrorCode], T],
        decide: Callable[[ShareStateShard], CoordinatorResult[T]],
    ) -> Deferred[T]:
        if not key.group_id:
            return Deferred.of(failed(ErrorCode.INVALID_REQUEST))
        decided = self.runtime.decide(self.partition_of(key), lambda shard, now_ms: decide(shard))
        return decided.recover(lambda error: failed(error.code))


def _same(error: ErrorCode) -> ErrorCode:
    return error


def place_of(topic_id: Uuid, partition: int) -> TopicIdPartition:
    """A copy of the key that does not keep the request in memory."""
    return bytes(topic_id), partition
