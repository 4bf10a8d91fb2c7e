"""Elections of leaders: at a client's request (KIP-460), and the two that a controller holds from
time to time: preferred leaders where others lead, and unclean ones where a topic allows them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from enum import IntEnum
from typing import Final

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_change import Election
from kbroker.controller.result import (
    CHANGES_PER_STEP,
    ControllerResult,
    DecisionSteps,
    check_record_count,
)
from kbroker.metadata.image import PartitionImage, TopicImage
from kbroker.model import TopicIdPartition
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import MAX_MESSAGE_CHARS, ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import ElectLeadersRequest, ElectLeadersResponse

MAX_ELECTIONS: Final = 1000
"""Of one periodic election; the rest follows at once, in the next one."""


class ElectionType(IntEnum):
    """ElectLeadersRequest.election_type."""

    PREFERRED = 0
    UNCLEAN = 1


_ELECTIONS: Final[Mapping[ElectionType, Election]] = {
    ElectionType.PREFERRED: Election.PREFERRED,
    ElectionType.UNCLEAN: Election.UNCLEAN,
}

_MESSAGES: Final[Mapping[ErrorCode, str | None]] = {
    ErrorCode.NONE: None,
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: (
        "Eligible topic partition leaders are not available."
    ),
}

PartitionResult = ElectLeadersResponse.PartitionResult


def elect_leaders(
    context: DecisionContext, request: ElectLeadersRequest
) -> DecisionSteps[ElectLeadersResponse]:
    """ElectLeaders. Without a list of partitions, the answer has those that needed an election; a
    partition that is named again is answered once.

    Raises KafkaError: INVALID_REQUEST for an unknown election type, POLICY_VIOLATION for too many
    records.
    """
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        message = f"Unknown election type {request.election_type}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    records: list[Message] = []
    response = ElectLeadersResponse()
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = yield from _all_in_need(context, kind)
    else:
        wanted = ((each.topic, each.partitions) for each in request.topic_partitions)
    answered: dict[str, set[int]] = {}
    items = 0
    for name, indexes in wanted:
        items += 1
        if items % CHANGES_PER_STEP == 0:
            yield
        topic = context.image.topics.get(name)
        seen = answered.setdefault(name, set())
        results: list[PartitionResult] = []
        response.replica_election_results.append(
            ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=results)
        )
        for index in indexes:
            items += 1
            if items % CHANGES_PER_STEP == 0:
                yield
            if index not in seen:
                seen.add(index)
                results.append(_elect(context, name, topic, index, kind, records))
                check_record_count(len(records))
    return ControllerResult(records, response, atomic=False)


def _all_in_need(
    context: DecisionContext, kind: ElectionType
) -> Generator[None, None, list[tuple[str, list[int]]]]:
    """The partitions without the leader that the election would give them, by topic."""
    partitions = context.partitions
    in_need = partitions.imbalanced() if kind is ElectionType.PREFERRED else partitions.leaderless()
    by_topic: dict[str, list[int]] = {}
    for number, (topic_id, index) in enumerate(in_need, 1):
        if number % CHANGES_PER_STEP == 0:
            yield
        by_topic.setdefault(context.image.topics_by_id[topic_id].name, []).append(index)
    return sorted(by_topic.items())


def _elect(
    context: DecisionContext,
    name: str,
    topic: TopicImage | None,
    index: int,
    kind: ElectionType,
    records: list[Message],
) -> PartitionResult:
    if topic is None:
        return _unknown(index, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        return _unknown(index, f"No such partition as {name}-{index}")
    error = _outcome(context, topic, index, partition, kind, records)
    return PartitionResult(partition_id=index, error_code=error, error_message=_MESSAGES[error])


def _unknown(index: int, message: str) -> PartitionResult:
    return PartitionResult(
        partition_id=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=message[:MAX_MESSAGE_CHARS],
    )


def _outcome(
    context: DecisionContext,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    kind: ElectionType,
    records: list[Message],
) -> ErrorCode:
    """The topic's unclean.leader.election.enable does not count: the client has decided."""
    is_preferred = kind is ElectionType.PREFERRED
    if partition.has_preferred_leader if is_preferred else partition.has_leader:
        return ErrorCode.ELECTION_NOT_NEEDED
    builder = context.change(topic, index)
    builder.election = _ELECTIONS[kind]
    record = builder.build()
    if record is not None:
        records.append(record)
        return ErrorCode.NONE
    if is_preferred:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def balance_leaders(
    context: DecisionContext, *, max_elections: int = MAX_ELECTIONS
) -> DecisionSteps[bool]:
    """Elect the preferred leaders that are available (auto.leader.rebalance.enable). The response
    is whether there may be more of them.
    """
    imbalanced = context.partitions.imbalanced()
    return (yield from _elect_some(context, imbalanced, Election.PREFERRED, max_elections))


def elect_unclean_leaders(
    context: DecisionContext, *, max_elections: int = MAX_ELECTIONS
) -> DecisionSteps[bool]:
    """Elect leaders for partitions without one, of topics with unclean.leader.election.enable. The
    response is whether there may be more of them.
    """
    image = context.image
    allowed = (
        (topic_id, index)
        for topic_id, index in context.partitions.leaderless()
        if context.is_unclean_election_enabled(image.topics_by_id[topic_id].name)
    )
    return (yield from _elect_some(context, allowed, Election.UNCLEAN, max_elections))


def _elect_some(
    context: DecisionContext,
    partitions: Iterable[TopicIdPartition],
    election: Election,
    max_elections: int,
) -> DecisionSteps[bool]:
    records: list[Message] = []
    for count, (topic_id, index) in enumerate(partitions):
        if len(records) >= max_elections:
            break
        if count and count % CHANGES_PER_STEP == 0:
            yield
        builder = context.change(context.image.topics_by_id[topic_id], index)
        builder.election = election
        record = builder.build()
        if record is not None:
            records.append(record)
    return ControllerResult(records, len(records) >= max_elections, atomic=False)
