"""What a handler may call: the parts of a running broker, gathered by `node`.

A handler translates: request to core call, result to response. It reaches the cores only through
this value, so a test builds one with fakes behind the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from kbroker.broker.topic_creation import StreamsTopics
from kbroker.server.network.memory_pool import MemoryPool

if TYPE_CHECKING:
    from kbroker.broker.controller_channel import ControllerChannel
    from kbroker.broker.metadata_cache import MetadataCache
    from kbroker.broker.producer_ids import ProducerIdManager
    from kbroker.broker.transaction_gate import PartitionGate
    from kbroker.coordinator.group.service import GroupCoordinator
    from kbroker.coordinator.group.share_service import ShareGroupCoordinator
    from kbroker.coordinator.share_state.service import ShareCoordinator
    from kbroker.coordinator.transaction.markers import MarkerRouter
    from kbroker.coordinator.transaction.service import TransactionCoordinator
    from kbroker.metadata.image import MetadataImage
    from kbroker.ports import Offload, Timers
    from kbroker.replication.manager import ReplicaManager
    from kbroker.replication.time_slices import FairSlices
    from kbroker.settings.broker import BrokerConfig
    from kbroker.share.reader import ShareReader


@dataclass(slots=True)
class Services:
    """The parts of one running broker. Everything in it belongs to the loop thread."""

    config: BrokerConfig
    node_id: int
    cluster_id: str
    timers: Timers
    controller: ControllerChannel
    metadata: MetadataCache
    replicas: ReplicaManager
    groups: GroupCoordinator
    producer_ids: ProducerIdManager
    transactions: TransactionCoordinator
    markers: MarkerRouter
    partition_gate: PartitionGate
    share_groups: ShareGroupCoordinator
    share_coordinator: ShareCoordinator
    share_reader: ShareReader
    offload: Offload
    slices: FairSlices
    memory: MemoryPool = field(default_factory=MemoryPool)
    random: Random = field(default_factory=Random)
    streams_topics: StreamsTopics = field(default_factory=StreamsTopics)

    @property
    def image(self) -> MetadataImage:
        """The metadata as of now; hold it in a local for the length of one call, never longer."""
        return self.metadata.image
