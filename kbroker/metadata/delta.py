"""The replay of metadata records: collects changes to one image and builds the next one.

Cost: proportional to the changed entries, independent of the size of the cluster. A topic's
partitions are copied once per delta, not once per record. Metadata transactions (KIP-868) are
buffered here: records between BeginTransaction and EndTransaction are applied together or, after
AbortTransaction, not at all; an image therefore never has a part of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from kbroker.metadata.image import (
    TOPIC_RESOURCE,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    TopicImage,
    metric_name,
)
from kbroker.model import MIGRATING_DIRECTORY, InvariantError, Uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored import metadata_records as records

LEADER_UNCHANGED: Final = -2
"""PartitionChangeRecord.leader: keep the leader and its epoch."""


class _TopicDraft(msgspec.Struct):
    name: str
    topic_id: Uuid
    partitions: dict[int, PartitionImage]


class _Draft(msgspec.Struct):
    """The changes so far; None marks a removed entry."""

    brokers: dict[int, BrokerRegistration | None] = msgspec.field(default_factory=dict)
    controllers: dict[int, ControllerRegistration] = msgspec.field(default_factory=dict)
    topics: dict[Uuid, _TopicDraft | None] = msgspec.field(default_factory=dict)
    topic_ids: dict[str, Uuid | None] = msgspec.field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = msgspec.field(default_factory=dict)
    features: dict[str, int] = msgspec.field(default_factory=dict)
    next_producer_id: int | None = None
    scram: dict[tuple[int, str], records.UserScramCredentialRecord | None] = msgspec.field(
        default_factory=dict
    )
    acls: dict[Uuid, records.AccessControlEntryRecord | None] = msgspec.field(default_factory=dict)
    tokens: dict[str, records.DelegationTokenRecord | None] = msgspec.field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = msgspec.field(default_factory=dict)
    zk_migration_state: int | None = None


class MetadataDelta:
    """Changes over `image`. Replay records in log order, then `apply`."""

    __slots__ = ("_draft", "_transaction", "image")

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._draft = _Draft()
        self._transaction: list[Message] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction was begun and not yet ended: `apply` must wait."""
        return self._transaction is not None

    def replay(self, record: Message) -> None:
        """Apply one record. Raises InvariantError for a record that contradicts the current
        state.
        """
        kind = type(record)
        if kind is records.BeginTransactionRecord:
            if self._transaction is not None:
                raise InvariantError("metadata log: a transaction begins inside another")
            self._transaction = []
        elif kind is records.EndTransactionRecord or kind is records.AbortTransactionRecord:
            held, self._transaction = self._transaction, None
            if held is None:
                raise InvariantError("metadata log: a transaction ends that never began")
            if kind is records.EndTransactionRecord:
                for each in held:
                    self._replay_one(each)
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            self._replay_one(record)

    def apply(self, *, offset: int, epoch: int) -> MetadataImage:
        """The image after the replayed records, the last of which is at `offset`.

        Raises InvariantError inside a transaction.
        """
        if self._transaction is not None:
            raise InvariantError("an image was asked for inside a metadata transaction")
        image, draft = self.image, self._draft
        by_name: dict[str, TopicImage | None] = dict.fromkeys(
            name for name, topic_id in draft.topic_ids.items() if topic_id is None
        )
        by_id: dict[Uuid, TopicImage | None] = {}
        for topic_id, topic in draft.topics.items():
            if topic is None:
                by_id[topic_id] = None
            else:
                ordered = dict(sorted(topic.partitions.items()))
                by_id[topic_id] = by_name[topic.name] = TopicImage(topic.name, topic_id, ordered)
        features = {**image.features, **draft.features} if draft.features else image.features
        producer_id = draft.next_producer_id
        zk_state = draft.zk_migration_state
        return MetadataImage(
            cluster_id=image.cluster_id,
            offset=offset,
            epoch=epoch,
            brokers=_merged(image.brokers, draft.brokers),
            controllers=_merged(image.controllers, draft.controllers),
            topics=image.topics.changed(by_name),
            names_by_metric=image.names_by_metric.changed(_metric_names(image, by_name)),
            topics_by_id=image.topics_by_id.changed(by_id),
            configs=image.configs.changed(
                {key: values or None for key, values in draft.configs.items()}
            ),
            features={name: level for name, level in features.items() if level > 0},
            next_producer_id=image.next_producer_id if producer_id is None else producer_id,
            scram_credentials=image.scram_credentials.changed(draft.scram),
            acls=image.acls.changed(draft.acls),
            delegation_tokens=_merged(image.delegation_tokens, draft.tokens),
            client_quotas=image.client_quotas.changed(
                {entity: values or None for entity, values in draft.quotas.items()}
            ),
            zk_migration_state=image.zk_migration_state if zk_state is None else zk_state,
        )

    def split(self, *, offset: int, epoch: int) -> tuple[MetadataImage, MetadataDelta]:
        """(image, delta based on it): the image has no record of an open metadata transaction; the
        delta keeps these records until the transaction ends. Otherwise as `apply`.
        """
        held, self._transaction = self._transaction, None
        image = self.apply(offset=offset, epoch=epoch)
        rest = MetadataDelta(image)
        rest._transaction = held
        return image, rest

    def _replay_one(self, record: Message) -> None:
        replayer = _REPLAYERS.get(type(record))
        if replayer is None:
            raise InvariantError(f"metadata log: no replay for {type(record).__name__}")
        replayer(self, record)

    # Topics and partitions.

    def _topic(self, topic_id: Uuid) -> _TopicDraft:
        draft = self._draft.topics.get(topic_id)
        if draft is not None:
            return draft
        image = self.image.topics_by_id.get(topic_id)
        if image is None or topic_id in self._draft.topics:
            raise InvariantError(
                f"metadata log: a record for the unknown topic id {topic_id.hex()}"
            )
        draft = _TopicDraft(image.name, topic_id, dict(image.partitions))
        self._draft.topics[topic_id] = draft
        return draft

    def _replay_topic(self, record: records.TopicRecord) -> None:
        self._draft.topics[record.topic_id] = _TopicDraft(record.name, record.topic_id, {})
        self._draft.topic_ids[record.name] = record.topic_id

    def _replay_remove_topic(self, record: records.RemoveTopicRecord) -> None:
        name = self._topic(record.topic_id).name
        self._draft.topics[record.topic_id] = None
        self._draft.topic_ids[name] = None
        self._draft.configs[TOPIC_RESOURCE, name] = {}

    def _replay_partition(self, record: records.PartitionRecord) -> None:
        self._topic(record.topic_id).partitions[record.partition_id] = PartitionImage(
            replicas=tuple(record.replicas),
            directories=tuple(record.directories) or (MIGRATING_DIRECTORY,) * len(record.replicas),
            isr=tuple(record.isr),
            removing=tuple(record.removing_replicas),
            adding=tuple(record.adding_replicas),
            elr=tuple(record.eligible_leader_replicas or ()),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            last_known_elr=tuple(record.last_known_elr or ()),
            leader_recovery_state=record.leader_recovery_state,
        )

    def _replay_partition_change(self, record: records.PartitionChangeRecord) -> None:
        partitions = self._topic(record.topic_id).partitions
        old = partitions.get(record.partition_id)
        if old is None:
            raise InvariantError(
                f"metadata log: a change of partition {record.partition_id} of the topic"
                f" {record.topic_id.hex()}, which has none"
            )
        partitions[record.partition_id] = changed_partition(old, record)

    def _replay_clear_elr(self, record: records.ClearElrRecord) -> None:
        drafted = [topic for topic in self._draft.topics.values() if topic is not None]
        names = (
            [record.topic_name]
            if record.topic_name
            else [*self.image.topics, *(t.name for t in drafted)]
        )
        for name in names:
            topic_id = self._draft.topic_ids.get(name)
            if topic_id is None:
                image = None if name in self._draft.topic_ids else self.image.topics.get(name)
                if image is None or not any(
                    p.elr or p.last_known_elr for p in image.partitions.values()
                ):
                    continue
                topic_id = image.topic_id
            partitions = self._topic(topic_id).partitions
            for index, partition in partitions.items():
                if partition.elr or partition.last_known_elr:
                    partitions[index] = replace(partition, elr=(), last_known_elr=())

    # Brokers and controllers.

    def _replay_register_broker(self, record: records.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._draft.brokers[record.broker_id] = BrokerRegistration(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            features={
                f.name: (f.min_supported_version, f.max_supported_version) for f in record.features
            },
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=None if cordoned is None else tuple(cordoned),
        )

    def _broker(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        drafts = self._draft.brokers
        broker = drafts[broker_id] if broker_id in drafts else self.image.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            raise InvariantError(
                f"metadata log: a record for broker {broker_id} at the epoch {broker_epoch}"
            )
        return broker

    def _replay_unregister_broker(self, record: records.UnregisterBrokerRecord) -> None:
        self._draft.brokers[self._broker(record.broker_id, record.broker_epoch).id] = None

    def _replay_fence_broker(self, record: records.FenceBrokerRecord) -> None:
        self._draft.brokers[record.id] = replace(self._broker(record.id, record.epoch), fenced=True)

    def _replay_unfence_broker(self, record: records.UnfenceBrokerRecord) -> None:
        self._draft.brokers[record.id] = replace(
            self._broker(record.id, record.epoch), fenced=False
        )

    def _replay_broker_change(self, record: records.BrokerRegistrationChangeRecord) -> None:
        old = self._broker(record.broker_id, record.broker_epoch)
        cordoned = record.cordoned_log_dirs
        self._draft.brokers[record.broker_id] = replace(
            old,
            fenced=_flag(old.fenced, record.fenced),
            in_controlled_shutdown=_flag(old.in_controlled_shutdown, record.in_controlled_shutdown),
            log_dirs=tuple(record.log_dirs) or old.log_dirs,
            cordoned_log_dirs=old.cordoned_log_dirs if cordoned is None else tuple(cordoned),
        )

    def _replay_register_controller(self, record: records.RegisterControllerRecord) -> None:
        self._draft.controllers[record.controller_id] = ControllerRegistration(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features={
                f.name: (f.min_supported_version, f.max_supported_version) for f in record.features
            },
            zk_migration_ready=record.zk_migration_ready,
        )

    # Configs, features and the rest.

    def _replay_config(self, record: records.ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        values = self._draft.configs.get(key)
        if values is None:
            values = self._draft.configs[key] = dict(self.image.configs.get(key, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value

    def _replay_feature(self, record: records.FeatureLevelRecord) -> None:
        self._draft.features[record.name] = record.feature_level

    def _replay_producer_ids(self, record: records.ProducerIdsRecord) -> None:
        self._draft.next_producer_id = record.next_producer_id

    def _replay_scram(self, record: records.UserScramCredentialRecord) -> None:
        self._draft.scram[record.mechanism, record.name] = record

    def _replay_remove_scram(self, record: records.RemoveUserScramCredentialRecord) -> None:
        self._draft.scram[record.mechanism, record.name] = None

    def _replay_acl(self, record: records.AccessControlEntryRecord) -> None:
        self._draft.acls[record.id] = record

    def _replay_remove_acl(self, record: records.RemoveAccessControlEntryRecord) -> None:
        self._draft.acls[record.id] = None

    def _replay_token(self, record: records.DelegationTokenRecord) -> None:
        self._draft.tokens[record.token_id] = record

    def _replay_remove_token(self, record: records.RemoveDelegationTokenRecord) -> None:
        self._draft.tokens[record.token_id] = None

    def _replay_quota(self, record: records.ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        values = self._draft.quotas.get(entity)
        if values is None:
            values = self._draft.quotas[entity] = dict(self.image.client_quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value

    def _replay_zk_state(self, record: records.ZkMigrationStateRecord) -> None:
        self._draft.zk_migration_state = record.zk_migration_state

    def _replay_nothing(self, record: records.NoOpRecord) -> None:
        """A heartbeat of the log: only the offset moves."""


def changed_partition(old: PartitionImage, record: records.PartitionChangeRecord) -> PartitionImage:
    """The partition after that record. A leader in the record, even the same one, increments the
    leader epoch.
    """
    leads = record.leader != LEADER_UNCHANGED
    return PartitionImage(
        replicas=_or_old(record.replicas, old.replicas),
        directories=_directories(old, record),
        isr=_or_old(record.isr, old.isr),
        removing=_or_old(record.removing_replicas, old.removing),
        adding=_or_old(record.adding_replicas, old.adding),
        elr=_or_old(record.eligible_leader_replicas, old.elr),
        leader=record.leader if leads else old.leader,
        leader_epoch=old.leader_epoch + 1 if leads else old.leader_epoch,
        partition_epoch=old.partition_epoch + 1,
        last_known_elr=_or_old(record.last_known_elr, old.last_known_elr),
        leader_recovery_state=(
            old.leader_recovery_state
            if record.leader_recovery_state < 0
            else record.leader_recovery_state
        ),
    )


def _directories(old: PartitionImage, record: records.PartitionChangeRecord) -> tuple[Uuid, ...]:
    if record.directories is not None:
        return tuple(record.directories)
    if record.replicas is None:
        return old.directories
    known = dict(zip(old.replicas, old.directories, strict=True))
    return tuple(known.get(replica, MIGRATING_DIRECTORY) for replica in record.replicas)


def _or_old(new: list[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _flag(old: bool, change: int) -> bool:
    """A registration change: 1 sets, -1 clears, 0 leaves."""
    return old if change == 0 else change > 0


def _endpoints(
    listed: list[records.RegisterBrokerRecord.BrokerEndpoint]
    | list[records.RegisterControllerRecord.ControllerEndpoint],
) -> dict[str, Endpoint]:
    return {e.name: Endpoint(e.name, e.host, e.port, e.security_protocol) for e in listed}


def _metric_names(
    image: MetadataImage, topics: Mapping[str, TopicImage | None]
) -> dict[str, str | None]:
    """The changes of `names_by_metric` for those topics; a new name replaces a removed one."""
    changes: dict[str, str | None] = {}
    for name, topic in topics.items():
        metric = metric_name(name)
        if "_" not in metric:
            continue
        if topic is not None:
            changes[metric] = name
        elif image.names_by_metric.get(metric) == name:
            changes.setdefault(metric, None)
    return changes


def _merged(
    old: Mapping[Any, Any], changes: Mapping[Any, Any]
) -> Mapping[Any, Any]:  # Any: keeps its caller's types
    """A copy with the changes made, None removing; the old mapping itself if there are no
    changes.
    """
    if not changes:
        return old
    merged = {**old, **changes}
    return {key: value for key, value in merged.items() if value is not None}


_REPLAYERS: Final[
    Mapping[type[Message], Callable[[MetadataDelta, Any], None]]
] = {  # Any: each takes its own record
    records.RegisterBrokerRecord: MetadataDelta._replay_register_broker,
    records.UnregisterBrokerRecord: MetadataDelta._replay_unregister_broker,
    records.TopicRecord: MetadataDelta._replay_topic,
    records.PartitionRecord: MetadataDelta._replay_partition,
    records.ConfigRecord: MetadataDelta._replay_config,
    records.PartitionChangeRecord: MetadataDelta._replay_partition_change,
    records.FenceBrokerRecord: MetadataDelta._replay_fence_broker,
    records.UnfenceBrokerRecord: MetadataDelta._replay_unfence_broker,
    records.RemoveTopicRecord: MetadataDelta._replay_remove_topic,
    records.DelegationTokenRecord: MetadataDelta._replay_token,
    records.UserScramCredentialRecord: MetadataDelta._replay_scram,
    records.FeatureLevelRecord: MetadataDelta._replay_feature,
    records.ClientQuotaRecord: MetadataDelta._replay_quota,
    records.ProducerIdsRecord: MetadataDelta._replay_producer_ids,
    records.BrokerRegistrationChangeRecord: MetadataDelta._replay_broker_change,
    records.AccessControlEntryRecord: MetadataDelta._replay_acl,
    records.RemoveAccessControlEntryRecord: MetadataDelta._replay_remove_acl,
    records.NoOpRecord: MetadataDelta._replay_nothing,
    records.ZkMigrationStateRecord: MetadataDelta._replay_zk_state,
    records.RemoveUserScramCredentialRecord: MetadataDelta._replay_remove_scram,
    records.RemoveDelegationTokenRecord: MetadataDelta._replay_remove_token,
    records.RegisterControllerRecord: MetadataDelta._replay_register_controller,
    records.ClearElrRecord: MetadataDelta._replay_clear_elr,
}
"""The 23 record types that change an image; the three of transactions are in `replay`."""
