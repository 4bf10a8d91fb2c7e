"""CreatePartitions (KIP-195): a topic gets more partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Final

from kbroker.controller.partitions.placement import (
    Draws,
    bad_assignment,
    check_replicas,
    new_partition_record,
    placements,
    usable_for_placement,
)
from kbroker.controller.result import (
    ChargePartitions,
    ControllerResult,
    DecisionSteps,
    check_record_count,
    free_of_charge,
)
from kbroker.metadata.image import MetadataImage
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreatePartitionsRequest, CreatePartitionsResponse

CreatePartitionsTopic = CreatePartitionsRequest.CreatePartitionsTopic
CreatePartitionsTopicResult = CreatePartitionsResponse.CreatePartitionsTopicResult

TOPICS_PER_STEP: Final = 256
PARTITIONS_PER_STEP: Final = 128
"""New partitions that get their replicas in one step: half a millisecond of work."""


def create_partitions(
    image: MetadataImage,
    request: CreatePartitionsRequest,
    *,
    random: Draws,
    charge: ChargePartitions = free_of_charge,
) -> DecisionSteps[CreatePartitionsResponse]:
    """An outcome per topic: of those that are named twice, then of the others in the order of the
    request. Raises KafkaError for too many partitions, before any is placed.
    """
    counts: Counter[str] = Counter()
    added = 0
    for number, asked in enumerate(request.topics, 1):
        if number % TOPICS_PER_STEP == 0:
            yield
        counts[asked.name] += 1
        topic = image.topics.get(asked.name)
        if topic is not None:
            added += max(asked.count - len(topic.partitions), 0)
    check_record_count(added)
    results: list[CreatePartitionsTopicResult] = []
    for number, (name, count) in enumerate(counts.items(), 1):
        if number % TOPICS_PER_STEP == 0:
            yield
        if count > 1:
            results.append(_result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    records: list[Message] = []
    for number, asked in enumerate(request.topics, 1):
        if number % TOPICS_PER_STEP == 0:
            yield
        if counts[asked.name] > 1:
            continue
        try:
            records += yield from _grow(image, asked, random, charge)
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
) -> Generator[None, None, list[Message]]:
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
    added = asked.count - present
    if asked.assignments is not None and len(asked.assignments) != added:
        raise bad_assignment(
            f"Attempted to add {added} additional partition(s), but only {len(asked.assignments)} "
            "assignment(s) were specified."
        )
    charge(added)
    replication_factor = len(next(iter(topic.partitions.values())).replicas)
    placed: Iterator[Sequence[int]]
    if asked.assignments is None:
        brokers = usable_for_placement(image)
        placed = placements(brokers, replication_factor=replication_factor, random=random)
    else:
        assignments = [each.broker_ids for each in asked.assignments]
        placed = _checked(image, assignments, present, replication_factor)
    records: list[Message] = []
    for index, replicas in enumerate(islice(placed, added), present):
        if index % PARTITIONS_PER_STEP == 0:
            yield
        records.append(new_partition_record(image, topic.topic_id, index, replicas))
    return records


def _checked(
    image: MetadataImage,
    assignments: Sequence[Sequence[int]],
    first_index: int,
    replication_factor: int,
) -> Iterator[Sequence[int]]:
    """The replicas of each new partition as the request assigns them. Raises KafkaError."""
    for index, replicas in enumerate(assignments, first_index):
        check_replicas(image, replicas, replication_factor)
        if not any(image.is_active(replica) for replica in replicas):
            raise bad_assignment(
                "All brokers specified in the manual partition assignment for partition "
                f"{index} are fenced or in controlled shutdown."
            )
        yield replicas
