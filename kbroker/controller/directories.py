"""Which log directory of a broker holds a replica, and what follows if its disk fails (KIP-858), or
if no new replicas may go there (KIP-1066).

A broker with several directories places a replica itself and reports where; a directory that failed
is taken out of its registration, and leadership of the partitions in it moves to eligible replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kbroker.controller.decision_context import DecisionContext
from kbroker.controller.result import (
    CHANGES_PER_STEP,
    ControllerResult,
    DecisionSteps,
    RecordSteps,
)
from kbroker.metadata.image import BrokerRegistration, PartitionImage, has_online_directory
from kbroker.model import TopicIdPartition, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kbroker.protocol.messages.metadata_records import BrokerRegistrationChangeRecord
from kbroker.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class Assignment:
    """This replica of the reporting broker is in that directory."""

    topic_id: Uuid
    partition: int
    directory_id: Uuid


def assign(
    context: DecisionContext,
    broker: BrokerRegistration,
    assignments: Sequence[Assignment],
    *,
    found_may_lead: bool,
) -> DecisionSteps[list[ErrorCode]]:
    """An error per assignment, and the records of those that are new. A replica reported in an
    offline directory leaves the ISR and its leadership.

    found_may_lead: a replica of a partition without leader that is found in an online directory may
    lead again at once. Kafka looks at the directory that the replica had before, so the partition
    has no leader until another event.
    """
    records: list[Message] = []
    errors: list[ErrorCode] = []
    offline: dict[TopicIdPartition, None] = {}
    for count, assignment in enumerate(assignments):
        if count and count % CHANGES_PER_STEP == 0:
            yield
        topic = context.image.topics_by_id.get(assignment.topic_id)
        index, directory_id = assignment.partition, assignment.directory_id
        if topic is None:
            errors.append(ErrorCode.UNKNOWN_TOPIC_ID)
            continue
        partition = topic.partitions.get(index)
        if partition is None:
            errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        if broker.id not in partition.replicas:
            errors.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            continue
        found = found_may_lead and not partition.has_leader
        placed = _moved(partition, broker.id, directory_id) if found else partition
        change = context.change(topic, index, placed=placed)
        change.set_directory(broker.id, directory_id)
        record = change.build()
        if record is not None:
            records.append(record)
        if not has_online_directory(broker, directory_id):
            offline[assignment.topic_id, index] = None
        errors.append(ErrorCode.NONE)
    records += yield from context.leader_and_isr_updates(offline, leaving=broker.id)
    return ControllerResult(records, errors, atomic=False)


def _moved(partition: PartitionImage, broker_id: int, directory_id: Uuid) -> PartitionImage:
    directories = [
        directory_id if replica == broker_id else partition.directory(replica)
        for replica in partition.replicas
    ]
    return replace(partition, directories=tuple(directories))


def requested_assignments(request: AssignReplicasToDirsRequest) -> list[Assignment]:
    """The assignments of a request, in its order."""
    return [
        Assignment(topic.topic_id, partition.partition_index, directory.id)
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]


def assignment_response(
    request: AssignReplicasToDirsRequest, errors: Sequence[ErrorCode]
) -> AssignReplicasToDirsResponse:
    """The response with the errors of `assign`."""
    each = iter(errors)
    response = AssignReplicasToDirsResponse
    return response(
        directories=[
            response.DirectoryData(
                id=directory.id,
                topics=[
                    response.TopicData(
                        topic_id=topic.topic_id,
                        partitions=[
                            response.PartitionData(
                                partition_index=partition.partition_index, error_code=next(each)
                            )
                            for partition in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in request.directories
        ]
    )


def directories_failed(
    context: DecisionContext, broker: BrokerRegistration, failed: Sequence[Uuid]
) -> RecordSteps:
    """The broker says that these directories are offline."""
    newly_failed = [directory for directory in broker.log_dirs if directory in failed]
    if not newly_failed:
        return []
    records: list[Message] = []
    for directory in newly_failed:
        there = context.partitions.in_directory(directory)
        records += yield from context.leader_and_isr_updates(there, leaving=broker.id)
    left = [directory for directory in broker.log_dirs if directory not in newly_failed]
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left
        )
    )
    return records


def directories_cordoned(
    broker: BrokerRegistration, cordoned: Sequence[Uuid] | None
) -> list[Message]:
    """The broker says which directories get no new replicas; None while it does not know yet."""
    if cordoned is None:
        return []
    known = broker.cordoned_log_dirs
    if known is not None and set(known) == set(cordoned):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]
