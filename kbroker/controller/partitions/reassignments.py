"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860): partitions move to
other brokers.

The lists that a reassignment has are in `partition_reassignment`; that it is complete shows in the
ISR, so the builder of partition changes ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_reassignment import (
    revert_reassignment,
    start_reassignment,
)
from kbroker.controller.partitions.placement import check_replicas
from kbroker.controller.result import (
    CHANGES_PER_STEP,
    ControllerResult,
    DecisionSteps,
    check_record_count,
)
from kbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kbroker.protocol.messages.stored.metadata_records import PartitionChangeRecord

ReassignablePartition = AlterPartitionReassignmentsRequest.ReassignablePartition
_PartitionAnswer = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
_Ongoing = ListPartitionReassignmentsResponse.OngoingPartitionReassignment


def alter_reassignments(
    context: DecisionContext, request: AlterPartitionReassignmentsRequest
) -> DecisionSteps[AlterPartitionReassignmentsResponse]:
    """An outcome per partition; no list of replicas cancels the reassignment. A partition that is
    named again is refused: two records for it, each made of its present state, would contradict
    one another. Raises KafkaError(POLICY_VIOLATION) for too many records.
    """
    may_resize = request.allow_replication_factor_change
    records: list[Message] = []
    response = AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=may_resize
    )
    named: set[tuple[str, int]] = set()
    items = 0
    for asked in request.topics:
        items += 1
        if items % CHANGES_PER_STEP == 0:
            yield
        answered = AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=asked.name)
        response.responses.append(answered)
        for wanted in asked.partitions:
            items += 1
            if items % CHANGES_PER_STEP == 0:
                yield
            key = (asked.name, wanted.partition_index)
            answer = _PartitionAnswer(partition_index=wanted.partition_index, error_message=None)
            answered.partitions.append(answer)
            try:
                if key in named:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate partition.")
                record = _change(context, asked.name, wanted, may_resize)
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message or None
            else:
                if record is not None:
                    records.append(record)
            named.add(key)
            check_record_count(len(records))
    return ControllerResult(records, response)


def _change(
    context: DecisionContext, name: str, wanted: ReassignablePartition, may_resize: bool
) -> PartitionChangeRecord | None:
    """What begins or cancels one reassignment; None if nothing changes. Raises KafkaError."""
    index = wanted.partition_index
    topic = _topic_with(context.image, name, index)
    if wanted.replicas is None:
        return _cancel(context, topic, index)
    return _reassign(context, topic, index, wanted.replicas, may_resize)


def _topic_with(image: MetadataImage, name: str, index: int) -> TopicImage:
    """The topic, which has that partition. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
    topic = image.topics.get(name)
    if topic is None:
        message = f"Unable to find a topic named {name}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if index not in topic.partitions:
        message = f"Unable to find partition {name}:{index}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return topic


def _cancel(
    context: DecisionContext, topic: TopicImage, index: int
) -> PartitionChangeRecord | None:
    partition = topic.partitions[index]
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    reverted = revert_reassignment(partition)
    if reverted.unclean and not context.is_unclean_election_enabled(topic.name):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}:{index} because it would "
            "require an unclean leader election.",
        )
    builder = context.change(topic, index, configured_election=True)
    builder.target_isr, builder.target_replicas = reverted.isr, reverted.replicas
    builder.target_adding = builder.target_removing = ()
    return builder.build()


def _reassign(
    context: DecisionContext,
    topic: TopicImage,
    index: int,
    replicas: Sequence[int],
    may_resize: bool,
) -> PartitionChangeRecord | None:
    """A second reassignment starts from the present replicas, those being added included. Where it
    adds or removes none, the list that stands is left as it is (KIP-455 as Kafka has it).
    """
    partition = topic.partitions[index]
    check_replicas(context.image, replicas, None)
    size = _replication_factor(partition)
    if not may_resize and size != len(replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {size} to {len(replicas)}",
        )
    started = start_reassignment(partition.replicas, replicas)
    builder = context.change(topic, index)
    builder.target_replicas = started.replicas
    if started.removing:
        builder.target_removing = started.removing
    if started.adding:
        builder.target_adding = started.adding
    return builder.build()


def _replication_factor(partition: PartitionImage) -> int:
    """How many replicas the partition has, or will have when its reassignment is complete."""
    if not partition.is_reassigning:
        return len(partition.replicas)
    return len({*partition.replicas, *partition.adding} - set(partition.removing))


def list_reassignments(
    context: DecisionContext, request: ListPartitionReassignmentsRequest
) -> DecisionSteps[ListPartitionReassignmentsResponse]:
    """ListPartitionReassignments, of all topics or those named, each partition once; unknown ones
    are left out.
    """
    image = context.image
    listed: dict[str, dict[int, _Ongoing]] = {}
    items = 0
    for name, indexes in _wanted(context, request):
        items += 1
        if items % CHANGES_PER_STEP == 0:
            yield
        for index in indexes:
            items += 1
            if items % CHANGES_PER_STEP == 0:
                yield
            partition = image.partition(name, index)
            if partition is not None and partition.is_reassigning:
                listed.setdefault(name, {})[index] = _ongoing(index, partition)
    topics = [
        ListPartitionReassignmentsResponse.OngoingTopicReassignment(
            name=name, partitions=list(partitions.values())
        )
        for name, partitions in listed.items()
    ]
    return ControllerResult(
        [], ListPartitionReassignmentsResponse(error_message=None, topics=topics)
    )


def _wanted(
    context: DecisionContext, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[str, Iterable[int]]]:
    """The partitions that a request asks for; in the order of topics where it names none."""
    if request.topics is not None:
        return ((each.name, each.partition_indexes) for each in request.topics)
    by_topic: dict[str, list[int]] = {}
    for topic_id, index in context.partitions.reassigning():
        by_topic.setdefault(context.image.topics_by_id[topic_id].name, []).append(index)
    return iter(sorted(by_topic.items()))


def _ongoing(index: int, partition: PartitionImage) -> _Ongoing:
    return _Ongoing(
        partition_index=index,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )
