"""Which log directory of a broker holds a replica, and what follows if its disk fails (KIP-858), or
if no new replicas may go there (KIP-1066).

A broker with several directories places a replica itself and reports where; a directory that failed
is taken out of its registration, and leadership of the partitions in it moves to eligible replicas.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.result import (
    CHANGES_PER_STEP,
    ControllerResult,
    DecisionSteps,
    RecordSteps,
)
from kbroker.metadata.image import BrokerRegistration, PartitionImage, has_online_directory
from kbroker.model import TopicIdPartition, Uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kbroker.protocol.messages.stored.metadata_records import BrokerRegistrationChangeRecord

ANSWERS_PER_STEP: Final = 512
"""Directories, topics and partitions of a response that are made in one step."""


class _Part(NamedTuple):
    """A directory of a request, a topic in it, or a partition of that."""

    directory: AssignReplicasToDirsRequest.DirectoryData
    topic: AssignReplicasToDirsRequest.TopicData | None = None
    partition: AssignReplicasToDirsRequest.PartitionData | None = None


class Assignment(msgspec.Struct, frozen=True):
    """This replica of the reporting broker is in that directory."""

    topic_id: Uuid
    partition: int
    directory_id: Uuid


def assign(
    context: DecisionContext,
    broker: BrokerRegistration,
    assignments: Iterable[Assignment | None],
    *,
    found_may_lead: bool,
) -> DecisionSteps[list[ErrorCode]]:
    """An error per assignment, and the records of those that are new. A replica reported in an
    offline directory leaves the ISR and its leadership. assignments: None is a pause.

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
        if assignment is None:
            continue
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


def _parts(request: AssignReplicasToDirsRequest) -> Iterator[_Part]:
    for directory in request.directories:
        yield _Part(directory)
        for topic in directory.topics:
            yield _Part(directory, topic)
            for partition in topic.partitions:
                yield _Part(directory, topic, partition)


def requested_assignments(request: AssignReplicasToDirsRequest) -> Iterator[Assignment | None]:
    """The assignments of a request, in its order; None for each directory and each topic, since
    there may be many without any.
    """
    for directory, topic, partition in _parts(request):
        if topic is None or partition is None:
            yield None
        else:
            yield Assignment(topic.topic_id, partition.partition_index, directory.id)


def assignment_response(
    request: AssignReplicasToDirsRequest, errors: Sequence[ErrorCode]
) -> Generator[None, None, AssignReplicasToDirsResponse]:
    """The response with the errors of `assign`, in steps."""
    each = iter(errors)
    kind = AssignReplicasToDirsResponse
    response = kind()
    for count, (directory, topic, partition) in enumerate(_parts(request)):
        if count and count % ANSWERS_PER_STEP == 0:
            yield
        if topic is None:
            response.directories.append(kind.DirectoryData(id=directory.id))
        elif partition is None:
            topics = response.directories[-1].topics
            topics.append(kind.TopicData(topic_id=topic.topic_id))
        else:
            partitions = response.directories[-1].topics[-1].partitions
            index = partition.partition_index
            partitions.append(kind.PartitionData(partition_index=index, error_code=next(each)))
    return response


def directories_failed(
    context: DecisionContext, broker: BrokerRegistration, failed: Sequence[Uuid]
) -> RecordSteps:
    """The broker says that these directories are offline."""
    offline = set(failed)
    newly_failed = [directory for directory in broker.log_dirs if directory in offline]
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
    """The broker says which of its directories get no new replicas; None while it does not know
    yet. Ids that are none of its directories are left out.
    """
    if cordoned is None:
        return []
    own = set(broker.log_dirs)
    cordoned = [each for each in dict.fromkeys(cordoned) if each in own]
    known = broker.cordoned_log_dirs
    if known is not None and set(known) == set(cordoned):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]
