"""Builds the group and transaction coordinators of a broker and connects them to the replicas of
their topics. `share_services` builds the services of share groups on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.producer_ids import ProducerIdManager
from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator, GroupDeletion
from kbroker.coordinator.runtime.coordinator_log import ANY_EPOCH, AppendOutcome
from kbroker.coordinator.transaction.markers import MARKER_TIMEOUT_MS, MarkerRouter
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC, TransactionCoordinator
from kbroker.log.append_request import AppendRequest
from kbroker.log.results import Refused
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.node.broker.topic_leadership import of_topic
from kbroker.ports import Deferred, Timers, to_deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.appends.commit_wait import when_committed
from kbroker.replication.manager import ReplicaManager
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.transaction_coordinator import TransactionCoordinatorConfig

if TYPE_CHECKING:
    from kbroker.coordinator.group.kind import GroupType
    from kbroker.node.broker.peer_coordinators import PeerCoordinators


def group_configs(config: BrokerConfig, metadata: MetadataCache) -> GroupConfigs:
    """The settings of single groups over those of the broker."""
    return GroupConfigs(config, lambda name: metadata.image.group_configs(name))


def build_group_coordinator(
    config: BrokerConfig,
    settings: GroupCoordinatorConfig,
    *,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    timers: Timers,
    random: Random,
    deletions: Mapping[GroupType, GroupDeletion] | None = None,
) -> GroupCoordinator:
    """The coordinator of the groups whose partition of `__consumer_offsets` this broker leads.
    deletions: see `GroupCoordinator`.
    """
    groups = GroupCoordinator(
        settings,
        log=CoordinatorLog(replicas, timers, None),
        timers=timers,
        random=random,
        topics=lambda: metadata.image,
        overrides=group_configs(config, metadata),
        deletions=deletions,
    )
    replicas.on_leadership(of_topic(GROUP_TOPIC, groups.on_leadership))
    return groups


def build_transaction_coordinator(
    config: BrokerConfig,
    *,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    timers: Timers,
    markers: MarkerRouter,
    producer_ids: ProducerIdManager,
) -> TransactionCoordinator:
    """The coordinator of the transactional ids whose partition of `__transaction_state` this broker
    leads.
    """
    transactions = TransactionCoordinator(
        TransactionCoordinatorConfig.from_broker(config),
        log=CoordinatorLog(replicas, timers, None),
        markers=markers,
        timers=timers,
        cluster=lambda: metadata.image,
        next_producer_id=producer_ids.next_id,
    )
    replicas.on_leadership(of_topic(TRANSACTION_TOPIC, transactions.on_leadership))
    return transactions


def build_marker_router(
    replicas: ReplicaManager,
    timers: Timers,
    groups: GroupCoordinator,
    peers: PeerCoordinators | None,
) -> MarkerRouter:
    """Routes transaction markers to partitions of this broker, and through peers to those of other
    brokers.
    """
    return MarkerRouter(
        CoordinatorLog(replicas, timers, MARKER_TIMEOUT_MS),
        {GROUP_TOPIC: groups.runtime},
        timers,
        knows=replicas.hosting.knows,
        others=None if peers is None else peers.markers,
    )


class CoordinatorLog:
    """The coordinators' port to the replicas of their topic, and to the partitions into which
    markers are written. timeout_ms: how long an append may wait for its replicas; None: as long as
    this broker leads the partition.
    """

    __slots__ = ("_now_ms", "_replicas", "_timeout_ms")

    def __init__(self, replicas: ReplicaManager, timers: Timers, timeout_ms: int | None) -> None:
        self._replicas = replicas
        self._now_ms = timers.now_ms
        self._timeout_ms = timeout_ms

    def append(
        self,
        topic_partition: TopicPartition,
        batch: bytearray,
        *,
        leader_epoch: int = ANY_EPOCH,
        transaction_version: int = 0,
    ) -> Deferred[AppendOutcome]:
        """Append with acks=all."""
        replicas = self._replicas
        found = replicas.find(topic_partition.topic, topic_partition.partition)
        if isinstance(found, ErrorCode):
            return Deferred.of(Refused(found))
        if leader_epoch != found.leader_epoch and leader_epoch != ANY_EPOCH:
            return Deferred.of(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        request = AppendRequest.of_origin(
            AppendOrigin.COORDINATOR, -1, self._timeout_ms, self._now_ms(), transaction_version
        )
        outcome: AppendOutcome | Deferred[Any] = replicas.append_to(found, batch, request)
        return to_deferred(outcome)

    def when_committed(self, topic_partition: TopicPartition) -> Deferred[ErrorCode]:
        """NONE once all records that are in the log now are below the high watermark."""
        found = self._replicas.partition(topic_partition)
        if found is None:
            return Deferred.of(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return when_committed(found, self._replicas.purgatory)

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """The log end offset."""
        found = self._replicas.partition(topic_partition)
        if found is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found.log.log_end_offset

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        """Advance the log start offset."""
        self._replicas.delete_records(topic_partition, offset)

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that contains offset, up to the log end."""
        return self._replicas.read_led_log(topic_partition, offset, max_bytes)
