"""Converts an image back to records: the content of a metadata snapshot. Replaying the records
results in the same image.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.metadata.image import (
    METADATA_VERSION,
    BrokerRegistration,
    ControllerRegistration,
    MetadataImage,
    PartitionImage,
)
from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.metadata_records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    ZkMigrationStateRecord,
)


def image_records(image: MetadataImage) -> Iterator[Message]:
    """The records of a snapshot, in Kafka's order: records come before those that depend on
    them.
    """
    for name in sorted(image.features, key=lambda feature: (feature != METADATA_VERSION, feature)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for broker_id in sorted(image.brokers):
        yield _broker_record(image.brokers[broker_id])
    for controller_id in sorted(image.controllers):
        yield _controller_record(image.controllers[controller_id])
    for name in sorted(image.topics):
        topic = image.topics[name]
        yield TopicRecord(name=name, topic_id=topic.topic_id)
        for index, partition in topic.partitions.items():
            yield _partition_record(topic.topic_id, index, partition)
    for resource_type, resource_name in sorted(image.configs):
        for key, value in sorted(image.configs[resource_type, resource_name].items()):
            yield ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=key, value=value
            )
    for entity, quotas in image.client_quotas.items():
        for key, quota in sorted(quotas.items()):
            parts = [
                ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name)
                for kind, name in entity
            ]
            yield ClientQuotaRecord(entity=parts, key=key, value=quota)
    if image.next_producer_id > 0:
        yield ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )
    for acl_id in sorted(image.acls):
        yield image.acls[acl_id]
    for mechanism, user in sorted(image.scram_credentials):
        yield image.scram_credentials[mechanism, user]
    for token_id in sorted(image.delegation_tokens):
        yield image.delegation_tokens[token_id]
    if image.zk_migration_state:
        yield ZkMigrationStateRecord(zk_migration_state=image.zk_migration_state)


def _broker_record(broker: BrokerRegistration) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in broker.endpoints.values()
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=None
        if broker.cordoned_log_dirs is None
        else list(broker.cordoned_log_dirs),
    )


def _controller_record(controller: ControllerRegistration) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=[
            RegisterControllerRecord.ControllerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in controller.endpoints.values()
        ],
        features=[
            RegisterControllerRecord.ControllerFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in controller.features.items()
        ],
    )


def _partition_record(topic_id: Uuid, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
