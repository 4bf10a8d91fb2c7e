"""Builds the group and transaction coordinators of a broker and connects them to the replicas of
their topics. Share groups are built in `share_services`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.producer_ids import ProducerIdManager
from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator
from kbroker.coordinator.runtime.coordinator_log import AppendOutcome
from kbroker.coordinator.transaction.markers import MarkerRouter
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC, TransactionCoordinator
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers, to_deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.manager import ReplicaManager
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs
from kbroker.settings.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.transaction_coordinator import TransactionCoordinatorConfig

TRANSACTION_APPEND_TIMEOUT_MS: Final = 30_000
"""How long a record of `__transaction_state` waits for its replicas."""


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
) -> GroupCoordinator:
    """The coordinator of the groups whose partition of `__consumer_offsets` this broker leads."""
    groups = GroupCoordinator(
        settings,
        log=CoordinatorLog(replicas, settings.offsets_commit_timeout_ms),
        timers=timers,
        random=random,
        topics=lambda: metadata.image,
        overrides=group_configs(config, metadata),
    )
    replicas.on_leadership(_of_topic(GROUP_TOPIC, groups.on_leadership))
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
        log=CoordinatorLog(replicas, TRANSACTION_APPEND_TIMEOUT_MS),
        markers=markers,
        timers=timers,
        cluster=lambda: metadata.image,
        next_producer_id=producer_ids.next_id,
    )
    replicas.on_leadership(_of_topic(TRANSACTION_TOPIC, transactions.on_leadership))
    return transactions


def _of_topic(
    topic: str, on_leadership: Callable[[int, int | None], None]
) -> Callable[[TopicPartition, int | None], None]:
    def changed(topic_partition: TopicPartition, leader_epoch: int | None) -> None:
        if topic_partition.topic == topic:
            on_leadership(topic_partition.partition, leader_epoch)

    return changed


class CoordinatorLog:
    """The coordinators' port to the replicas of their topic."""

    __slots__ = ("_replicas", "_timeout_ms")

    def __init__(self, replicas: ReplicaManager, timeout_ms: int) -> None:
        self._replicas = replicas
        self._timeout_ms = timeout_ms

    def append(
        self, topic_partition: TopicPartition, batch: bytearray, *, transaction_version: int = 0
    ) -> Deferred[AppendOutcome]:
        """Append with acks=all."""
        outcome: AppendOutcome | Deferred[Any] = self._replicas.append(
            topic_partition,
            batch,
            acks=-1,
            timeout_ms=self._timeout_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )
        return to_deferred(outcome)

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
        """Whole committed batches from the one that holds offset on."""
        return self._replicas.read_committed_log(topic_partition, offset, max_bytes)
