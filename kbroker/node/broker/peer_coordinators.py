"""Builds the connections of a broker's coordinators to other brokers of the cluster: transaction
markers, verification of transactions, states of share partitions and their end offsets, over one
channel to the listeners `inter.broker.listener.name`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.remote.peer_brokers import PeerBrokers
from kbroker.broker.remote.remote_end_offsets import RemoteEndOffsets
from kbroker.broker.remote.remote_markers import RemoteMarkers
from kbroker.broker.remote.remote_share_states import RoutedShareStates
from kbroker.broker.remote.remote_verification import RemoteCoordinators
from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.metadata.loader import MetadataLoader
from kbroker.ports import Memory, Timers
from kbroker.settings.broker import BrokerConfig


class PeerCoordinators:
    """The connections of one broker. loader: has the newest metadata. metadata: as clients see it.
    memory: for requests that wait for other brokers.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        loader: MetadataLoader,
        metadata: MetadataCache,
        timers: Timers,
        random: Random,
        memory: Memory,
    ) -> None:
        self._node_id = config.node_id
        self._memory = memory
        self._metadata = metadata
        self._channel = Channel(
            AsyncioStreams(asyncio.get_running_loop()),
            timers,
            random,
            client_id=f"broker-{config.node_id}-coordinators",
        )
        self._peers = PeerBrokers(
            self._channel,
            lambda: loader.image,
            listener_name=config.inter_broker_listener_name,
            timeout_ms=config.get_int("request.timeout.ms"),
        )
        loader.on_image(self._peers.on_image)
        self.markers = RemoteMarkers(config.node_id, self._peers, lambda: loader.image, memory)
        self.end_offsets = RemoteEndOffsets(self._peers, memory)

    def verification(self, partition_for: Callable[[str], int]) -> RemoteCoordinators:
        """For the check of transactional batches. partition_for: the coordinator partition of a
        transactional id.
        """
        return RemoteCoordinators(
            self._node_id,
            self._peers,
            lambda: self._metadata.image,
            partition_for,
            self._memory,
        )

    def share_states(self, coordinator: ShareCoordinator) -> RoutedShareStates:
        """The states of this broker's share coordinator and of all others."""
        return RoutedShareStates(
            self._node_id, coordinator, self._peers, lambda: self._metadata.image, self._memory
        )

    def close(self) -> None:
        """Send nothing more; requests in flight fail."""
        self._channel.close()
