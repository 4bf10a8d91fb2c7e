"""Records of share groups (KIP-932) in `__consumer_offsets`: conversion between the values of this
room and Kafka's.

Types 10 (member), 11 (group), 12 and 13 (target assignment: epoch, member), 14 (current
assignment), 15 (which partitions have a state in `__share_group_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import Uuid
from kbroker.protocol.messages.stored.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

ShareMember = ShareGroupMemberMetadataValue

ShareGroupKey = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)
"""The keys of a share group's records; each has its group_id."""

_TargetTopic = ShareGroupTargetAssignmentMemberValue.TopicPartition
_CurrentTopic = ShareGroupCurrentMemberAssignmentValue.TopicPartitions
_StateTopic = ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo
_EndingTopic = ShareGroupStatePartitionMetadataValue.TopicInfo


class ShareCurrent(msgspec.Struct, frozen=True):
    """A member's current assignment and the epoch in which it got it."""

    member_epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = msgspec.field(default_factory=dict)


class StatePartitions(msgspec.Struct, frozen=True):
    """The states of partitions: being initialized, initialized, and topics whose states are being
    deleted.

    names: the names of all these topics.
    """

    initializing: Assignment = msgspec.field(default_factory=dict)
    initialized: Assignment = msgspec.field(default_factory=dict)
    deleting: frozenset[Uuid] = frozenset()
    names: Mapping[Uuid, str] = msgspec.field(default_factory=dict)

    def is_empty(self) -> bool:
        """Whether there are no states."""
        return not (self.initializing or self.initialized or self.deleting)


def share_group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group epoch. metadata_hash: that of the topics for which it was computed, 0 if there are
    none.
    """
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(ShareGroupMetadataKey(group_id=group_id), value)


def share_member_record(group_id: str, member_id: str, value: ShareMember) -> CoordinatorRecord:
    """A member's metadata."""
    key = ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, value)


def share_target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """The group epoch for which the target assignment was computed."""
    value = ShareGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return CoordinatorRecord(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def share_target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    """A member's target assignment."""
    key = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    topics = [
        _TargetTopic(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in assignment.items()
    ]
    return CoordinatorRecord(key, ShareGroupTargetAssignmentMemberValue(topic_partitions=topics))


def share_target_of(value: ShareGroupTargetAssignmentMemberValue) -> Assignment:
    """Decode the target assignment of a record."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


def share_current_record(group_id: str, member_id: str, current: ShareCurrent) -> CoordinatorRecord:
    """A member's assignment. Members of share groups revoke nothing: their state is always 0."""
    key = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_epoch,
        state=0,
        assigned_partitions=[
            _CurrentTopic(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in current.assigned.items()
        ],
    )
    return CoordinatorRecord(key, value)


def share_current_of(value: ShareGroupCurrentMemberAssignmentValue) -> ShareCurrent:
    """Decode the current assignment of a record."""
    return ShareCurrent(
        value.member_epoch,
        value.previous_member_epoch,
        {topic.topic_id: frozenset(topic.partitions) for topic in value.assigned_partitions},
    )


def state_partitions_record(group_id: str, states: StatePartitions) -> CoordinatorRecord:
    """Which partitions have a state."""
    names = states.names
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_state_topics(states.initializing, names),
        initialized_topics=_state_topics(states.initialized, names),
        deleting_topics=[
            _EndingTopic(topic_id=topic_id, topic_name=names.get(topic_id, ""))
            for topic_id in sorted(states.deleting)
        ],
    )
    return CoordinatorRecord(ShareGroupStatePartitionMetadataKey(group_id=group_id), value)


def state_partitions_of(value: ShareGroupStatePartitionMetadataValue) -> StatePartitions:
    """Decode the partition states of a record."""
    named: list[_StateTopic | _EndingTopic] = [
        *value.initializing_topics,
        *value.initialized_topics,
        *value.deleting_topics,
    ]
    return StatePartitions(
        _places(value.initializing_topics),
        _places(value.initialized_topics),
        frozenset(topic.topic_id for topic in value.deleting_topics),
        {topic.topic_id: topic.topic_name for topic in named},
    )


def share_member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The tombstones of a member, in Kafka's order: current assignment, target assignment,
    member.
    """
    return [
        CoordinatorRecord(key, None)
        for key in (
            ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
        )
    ]


def share_group_tombstones(group_id: str) -> list[CoordinatorRecord]:
    """The tombstones of a group without members, in Kafka's order."""
    return [
        CoordinatorRecord(key, None)
        for key in (
            ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
            ShareGroupStatePartitionMetadataKey(group_id=group_id),
            ShareGroupMetadataKey(group_id=group_id),
        )
    ]


def _state_topics(places: Assignment, names: Mapping[Uuid, str]) -> list[_StateTopic]:
    return [
        _StateTopic(
            topic_id=topic_id, topic_name=names.get(topic_id, ""), partitions=sorted(partitions)
        )
        for topic_id, partitions in places.items()
    ]


def _places(topics: Iterable[_StateTopic]) -> Assignment:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}
