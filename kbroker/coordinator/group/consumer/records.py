"""Records of consumer groups: conversion between the values of this room and those of
`__consumer_offsets`.

Types 3 (group), 5 (member), 6 and 7 (target assignment: epoch, member), 8 (current assignment), 16
(topics that a regular expression matches). Type 4 belongs to Kafka before 4.1; only its tombstone
is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.coordinator.group.consumer.reconciliation import CurrentAssignment, MemberState, Owned
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import Uuid
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

MemberMetadata = ConsumerGroupMemberMetadataValue

ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
"""The keys of a consumer group's records; each has its group_id."""

_TargetTopic = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_CurrentTopic = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group epoch. metadata_hash: that of the topics for which it was computed, 0 if there are
    none.
    """
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member_id: str, value: MemberMetadata) -> CoordinatorRecord:
    """A member's metadata."""
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, value)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """The group epoch for which the target assignment was computed."""
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    """A member's target assignment."""
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    topics = [
        _TargetTopic(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in assignment.items()
    ]
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return CoordinatorRecord(key, value)


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    """Decode the target assignment of a record."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


def current_record(group_id: str, member_id: str, current: CurrentAssignment) -> CoordinatorRecord:
    """A member's current assignment."""
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_epoch,
        state=int(current.state),
        assigned_partitions=_current_topics(current.assigned),
        partitions_pending_revocation=_current_topics(current.revoking),
    )
    return CoordinatorRecord(key, value)


def current_of(value: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    """Decode the current assignment of a record."""
    return CurrentAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state) if value.state in range(3) else MemberState.UNKNOWN,
        _owned(value.assigned_partitions),
        _owned(value.partitions_pending_revocation),
    )


def regex_record(
    group_id: str, regex: str, topics: Iterable[str], version: int, timestamp_ms: int
) -> CoordinatorRecord:
    """The topics that a regular expression matches. version: the metadata offset at which it was
    resolved.
    """
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(topics), version=version, timestamp=timestamp_ms
    )
    return CoordinatorRecord(key, value)


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """The tombstone of a regular expression to which no member subscribes any more."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key, None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The tombstones of a member, in Kafka's order: current assignment, target assignment,
    member.
    """
    return [
        CoordinatorRecord(key, None)
        for key in (
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
        )
    ]


def group_tombstones(group_id: str) -> list[CoordinatorRecord]:
    """The tombstones of a group without members."""
    return [
        CoordinatorRecord(key, None)
        for key in (
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            ConsumerGroupPartitionMetadataKey(group_id=group_id),
            ConsumerGroupMetadataKey(group_id=group_id),
        )
    ]


def all_tombstones(
    group_id: str, member_ids: Collection[str], regexes: Iterable[str]
) -> list[CoordinatorRecord]:
    """The tombstones of a group with members, in Kafka's order."""
    target_epoch, *rest = group_tombstones(group_id)
    keys = (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    )
    currents, targets, members = (
        [
            CoordinatorRecord(key(group_id=group_id, member_id=member_id), None)
            for member_id in member_ids
        ]
        for key in keys
    )
    ends = [regex_tombstone(group_id, regex) for regex in regexes]
    return [*currents, *targets, target_epoch, *members, *ends, *rest]


def _current_topics(owned: Owned) -> list[_CurrentTopic]:
    return [
        _CurrentTopic(
            topic_id=topic_id,
            partitions=list(partitions),
            assignment_epochs=list(partitions.values()),
        )
        for topic_id, partitions in owned.items()
    ]


def _owned(topics: Iterable[_CurrentTopic]) -> Owned:
    """The owned partitions of a record. Records of Kafka before 4.2 have no assignment epochs: with
    0 every epoch may commit.
    """
    result: dict[Uuid, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or [0] * len(topic.partitions)
        result[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=False))
    return result
