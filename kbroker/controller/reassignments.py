"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860): partitions move to
other brokers.

The lists that a reassignment has are in `partition_reassignment`; that it is complete shows in the
ISR, so the builder of partition changes ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.controller.decision_context import DecisionContext
from kbroker.controller.partition_reassignment import revert_reassignment, start_reassignment
from kbroker.controller.placement import check_replicas
from kbroker.controller.result import CHANGES_PER_STEP, ControllerResult, DecisionSteps
from kbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kbroker.protocol.messages.metadata_records import PartitionChangeRecord
from kbroker.protocol.schema import Message

_Listed = ListPartitionReassignmentsResponse.OngoingTopicReassignment


def alter_reassignments(
    context: DecisionContext, request: AlterPartitionReassignmentsRequest
) -> DecisionSteps[AlterPartitionReassignmentsResponse]:
    """An outcome per partition; no list of replicas cancels the reassignment."""
    may_resize = request.allow_replication_factor_change
    records: list[Message] = []
    response = AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=may_resize
    )
    count = 0
    for asked in request.topics:
        answered = AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=asked.name)
        response.responses.append(answered)
        for wanted in asked.partitions:
            if count and count % CHANGES_PER_STEP == 0:
                yield
            count += 1
            code, message = ErrorCode.NONE, None
            try:
                topic = _topic_with(context.image, asked.name, wanted.partition_index)
                if wanted.replicas is None:
                    record = _cancel(context, topic, wanted.partition_index)
                else:
                    record = _reassign(
                        context, topic, wanted.partition_index, wanted.replicas, may_resize
                    )
                if record is not None:
                    records.append(record)
            except KafkaError as error:
                code, message = error.code, error.message
            answered.partitions.append(
                AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                    partition_index=wanted.partition_index, error_code=code, error_message=message
                )
            )
    return ControllerResult(records, response)


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
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
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
) -> ListPartitionReassignmentsResponse:
    """ListPartitionReassignments, of all topics or those named; unknown ones are left out."""
    image = context.image
    wanted: Iterable[tuple[str, Sequence[int]]]
    if request.topics is None:
        by_topic: dict[str, list[int]] = {}
        for topic_id, index in context.partitions.reassigning():
            by_topic.setdefault(image.topics_by_id[topic_id].name, []).append(index)
        wanted = sorted(by_topic.items())
    else:
        wanted = [(each.name, each.partition_indexes) for each in request.topics]
    listed = (_under_way(image, name, indexes) for name, indexes in wanted)
    return ListPartitionReassignmentsResponse(
        error_message=None, topics=[each for each in listed if each.partitions]
    )


def _under_way(image: MetadataImage, name: str, indexes: Sequence[int]) -> _Listed:
    listed = _Listed(name=name)
    for index in indexes:
        partition = image.partition(name, index)
        if partition is not None and partition.is_reassigning:
            listed.partitions.append(
                ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding),
                    removing_replicas=list(partition.removing),
                )
            )
    return listed
