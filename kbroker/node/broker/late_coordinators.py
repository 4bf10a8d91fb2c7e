"""Stands in for a broker's coordinators before they are created.

The coordinators of groups, transactions and share groups, with their messages and records, are a
hundred modules. A broker creates them (`coordinators`, `share_services`) at the first request for
them, or when it first leads a partition of their topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from kbroker.broker.transaction_gate import AddRetries, PartitionGate
from kbroker.metadata.internal_topics import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.manager import ReplicaManager
from kbroker.server.services import Coordinators, Late, ShareServices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig

if TYPE_CHECKING:
    from kbroker.broker.metadata_cache import MetadataCache
    from kbroker.broker.producer_ids import ProducerIdManager
    from kbroker.coordinator.topics import DeletedTopic
    from kbroker.coordinator.transaction.producer import Producer
    from kbroker.node.broker.peer_coordinators import PeerCoordinators


def make_with_leadership(
    coordinators: Late[Coordinators], share: Late[ShareServices], replicas: ReplicaManager
) -> None:
    """Create the coordinators of a topic as soon as this broker leads a partition of it. They also
    receive that leadership change, as `ReplicaManager.on_leadership` guarantees.
    """
    late: dict[str, Late[Coordinators] | Late[ShareServices]] = {
        CONSUMER_OFFSETS: coordinators,
        TRANSACTION_STATE: coordinators,
        SHARE_GROUP_STATE: share,
    }

    def changed(topic_partition: TopicPartition, leader_epoch: int | None) -> None:
        if leader_epoch is not None and topic_partition.topic in late:
            late[topic_partition.topic].get()

    replicas.on_leadership(changed)


def late_coordinators(
    config: BrokerConfig,
    settings: GroupCoordinatorConfig,
    *,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    timers: Timers,
    random: Random,
    producer_ids: ProducerIdManager,
    peers: PeerCoordinators | None,
    delete_share_group: Callable[[str], Deferred[ErrorCode]],
) -> Late[Coordinators]:
    """The late coordinators of a broker. delete_share_group: also deletes its states; a share group
    can be deleted before its services are created.
    """

    def make() -> Coordinators:
        from kbroker.coordinator.group.kind import GroupType
        from kbroker.node.broker import coordinators

        groups = coordinators.build_group_coordinator(
            config,
            settings,
            metadata=metadata,
            replicas=replicas,
            timers=timers,
            random=random,
            deletions={GroupType.SHARE: delete_share_group},
        )
        markers = coordinators.build_marker_router(replicas, timers, groups, peers)
        transactions = coordinators.build_transaction_coordinator(
            config,
            metadata=metadata,
            replicas=replicas,
            timers=timers,
            markers=markers,
            producer_ids=producer_ids,
        )
        return Coordinators(groups, markers, transactions)

    late = Late(make)
    if config.is_explicit("group.consumer.assignors"):
        late.get()  # an invalid name is rejected at the start
    return late


class LateGroupListener:
    """Notifies the group coordinator of deleted topics; before it is created it has no offsets."""

    __slots__ = ("_coordinators",)

    def __init__(self, coordinators: Late[Coordinators]) -> None:
        self._coordinators = coordinators

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> None:
        """See `GroupListener`."""
        if self._coordinators.made is not None:
            self._coordinators.made.groups.on_topics_deleted(topics)


class LateShareListener:
    """Notifies the share coordinator of deleted topics; before it is created it has no states."""

    __slots__ = ("_share",)

    def __init__(self, share: Late[ShareServices]) -> None:
        self._share = share

    def on_topics_deleted(self) -> None:
        """See `ShareListener`."""
        if self._share.made is not None:
            self._share.made.coordinator.on_topics_deleted()


class LateTransactions:
    """The transaction coordinator, for components that rarely or never use it."""

    __slots__ = ("_coordinators",)

    def __init__(self, coordinators: Late[Coordinators]) -> None:
        self._coordinators = coordinators

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """See `TransactionCoordinator`."""
        transactions = self._coordinators.get().transactions
        return transactions.verify(transactional_id, producer, partitions)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
    ) -> Deferred[ErrorCode]:
        """See `TransactionCoordinator`."""
        transactions = self._coordinators.get().transactions
        return transactions.add_partitions(
            transactional_id, producer, partitions, client_version=client_version
        )

    def partition_for(self, transactional_id: str) -> int:
        """See `TransactionCoordinator`."""
        return self._coordinators.get().transactions.partition_for(transactional_id)


def build_partition_gate(
    current: Callable[[], BrokerConfig],
    *,
    replicas: ReplicaManager,
    timers: Timers,
    transactions: LateTransactions,
    peers: PeerCoordinators | None,
) -> PartitionGate:
    """Decides whether batches of transactional producers may be appended to partitions of this
    broker. current: returns the settings, one of which can be changed while the broker runs.
    """
    config = current()
    timeout_ms = config.get_int("add.partitions.to.txn.retry.backoff.max.ms")
    return PartitionGate(
        replicas,
        transactions,
        timers,
        verifies=lambda: current().get_bool("transaction.partition.verification.enable"),
        retries=AddRetries(
            backoff_ms=config.get_int("add.partitions.to.txn.retry.backoff.ms"),
            timeout_ms=min(timeout_ms, config.get_int("request.timeout.ms")),
        ),
        remote=None if peers is None else peers.verification(transactions.partition_for),
    )
