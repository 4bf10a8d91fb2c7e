"""Builds and connects the services of share groups (KIP-932) on a broker: the coordinator of
states, the share partitions that this broker leads, their readers, and the requests of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.broker.controller_channel import BrokerChannel
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.remote.end_offsets import RoutedEndOffsets
from kbroker.coordinator.group.service import GroupCoordinator
from kbroker.coordinator.group.share.offset_descriptions import EndOffset
from kbroker.coordinator.group.share_service import ShareGroupCoordinator
from kbroker.coordinator.share_state.persister import (
    CLUSTER_TRIES,
    TRIES,
    RetryingGroupStatePersister,
    RetryingSharePersister,
    ShareStates,
)
from kbroker.coordinator.share_state.service import ShareCoordinator, StateLog
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.model import TopicPartition
from kbroker.node.broker.topic_leadership import of_topic
from kbroker.ports import Deferred, Memory, Offload, Timers
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.reads.offsets import LATEST
from kbroker.server.services import ShareServices
from kbroker.settings.group_configs import GroupConfigs
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.partitions import SharePartitions
from kbroker.share.reader import ShareReader

if TYPE_CHECKING:
    from kbroker.node.broker.peer_coordinators import PeerCoordinators


def build_share_services(
    config: ShareGroupConfig,
    *,
    controller: BrokerChannel,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    groups: GroupCoordinator,
    log: StateLog,
    timers: Timers,
    offload: Offload,
    group_configs: GroupConfigs,
    memory: Memory | None = None,
    peers: PeerCoordinators | None = None,
) -> ShareServices:
    """Build the share services and connect them. peers: the coordinators and leaders on other
    brokers; None if there are none.
    """
    coordinator = ShareCoordinator(config, log=log, timers=timers, topics=lambda: metadata.image)
    replicas.on_leadership(of_topic(SHARE_TOPIC, coordinator.on_leadership))

    def ensure_topic() -> Deferred[ErrorCode]:
        return controller.ensure_internal_topic(SHARE_TOPIC)

    def config_of(group_id: str) -> ShareGroupConfig:
        return config.of_group(group_configs, group_id)

    def end_here(partition: TopicPartition) -> EndOffset:
        found = replicas.offset_of(partition, LATEST).value
        return EndOffset(found.error, found.offset)

    states: ShareStates = coordinator if peers is None else peers.share_states(coordinator)
    tries = TRIES if peers is None else CLUSTER_TRIES
    persister = RetryingSharePersister(states, timers, ensure_topic, tries=tries)
    partitions = SharePartitions(replicas, persister, timers, config_of)
    reader = ShareReader(
        replicas,
        partitions,
        timers,
        config_of,
        offload=offload,
        max_sessions=config.group_share_max_share_sessions,
        memory=memory,
    )
    share_groups = ShareGroupCoordinator(
        groups,
        RetryingGroupStatePersister(
            states,
            timers,
            ensure_topic,
            on_reset=partitions.forget,
            slices=replicas.fair_slices,
            tries=tries,
        ),
        timers=timers,
        topics=lambda: metadata.image,
        end_offsets=RoutedEndOffsets(
            replicas.hosting.node_id,
            lambda: metadata.image,
            end_here,
            None if peers is None else peers.end_offsets,
        ),
    )
    return ShareServices(coordinator, partitions, reader, share_groups)
