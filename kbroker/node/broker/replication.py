"""Builds the replication of a broker in a cluster: the fetchers of its followers and the sender of
AlterPartition, over the channels to other brokers and to the active controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from kbroker.broker.controller_channel import BrokerChannel
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.remote.peer_brokers import address_of
from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.client.cluster_view import BrokerAddress
from kbroker.ports import ClosableOffload, Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.followers.fetchers import ReplicaFetcher, ReplicaFetchers
from kbroker.replication.followers.follower import FollowedPartitions
from kbroker.replication.followers.follower_log import FollowerLogs
from kbroker.replication.followers.follower_session import ReplicaFetchLimits
from kbroker.replication.leaders.isr_changes import IsrChanges, IsrChangeSender
from kbroker.replication.manager import ReplicaManager
from kbroker.settings.broker import BrokerConfig

PURPOSE: Final = "replica fetcher"

FOLLOWER_THREADS: Final = 2
"""Workers that create segments of followers' logs and truncate logs; a slow disk may block one of
them.
"""


class RemoteLeaderEndPoint:
    """`fetchers.LeaderEndPoint`: a broker of the cluster, at its registered inter-broker listener.
    purpose: that of the connection, see `Channel.send`.
    """

    __slots__ = ("_address", "_channel", "_purpose", "_timeout_ms")

    def __init__(
        self,
        channel: Channel,
        address: Callable[[], BrokerAddress | None],
        purpose: str,
        timeout_ms: int,
    ) -> None:
        self._channel = channel
        self._address = address
        self._purpose = purpose
        self._timeout_ms = timeout_ms

    def fetch(self, request: FetchRequest) -> Deferred[FetchResponse]:
        """See `fetchers.LeaderEndPoint`."""
        address = self._address()
        if address is None:
            return Deferred.failed(_unknown_broker())
        return self._channel.send(
            address, self._purpose, request, FetchResponse, timeout_ms=self._timeout_ms
        )

    def list_offsets(self, request: ListOffsetsRequest) -> Deferred[ListOffsetsResponse]:
        """See `fetchers.LeaderEndPoint`."""
        address = self._address()
        if address is None:
            return Deferred.failed(_unknown_broker())
        return self._channel.send(
            address, self._purpose, request, ListOffsetsResponse, timeout_ms=self._timeout_ms
        )


def _unknown_broker() -> KafkaError:
    return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the metadata have no address of the leader")


class BrokerReplication:
    """The replication of one broker; created before it hosts any replica. changes: receives the
    proposals of `IsrPorts`. offload: the workers of followers' logs.
    """

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        changes: IsrChanges,
        *,
        metadata: MetadataCache,
        controller: BrokerChannel,
        timers: Timers,
        random: Random,
        offload: ClosableOffload,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._metadata = metadata
        self._timers = timers
        self._broker_epoch = broker_epoch
        self._channel = Channel(
            AsyncioStreams(asyncio.get_running_loop()),
            timers,
            random,
            client_id=f"broker-{config.node_id}-fetcher",
        )
        self._sender = IsrChangeSender(
            changes, controller.alter_partition, timers, broker_epoch=broker_epoch
        )
        self._logs = FollowerLogs(
            replicas.logs,
            offload=offload,
            when_flushed=replicas.when_flushed,
            on_log_start=replicas.hosting.log_start_moved,
            now_ms=timers.now_ms,
        )
        self._fetchers = ReplicaFetchers(
            self._make_fetcher, self._logs, fetcher_count=config.get_int("num.replica.fetchers")
        )
        replicas.hosting.on_role = self._fetchers.update

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply the settings that may change while the broker runs."""
        count = config.get_int("num.replica.fetchers")
        self._fetchers.resize(count, list(self._replicas.partitions()))

    def close(self) -> None:
        """Stop fetching and proposing ISRs. Blocks until the workers are done."""
        self._replicas.hosting.on_role = lambda partition: None
        self._fetchers.close()
        self._sender.close()
        self._channel.close()
        self._logs.close()

    def _make_fetcher(self, leader_id: int, number: int) -> ReplicaFetcher:
        config = self._config
        limits = ReplicaFetchLimits(
            max_wait_ms=config.get_int("replica.fetch.wait.max.ms"),
            min_bytes=config.get_int("replica.fetch.min.bytes"),
            max_bytes=config.get_int("replica.fetch.response.max.bytes"),
            partition_max_bytes=config.get_int("replica.fetch.max.bytes"),
        )
        follower = FollowedPartitions(
            config.node_id,
            limits,
            backoff_ms=config.get_int("replica.fetch.backoff.ms"),
            broker_epoch=self._broker_epoch,
            throttle=self._replicas.throttles.follower,
        )
        leader = RemoteLeaderEndPoint(
            self._channel,
            partial(self._address, leader_id),
            f"{PURPOSE} {number}",
            config.get_int("replica.socket.timeout.ms"),
        )
        return ReplicaFetcher(
            follower,
            leader,
            self._logs,
            self._timers,
            slices=self._replicas.fair_slices,
            on_storage_error=self._replicas.hosting.read_failed,
        )

    def _address(self, broker_id: int) -> BrokerAddress | None:
        """The inter-broker listener of a broker."""
        name = self._config.inter_broker_listener_name
        return address_of(self._metadata.image, broker_id, name)
