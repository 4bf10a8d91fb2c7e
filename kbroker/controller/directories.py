"""Which log directory of a broker holds a replica, and what follows if its disk fails (KIP-858).

A broker with several directories places a replica itself and reports where; a directory that failed
is taken out of its registration, and leadership of the partitions in it moves to eligible replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kbroker.controller.brokers import MinInsyncReplicas
from kbroker.controller.partition_change import changes_for, is_acceptable, partition_change
from kbroker.metadata.image import (
    NO_LEADER,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
)
from kbroker.model import Uuid
from kbroker.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from kbroker.protocol.schema import Message

DIRECTORY_ASSIGNMENT_LEVEL: Final = 17
"""metadata.version (3.7-IV2) from which partitions remember their directories."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """This replica of the reporting broker is in that directory."""

    topic_id: Uuid
    partition: int
    directory_id: Uuid


def assign(
    image: MetadataImage,
    broker: BrokerRegistration,
    assignments: Iterable[Assignment],
    min_insync_replicas: MinInsyncReplicas,
) -> list[Message]:
    """Records for the assignments that are new; unknown partitions and those of other brokers are
    passed over. A replica reported in an offline directory loses its leadership; one that is found
    in a directory that is online may lead again.
    """
    if image.metadata_version < DIRECTORY_ASSIGNMENT_LEVEL:
        return []
    records: list[Message] = []
    offline: set[int] = set()
    for assignment in assignments:
        topic = image.topics_by_id.get(assignment.topic_id)
        partition = None if topic is None else topic.partitions.get(assignment.partition)
        if partition is None or broker.id not in partition.replicas:
            continue
        if broker.log_dirs and assignment.directory_id not in broker.log_dirs:
            offline.add(id(partition))
        directories = [
            assignment.directory_id if replica == broker.id else directory
            for replica, directory in zip(partition.replicas, partition.directories, strict=True)
        ]
        if topic is not None and directories != list(partition.directories):
            record = None
            if partition.leader == NO_LEADER:
                moved = replace(partition, directories=tuple(directories))
                record = partition_change(
                    topic,
                    assignment.partition,
                    acceptable=partial(is_acceptable, image, moved),
                    min_insync_replicas=min_insync_replicas(topic.name),
                    elr_enabled=image.elr_enabled,
                )
            record = record or PartitionChangeRecord(
                partition_id=assignment.partition, topic_id=assignment.topic_id
            )
            record.directories = directories
            records.append(record)
    if offline:
        records += _leave(image, broker, offline, min_insync_replicas)
    return records


def directories_failed(
    image: MetadataImage,
    broker: BrokerRegistration,
    failed: Sequence[Uuid],
    min_insync_replicas: MinInsyncReplicas,
) -> list[Message]:
    """The broker says that these directories are offline."""
    newly_failed = [directory for directory in failed if directory in broker.log_dirs]
    if not newly_failed:
        return []
    gone = {
        id(partition)
        for topic in image.topics.values()
        for partition in topic.partitions.values()
        if _directory(partition, broker.id) in newly_failed
    }
    records = _leave(image, broker, gone, min_insync_replicas)
    left = [directory for directory in broker.log_dirs if directory not in newly_failed]
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left
        )
    )
    return records


def _leave(
    image: MetadataImage,
    broker: BrokerRegistration,
    partitions: set[int],
    min_insync_replicas: MinInsyncReplicas,
) -> list[Message]:
    """The broker drops out of those partitions (by identity of their images)."""
    return list(
        changes_for(
            image,
            leaving=broker.id,
            concerned=lambda partition: (
                id(partition) in partitions
                and (broker.id in partition.isr or partition.leader == broker.id)
            ),
            min_insync_replicas=min_insync_replicas,
        )
    )


def _directory(partition: PartitionImage, broker_id: int) -> Uuid | None:
    for replica, directory in zip(partition.replicas, partition.directories, strict=False):
        if replica == broker_id:
            return directory
    return None
