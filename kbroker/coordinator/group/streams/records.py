"""Records of streams groups (KIP-1071): conversion between the values of this room and those of
`__consumer_offsets`.

Types 17 (group), 19 (member), 20 and 21 (target assignment: epoch, member), 22 (current
assignment), 23 (topology).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.coordinator.group.streams.reconciliation import CurrentTasks, StreamsMemberState
from kbroker.coordinator.group.streams.tasks import DatedTasks, HeldTasks, Tasks, TaskSet
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.protocol.messages.stored.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

StreamsMember = StreamsGroupMemberMetadataValue
Topology = StreamsGroupTopologyValue

StreamsGroupKey = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
"""The keys of a streams group's records; each has its group_id."""

_TargetTasks = StreamsGroupTargetAssignmentMemberValue.TaskIds
_CurrentTasks = StreamsGroupCurrentMemberAssignmentValue.TaskIds
_Config = StreamsGroupMetadataValue.LastAssignmentConfig


def streams_group_record(
    group_id: str,
    epoch: int,
    metadata_hash: int,
    validated_topology_epoch: int,
    assignment_configs: Mapping[str, str],
) -> CoordinatorRecord:
    """The group epoch. validated_topology_epoch: -1 while topics are missing or do not match."""
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_topology_epoch,
        last_assignment_configs=[
            _Config(key=key, value=value) for key, value in sorted(assignment_configs.items())
        ],
    )
    return CoordinatorRecord(StreamsGroupMetadataKey(group_id=group_id), value)


def streams_member_record(group_id: str, member_id: str, value: StreamsMember) -> CoordinatorRecord:
    """A member's metadata."""
    key = StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, value)


def topology_record(group_id: str, topology: Topology) -> CoordinatorRecord:
    """The topology of the application."""
    return CoordinatorRecord(StreamsGroupTopologyKey(group_id=group_id), topology)


def streams_target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """The group epoch for which the target assignment was computed."""
    value = StreamsGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return CoordinatorRecord(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def streams_target_record(group_id: str, member_id: str, target: TaskSet) -> CoordinatorRecord:
    """A member's target assignment."""
    key = StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=_target_tasks(target.active),
        standby_tasks=_target_tasks(target.standby),
        warmup_tasks=_target_tasks(target.warmup),
    )
    return CoordinatorRecord(key, value)


def streams_target_of(value: StreamsGroupTargetAssignmentMemberValue) -> TaskSet:
    """Decode the target assignment of a record."""
    return TaskSet(
        _tasks(value.active_tasks), _tasks(value.standby_tasks), _tasks(value.warmup_tasks)
    )


def streams_current_record(
    group_id: str, member_id: str, current: CurrentTasks
) -> CoordinatorRecord:
    """A member's current assignment."""
    key = StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    assigned, revoking = current.assigned, current.revoking
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_epoch,
        state=int(current.state),
        active_tasks=_dated_tasks(assigned.active),
        standby_tasks=_current_tasks(assigned.standby),
        warmup_tasks=_current_tasks(assigned.warmup),
        active_tasks_pending_revocation=_dated_tasks(revoking.active),
        standby_tasks_pending_revocation=_current_tasks(revoking.standby),
        warmup_tasks_pending_revocation=_current_tasks(revoking.warmup),
    )
    return CoordinatorRecord(key, value)


def streams_current_of(value: StreamsGroupCurrentMemberAssignmentValue) -> CurrentTasks:
    """Decode the current assignment of a record. A state of a later Kafka is UNKNOWN."""
    known = value.state in {int(state) for state in StreamsMemberState}
    epoch = value.member_epoch
    return CurrentTasks(
        epoch,
        value.previous_member_epoch,
        StreamsMemberState(value.state) if known else StreamsMemberState.UNKNOWN,
        HeldTasks(
            _dated(value.active_tasks, epoch),
            _tasks(value.standby_tasks),
            _tasks(value.warmup_tasks),
        ),
        HeldTasks(
            _dated(value.active_tasks_pending_revocation, epoch),
            _tasks(value.standby_tasks_pending_revocation),
            _tasks(value.warmup_tasks_pending_revocation),
        ),
    )


def streams_member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The tombstones of a member, in Kafka's order: current assignment, target assignment,
    member.
    """
    return [
        CoordinatorRecord(key, None)
        for key in (
            StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
        )
    ]


def streams_group_tombstones(group_id: str) -> list[CoordinatorRecord]:
    """The tombstones of a group without members."""
    return [
        CoordinatorRecord(key, None)
        for key in (
            StreamsGroupTargetAssignmentMetadataKey(group_id=group_id),
            StreamsGroupMetadataKey(group_id=group_id),
            StreamsGroupTopologyKey(group_id=group_id),
        )
    ]


def _target_tasks(tasks: Tasks) -> list[_TargetTasks]:
    return [
        _TargetTasks(subtopology_id=name, partitions=sorted(partitions))
        for name, partitions in sorted(tasks.items())
    ]


def _current_tasks(tasks: Tasks) -> list[_CurrentTasks]:
    return [
        _CurrentTasks(subtopology_id=name, partitions=sorted(partitions), assignment_epochs=None)
        for name, partitions in sorted(tasks.items())
    ]


def _dated_tasks(tasks: DatedTasks) -> list[_CurrentTasks]:
    return [
        _CurrentTasks(
            subtopology_id=name,
            partitions=sorted(dated),
            assignment_epochs=[dated[partition] for partition in sorted(dated)],
        )
        for name, dated in sorted(tasks.items())
    ]


def _tasks(tasks: Iterable[_TargetTasks] | Iterable[_CurrentTasks]) -> dict[str, frozenset[int]]:
    return {one.subtopology_id: frozenset(one.partitions) for one in tasks}


def _dated(tasks: Iterable[_CurrentTasks], member_epoch: int) -> dict[str, dict[int, int]]:
    """The tasks of a record with their epochs. Records of Kafka before 4.2 have no assignment
    epochs: the member's epoch is used.
    """
    result: dict[str, dict[int, int]] = {}
    for one in tasks:
        epochs = one.assignment_epochs
        if epochs is None or len(epochs) != len(one.partitions):
            epochs = [member_epoch] * len(one.partitions)
        result[one.subtopology_id] = dict(zip(one.partitions, epochs, strict=True))
    return result
