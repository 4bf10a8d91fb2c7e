"""CreatePartitions (KIP-195): a topic gets more partitions."""

from __future__ import annotations

from collections import Counter

from kbroker.controller.placement import (
    Draws,
    bad_assignment,
    check_replicas,
    new_partition_record,
    place,
    usable_for_placement,
)
from kbroker.controller.result import ChargePartitions, ControllerResult, free_of_charge
from kbroker.metadata.image import MetadataImage
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata_records import PartitionRecord
from kbroker.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsResponse
from kbroker.protocol.schema import Message

CreatePartitionsTopic = CreatePartitionsRequest.CreatePartitionsTopic
CreatePartitionsTopicResult = CreatePartitionsResponse.CreatePartitionsTopicResult


def create_partitions(
    image: MetadataImage,
    request: CreatePartitionsRequest,
    *,
    random: Draws,
    charge: ChargePartitions = free_of_charge,
) -> ControllerResult[CreatePartitionsResponse]:
    """An outcome per topic: of those that are named twice, then of the others in the order of the
    request.
    """
    counts = Counter(asked.name for asked in request.topics)
    records: list[Message] = []
    results = [
        _result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    ]
    for asked in request.topics:
        if counts[asked.name] > 1:
            continue
        try:
            records += _grow(image, asked, random, charge)
        except KafkaError as error:
            results.append(_result(asked.name, error.code, error.message or None))
        else:
            results.append(_result(asked.name, ErrorCode.NONE, None))
    response = CreatePartitionsResponse(results=results)
    return ControllerResult([] if request.validate_only else records, response)


def _result(name: str, code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


def _grow(
    image: MetadataImage, asked: CreatePartitionsTopic, random: Draws, charge: ChargePartitions
) -> list[PartitionRecord]:
    """The new partitions of one topic. Raises KafkaError."""
    topic = image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(topic.partitions)
    if asked.count == present:
        message = f"Topic already has {present} partition(s)."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if asked.count < present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {asked.name} currently has {present} partition(s); {asked.count} would "
            "not be an increase.",
        )
    replication_factor = len(next(iter(topic.partitions.values())).replicas)
    added = asked.count - present
    assigned = None if asked.assignments is None else len(asked.assignments)
    if assigned not in (None, added):
        raise bad_assignment(
            f"Attempted to add {added} additional partition(s), but only {assigned} "
            "assignment(s) were specified."
        )
    charge(added)
    if asked.assignments is None:
        placed = place(
            usable_for_placement(image),
            partition_count=added,
            replication_factor=replication_factor,
            random=random,
        )
    else:
        placed = _manual(image, asked, present, replication_factor)
    return [
        new_partition_record(image, topic.topic_id, index, replicas)
        for index, replicas in enumerate(placed, present)
    ]


def _manual(
    image: MetadataImage, asked: CreatePartitionsTopic, present: int, replication_factor: int
) -> list[list[int]]:
    assignments = [each.broker_ids for each in asked.assignments or ()]
    for index, replicas in enumerate(assignments, present):
        check_replicas(image, replicas, replication_factor)
        if not any(image.is_active(replica) for replica in replicas):
            raise bad_assignment(
                "All brokers specified in the manual partition assignment for partition "
                f"{index} are fenced or in controlled shutdown."
            )
    return assignments
