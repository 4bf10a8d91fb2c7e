"""The metadata image: an immutable value with all cluster metadata.

`MetadataDelta.replay` is the only way to a new image, in the controller, on a broker and at a
restart alike (docs/adr/0005). A new image shares all unchanged data with the old one. `delta` reads
decoded records; `records` encodes and decodes them, and `snapshot` converts an image back to
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY, Uuid
from kbroker.protocol.messages.stored.metadata_records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)

NO_LEADER: Final = -1

METADATA_VERSION: Final = "metadata.version"
ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
GROUP_RESOURCE: Final = 32
"""ConfigResource types in ConfigRecords. A broker resource named "" is the cluster-wide default."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

QuotaEntity = tuple[tuple[str, str | None], ...]
"""(entity type, entity name or None for the default), sorted by type."""


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a listener. security_protocol: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3
    SASL_SSL.
    """

    name: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerRegistration(msgspec.Struct, frozen=True):
    """The registration of a broker. epoch: offset of the batch of its registration record, unique
    per incarnation.
    """

    id: int
    epoch: int
    incarnation_id: Uuid
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    features: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Supported levels per feature, both ends inclusive."""
    log_dirs: tuple[Uuid, ...] = ()
    cordoned_log_dirs: tuple[Uuid, ...] | None = None

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and join ISRs (KIP-841)."""
        return not (self.fenced or self.in_controlled_shutdown)


def has_online_directory(broker: BrokerRegistration, directory_id: Uuid) -> bool:
    """Whether a replica of the broker in that directory can be used, as far as is known: below
    metadata.version 3.7-IV2 a registration has no directories.
    """
    if directory_id in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
        return True
    if directory_id == LOST_DIRECTORY:
        return False
    return not broker.log_dirs or directory_id in broker.log_dirs


class ControllerRegistration(msgspec.Struct, frozen=True):
    """The registration of a controller (KIP-919)."""

    id: int
    incarnation_id: Uuid
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    zk_migration_ready: bool = False


class PartitionImage(msgspec.Struct, frozen=True):
    """One partition. leader: NO_LEADER (-1) without a leader; leader_recovery_state: 0
    recovered, 1 recovering.

    elr, last_known_elr: eligible leader replicas (KIP-966), out of the ISR but known to hold every
    committed record.
    """

    replicas: tuple[int, ...]
    directories: tuple[Uuid, ...]
    isr: tuple[int, ...]
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = 0

    @property
    def has_leader(self) -> bool:
        """Whether a replica leads."""
        return self.leader != NO_LEADER

    @property
    def has_preferred_leader(self) -> bool:
        """Whether the preferred replica leads."""
        return self.leader == self.replicas[0]

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment is in progress (KIP-455)."""
        return bool(self.adding or self.removing)

    def directory(self, broker_id: int) -> Uuid:
        """The log directory of that broker's replica according to the metadata."""
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id:
                return directory
        return MIGRATING_DIRECTORY


class TopicImage(msgspec.Struct, frozen=True):
    """One topic; partitions by index, in order."""

    name: str
    topic_id: Uuid
    partitions: Mapping[int, PartitionImage]


def metric_name(topic: str) -> str:
    """The name in a topic's metrics, which two topics may not share."""
    return topic.replace(".", "_")


class MetadataImage(msgspec.Struct, frozen=True, eq=False):
    """All metadata up to `offset` (inclusive) of the metadata log; -1 for none. Every mapping is
    read-only.
    """

    cluster_id: str = ""
    offset: int = -1
    epoch: int = 0
    brokers: Mapping[int, BrokerRegistration] = msgspec.field(default_factory=dict)
    controllers: Mapping[int, ControllerRegistration] = msgspec.field(default_factory=dict)
    topics: LayeredMap[str, TopicImage] = msgspec.field(default_factory=LayeredMap)
    topics_by_id: LayeredMap[Uuid, TopicImage] = msgspec.field(default_factory=LayeredMap)
    names_by_metric: LayeredMap[str, str] = msgspec.field(default_factory=LayeredMap)
    """Topic names with '.' or '_' by the name in their metrics, which does not distinguish the two
    characters, to detect collisions. An index of `topics`, ignored when images are compared.
    """
    configs: LayeredMap[tuple[int, str], Mapping[str, str]] = msgspec.field(
        default_factory=LayeredMap
    )
    features: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Finalized levels; a feature at level 0 is left out. kraft.version is not among them: the
    quorum owns it.
    """
    next_producer_id: int = 0
    scram_credentials: LayeredMap[tuple[int, str], UserScramCredentialRecord] = msgspec.field(
        default_factory=LayeredMap
    )
    """By (mechanism, user)."""
    acls: LayeredMap[Uuid, AccessControlEntryRecord] = msgspec.field(default_factory=LayeredMap)
    delegation_tokens: Mapping[str, DelegationTokenRecord] = msgspec.field(default_factory=dict)
    client_quotas: LayeredMap[QuotaEntity, Mapping[str, float]] = msgspec.field(
        default_factory=LayeredMap
    )
    zk_migration_state: int = 0

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in self.__struct_fields__
            if name != "names_by_metric"
        )

    __hash__ = None  # type: ignore[assignment]  # mappings have no hash

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The topic's own overrides, without defaults."""
        return self.configs.get((TOPIC_RESOURCE, name), _NOTHING)

    def group_configs(self, name: str) -> Mapping[str, str]:
        """The group's own overrides."""
        return self.configs.get((GROUP_RESOURCE, name), _NOTHING)

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """The dynamic settings of the broker, or the cluster-wide ones (None)."""
        name = "" if broker_id is None else str(broker_id)
        return self.configs.get((BROKER_RESOURCE, name), _NOTHING)

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        """That partition, or None."""
        image = self.topics.get(topic)
        return None if image is None else image.partitions.get(partition)

    def partition_racks(self, name: str) -> tuple[tuple[str, ...], ...]:
        """The racks of the replicas of each of a topic's partitions; () if no broker has a rack."""
        topic = self.topics.get(name)
        racks = {key: one.rack for key, one in self.brokers.items() if one.rack is not None}
        if topic is None or not racks:
            return ()
        return tuple(
            tuple(racks[replica] for replica in partition.replicas if replica in racks)
            for partition in topic.partitions.values()
        )

    @property
    def metadata_version(self) -> int:
        """The finalized metadata.version level; Kafka's minimum (7) while none is set."""
        return self.features.get(METADATA_VERSION, 7)

    @property
    def elr_enabled(self) -> bool:
        """Whether eligible leader replicas are kept (KIP-966)."""
        return self.features.get(ELIGIBLE_LEADER_REPLICAS, 0) > 0

    def is_active(self, broker_id: int) -> bool:
        """Whether that broker is registered, and neither fenced nor shutting down."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def usable_brokers(self) -> list[BrokerRegistration]:
        """Registered and not fenced, by id."""
        return [self.brokers[i] for i in sorted(self.brokers) if not self.brokers[i].fenced]
