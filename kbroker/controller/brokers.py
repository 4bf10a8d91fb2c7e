"""Brokers and controllers come and go: registration, fencing, controlled shutdown (KIP-631,
KIP-919, KIP-966).

A broker registers fenced, with its epoch; it is unfenced when it may lead. The epoch of its
previous registration distinguishes a clean restart from an unclean one: after an unclean stop the
broker may have lost records that were not synced, so it leaves every ISR and ELR first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kbroker.controller.partition_change import changes_for
from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.metadata.image import NO_LEADER, BrokerRegistration, Endpoint, MetadataImage
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from kbroker.protocol.schema import Message

SET: Final = 1
CLEAR: Final = -1


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What a broker learns from a heartbeat (BrokerHeartbeatResponse). should_shut_down: its
    controlled shutdown is complete.
    """

    is_fenced: bool
    should_shut_down: bool


MinInsyncReplicas = Callable[[str], int]
"""min.insync.replicas of a topic by its name."""


def register_broker(
    image: MetadataImage,
    record: RegisterBrokerRecord,
    *,
    previous_broker_epoch: int,
    min_insync_replicas: MinInsyncReplicas,
) -> list[Message]:
    """The records of a registration; `record` is it, with its epoch.

    previous_broker_epoch: the broker's epoch in its last life if that ended cleanly, else -1.
    """
    if not record.end_points:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"Broker {record.broker_id} did not give any endpoint to reach it at.",
        )
    old = image.brokers.get(record.broker_id)
    records: list[Message] = []
    unclean = old is not None and old.epoch != previous_broker_epoch
    if unclean and image.elr_enabled:
        broker_id = record.broker_id
        records += changes_for(
            image,
            leaving=broker_id,
            unclean=True,
            concerned=lambda partition: broker_id in partition.isr or broker_id in partition.elr,
            min_insync_replicas=min_insync_replicas,
        )
    records.append(record)
    return records


def unfence(
    image: MetadataImage, broker: BrokerRegistration, min_insync_replicas: MinInsyncReplicas
) -> list[Message]:
    """The broker may lead again: it becomes the leader of its partitions without a leader."""
    if not broker.fenced:
        return []
    alive = replace(broker, fenced=False)
    after = replace(image, brokers={**image.brokers, broker.id: alive})
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, fenced=CLEAR
        ),
        *changes_for(
            after,
            concerned=lambda partition: (
                partition.leader == NO_LEADER and broker.id in partition.replicas
            ),
            min_insync_replicas=min_insync_replicas,
        ),
    ]


def leave(
    image: MetadataImage,
    broker: BrokerRegistration,
    change: BrokerRegistrationChangeRecord,
    min_insync_replicas: MinInsyncReplicas,
) -> list[Message]:
    """`change` (fenced, or in controlled shutdown) and what follows for the partitions this broker
    is in sync in.
    """
    return [
        change,
        *changes_for(
            image,
            leaving=broker.id,
            concerned=lambda partition: broker.id in partition.isr,
            min_insync_replicas=min_insync_replicas,
        ),
    ]


def registration_record(
    broker_id: int,
    *,
    broker_epoch: int,
    incarnation_id: Uuid,
    endpoints: Mapping[str, Endpoint],
    log_dirs: tuple[Uuid, ...],
    rack: str | None,
) -> RegisterBrokerRecord:
    """A broker of this release, still fenced."""
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=incarnation_id,
        broker_epoch=broker_epoch,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in endpoints.values()
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
        rack=rack,
        fenced=True,
        log_dirs=list(log_dirs),
    )


def controller_record(
    controller_id: int, *, incarnation_id: Uuid, endpoints: Mapping[str, Endpoint]
) -> RegisterControllerRecord:
    """A controller of this release."""
    return RegisterControllerRecord(
        controller_id=controller_id,
        incarnation_id=incarnation_id,
        end_points=[
            RegisterControllerRecord.ControllerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in endpoints.values()
        ],
        features=[
            RegisterControllerRecord.ControllerFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
    )
