"""What a handler may call: the parts of a running node, gathered by `node`.

`NodeServices` has those that brokers and controllers share, for the APIs that listeners of either
type serve; `Services` and `ControllerServices` add their own.

A handler translates: request to core call, result to response. It reaches the cores only through
these values, so a test builds one with fakes behind the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec

from kbroker.broker.topic_creation import StreamsTopics
from kbroker.model import InvariantError
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.quotas.client_quotas import ClientQuotas

if TYPE_CHECKING:
    from kbroker.broker.controller_channel import BrokerChannel, ControllerChannel
    from kbroker.broker.metadata_cache import MetadataCache
    from kbroker.broker.node_requests import NodeRequests
    from kbroker.broker.producer_ids import ProducerIdManager
    from kbroker.broker.telemetry.telemetry import Telemetry
    from kbroker.broker.transaction_gate import PartitionGate
    from kbroker.coordinator.group.service import GroupCoordinator
    from kbroker.coordinator.group.share_service import ShareGroupCoordinator
    from kbroker.coordinator.share_state.service import ShareCoordinator
    from kbroker.coordinator.transaction.markers import MarkerRouter
    from kbroker.coordinator.transaction.service import TransactionCoordinator
    from kbroker.metadata.image import MetadataImage
    from kbroker.ports import Offload, SetLogLevel, Timers
    from kbroker.quorum.driver import QuorumDriver
    from kbroker.replication.manager import ReplicaManager
    from kbroker.replication.time_slices import FairSlices
    from kbroker.settings.broker import BrokerConfig
    from kbroker.share.partitions import SharePartitions
    from kbroker.share.reader import ShareReader

T = TypeVar("T")


class Late(Generic[T]):
    """A part of a node that is made when something needs it for the first time, by a function that
    imports its modules then. made: None until then. Loop thread only.
    """

    __slots__ = ("_make", "made")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.made: T | None = None

    def get(self) -> T:
        """The part."""
        if self.made is None:
            self.made = self._make()
        return self.made


class NodeServices(msgspec.Struct, kw_only=True):
    """The parts that handlers of either type of listener may call. config: the settings in force;
    hold them in a local for the length of one call, never longer. local_controller: that of this
    node, None on a broker that forwards what the active controller answers. channel: to the active
    controller, wherever that runs; a controller's goes to itself. metadata: as clients of the
    listener see it. set_log_level: None in a process that is not the node's own. Everything belongs
    to the loop thread.
    """

    is_broker: ClassVar[bool] = False
    """Whether these are a broker's, which checks settings of its own itself."""

    config: BrokerConfig
    node_id: int
    cluster_id: str
    timers: Timers
    local_controller: ControllerChannel | None
    channel: BrokerChannel
    metadata: MetadataCache
    slices: FairSlices
    memory: MemoryPool = msgspec.field(default_factory=MemoryPool)
    quotas: ClientQuotas = msgspec.field(default_factory=ClientQuotas)
    set_log_level: SetLogLevel | None = None

    def reconfigure(self, before: BrokerConfig, now: BrokerConfig) -> None:
        """Use other settings from now on."""
        del before
        self.config = now

    @property
    def image(self) -> MetadataImage:
        """The metadata as of now; hold it in a local for the length of one call, never longer."""
        return self.metadata.image

    @property
    def controller(self) -> ControllerChannel:
        """Answers requests of clients in this process. A broker without it has no handler that
        asks: `dispatch` forwards their requests.
        """
        if self.local_controller is None:
            raise InvariantError("a request that had to be forwarded is handled here")
        return self.local_controller


class Coordinators(msgspec.Struct, frozen=True):
    """Groups and transactions. markers: to the partitions of transactions that end."""

    groups: GroupCoordinator
    markers: MarkerRouter
    transactions: TransactionCoordinator

    def close(self) -> None:
        """Close the coordinators, when the broker stops: their requests are answered."""
        self.groups.close()
        self.transactions.close()


class ShareServices(msgspec.Struct, frozen=True):
    """What share groups (KIP-932) need of a broker."""

    coordinator: ShareCoordinator
    partitions: SharePartitions
    reader: ShareReader
    groups: ShareGroupCoordinator

    def close(self) -> None:
        """Close all of them, when the broker stops."""
        self.partitions.close()
        self.coordinator.close()


class Services(NodeServices, kw_only=True):
    """The parts of one running broker. coordinators, share: made with the first request for them,
    or the first partition of their topics that is led here. telemetry: None without a receiver of
    client metrics.
    """

    is_broker: ClassVar[bool] = True

    replicas: ReplicaManager
    producer_ids: ProducerIdManager
    coordinators: Late[Coordinators]
    partition_gate: PartitionGate
    share: Late[ShareServices]
    offload: Offload
    random: Random = msgspec.field(default_factory=Random)
    streams_topics: StreamsTopics = msgspec.field(default_factory=StreamsTopics)
    telemetry: Telemetry | None = None

    @property
    def groups(self) -> GroupCoordinator:
        """Groups and their offsets."""
        return self.coordinators.get().groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """Transactional ids."""
        return self.coordinators.get().transactions

    @property
    def markers(self) -> MarkerRouter:
        """The way of markers into partitions."""
        return self.coordinators.get().markers

    @property
    def share_groups(self) -> ShareGroupCoordinator:
        """Requests for share groups and their offsets."""
        return self.share.get().groups

    @property
    def share_coordinator(self) -> ShareCoordinator:
        """The states of share partitions."""
        return self.share.get().coordinator

    @property
    def share_reader(self) -> ShareReader:
        """Records for the members of share groups."""
        return self.share.get().reader

    def disconnected(self, connection_id: str) -> None:
        """A connection of a client has ended."""
        if self.share.made is not None:
            self.share.made.reader.disconnected(connection_id)
        if self.telemetry is not None:
            self.telemetry.disconnected(connection_id)


class ControllerServices(NodeServices, kw_only=True):
    """The parts of one running controller, active or not. node_requests: refuses with
    NOT_CONTROLLER while another node is the active controller. quorum: answers the requests of the
    quorum's APIs. leader_id: of the metadata quorum, -1 if none is known.
    """

    node_requests: NodeRequests
    quorum: QuorumDriver
    leader_id: Callable[[], int]
