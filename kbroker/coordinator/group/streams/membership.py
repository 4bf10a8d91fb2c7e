"""The response of a streams group to StreamsGroupHeartbeat (KIP-1071), and the removal of members.

Each function reads a `StreamsGroup` and returns the records of the decision, in Kafka's order, with
the response; it changes nothing. A heartbeat has up to five steps, each based on the result of the
one before: the member, the topology, the group epoch, the target assignment, the current
assignment.
"""

from __future__ import annotations

import msgspec

from kbroker.coordinator.group.membership.errors import fenced_epoch, group_is_full, unknown_member
from kbroker.coordinator.group.streams.context import StreamsContext, StreamsGroupSettings
from kbroker.coordinator.group.streams.endpoints import partitions_by_endpoint
from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.plan import StreamsPlan
from kbroker.coordinator.group.streams.reconciliation import (
    CurrentTasks,
    StreamsMemberState,
    reconcile,
)
from kbroker.coordinator.group.streams.records import (
    StreamsMember,
    streams_current_record,
    streams_group_record,
    streams_member_record,
    streams_member_tombstones,
)
from kbroker.coordinator.group.streams.status import StreamsStatus
from kbroker.coordinator.group.streams.tasks import HeldTasks, Tasks, TaskSet
from kbroker.coordinator.group.streams.topology import (
    ConfiguredTopology,
)
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.topics import ClusterTopics
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

_TaskIds = StreamsGroupHeartbeatResponse.TaskIds


class StreamsHeartbeat(msgspec.Struct, frozen=True):
    """The response to a heartbeat. member_id: that of a member that stays. missing: internal topics
    to create. The other attributes are in no record (see StreamsGroup) and are kept once the
    records are written.
    """

    response: StreamsGroupHeartbeatResponse
    member_id: str | None = None
    missing: tuple[CreateTopicsRequest.CreatableTopic, ...] = ()
    configured: ConfiguredTopology | None = None
    has_moved: bool = False
    begins_delay: bool = False
    ends_application: bool = False


def streams_heartbeat(
    group: StreamsGroup, request: StreamsGroupHeartbeatRequest, context: StreamsContext
) -> CoordinatorResult[StreamsHeartbeat]:
    """A heartbeat of a new or existing member. Raises KafkaError."""
    member_id = request.member_id
    current = _find_member(group, request, context.settings)
    former = group.members.get(member_id)
    member = _updated(former, request, context)
    plan = StreamsPlan(group, {**group.members, member_id: member}, context)
    records: list[CoordinatorRecord] = []
    if member != former:
        records.append(streams_member_record(group.group_id, member_id, member))
    records += plan.take_topology(request.topology)
    if group.topology is not None and member.topology_epoch < group.topology.epoch:
        plan.say(
            StreamsStatus.STALE_TOPOLOGY,
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology "
            f"epoch {group.topology.epoch}.",
        )
    plan.configure()
    said = said_of(request)
    if said is not None and plan.configured.is_ready:
        _check_tasks(plan.configured, said)
    records += plan.next_epoch(changed=member != former)
    records += plan.assign()
    after = reconcile(
        current,
        target_epoch=plan.target_epoch,
        target=TaskSet() if context.is_delayed else plan.targets.get(member_id, TaskSet()),
        process_id=member.process_id,
        holders=group,
        said=said,
    )
    if after != current:
        records.append(streams_current_record(group.group_id, member_id, after))
    is_told = request.member_epoch == 0 or after.assigned != current.assigned
    has_moved = is_told and member.user_endpoint is not None
    response = StreamsGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=context.settings.heartbeat_interval_ms,
    )
    if is_told:
        _tell_tasks(response, after.assigned)
    _tell_places(response, group, request, plan, after.assigned, has_moved=has_moved)
    plan.add_problems(request)
    response.status = plan.status
    heartbeat = StreamsHeartbeat(
        response,
        member_id,
        missing=plan.configured.missing,
        configured=plan.configured,
        has_moved=has_moved and group.topology is not None,
        begins_delay=context.is_delayed,
        ends_application=request.shutdown_application,
    )
    return CoordinatorResult(records, heartbeat)


def streams_leave(
    group: StreamsGroup, request: StreamsGroupHeartbeatRequest
) -> CoordinatorResult[StreamsHeartbeat]:
    """A member leaves. Raises KafkaError(UNKNOWN_MEMBER_ID)."""
    member_id = request.member_id
    if member_id not in group.members:
        raise unknown_member(group.group_id, member_id)
    response = StreamsGroupHeartbeatResponse(
        member_id=member_id, member_epoch=request.member_epoch, status=[]
    )
    heartbeat = StreamsHeartbeat(response, ends_application=request.shutdown_application)
    return CoordinatorResult(streams_removal(group, member_id), heartbeat)


def streams_removal(group: StreamsGroup, member_id: str) -> list[CoordinatorRecord]:
    """The removal of a member, and the next group epoch."""
    return [
        *streams_member_tombstones(group.group_id, member_id),
        streams_group_record(
            group.group_id,
            group.epoch + 1,
            group.metadata_hash,
            group.validated_topology_epoch,
            group.assignment_configs,
        ),
    ]


def delayed_assignment(
    group: StreamsGroup, settings: StreamsGroupSettings, topics: ClusterTopics, wall_ms: int
) -> list[CoordinatorRecord]:
    """The first assignment, after its delay."""
    if not group.members or group.configured is None or group.epoch <= group.target_epoch:
        return []
    context = StreamsContext.of(settings, topics, wall_ms)
    plan = StreamsPlan(group, group.members, context)
    return plan.assign()


def said_of(request: StreamsGroupHeartbeatRequest) -> TaskSet | None:
    """The assignment that the member reports; None if the request has none."""
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return TaskSet(*(_said(tasks) for tasks in (active, standby, warmup)))


def _said(tasks: list[StreamsGroupHeartbeatRequest.TaskIds]) -> Tasks:
    return {one.subtopology_id: frozenset(one.partitions) for one in tasks}


# -- steps of a heartbeat --------------------------------------------------------------------


def _find_member(
    group: StreamsGroup, request: StreamsGroupHeartbeatRequest, settings: StreamsGroupSettings
) -> CurrentTasks:
    """Check the sender. Returns its current assignment."""
    member_id, epoch = request.member_id, request.member_epoch
    current = group.current(member_id)
    if epoch == 0:
        if len(group.members) >= settings.max_size:
            raise group_is_full("streams", settings.max_size)
        return current
    if member_id not in group.members:
        raise unknown_member(group.group_id, member_id)
    said = said_of(request)
    if current.state is StreamsMemberState.UNKNOWN and (said is None or said):
        message = "A later Kafka wrote the member's state: let go of all tasks and rejoin."
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    if epoch == current.member_epoch:
        return current
    if (
        epoch < current.member_epoch
        and epoch == current.previous_epoch
        and said is not None
        and current.assigned.has_all(said)
    ):
        return current
    raise fenced_epoch("streams", epoch, current.member_epoch)


def _updated(
    former: StreamsMember | None,
    request: StreamsGroupHeartbeatRequest,
    context: StreamsContext,
) -> StreamsMember:
    """A member's state after this request; null fields keep their values."""
    old = former or StreamsMember(instance_id=None, rack_id=None, topology_epoch=-1)
    timeout_ms, endpoint, tags = (
        request.rebalance_timeout_ms,
        request.user_endpoint,
        request.client_tags,
    )
    member = StreamsMember(
        instance_id=None,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=old.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=old.process_id if request.process_id is None else request.process_id,
        user_endpoint=old.user_endpoint,
        client_tags=old.client_tags,
    )
    if endpoint is not None:
        member.user_endpoint = StreamsMember.Endpoint(host=endpoint.host, port=endpoint.port)
    if tags is not None:
        values = {tag.key: tag.value for tag in tags}
        member.client_tags = [
            StreamsMember.KeyValue(key=key, value=value) for key, value in sorted(values.items())
        ]
    return member


def _check_tasks(configured: ConfiguredTopology, said: TaskSet) -> None:
    """Raises KafkaError(INVALID_REQUEST) for tasks that do not exist."""
    for tasks in (said.active, said.standby, said.warmup):
        for name, partitions in tasks.items():
            subtopology = configured.subtopologies.get(name)
            if subtopology is None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Subtopology {name} does not exist in the topology."
                )
            count = subtopology.task_count
            wrong = [partition for partition in partitions if not 0 <= partition < count]
            if wrong:
                message = f"Task {wrong[0]} for subtopology {name} is invalid."
                message += f" Number of tasks for this subtopology: {count}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _tell_places(
    response: StreamsGroupHeartbeatResponse,
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest,
    plan: StreamsPlan,
    assigned: HeldTasks,
    *,
    has_moved: bool,
) -> None:
    """The endpoints of all members, unless the member already has the current ones."""
    epoch = group.endpoint_epoch + has_moved
    if request.endpoint_information_epoch != epoch:
        held = {key: value.assigned for key, value in group.currents.items()}
        held[request.member_id] = assigned
        response.partitions_by_user_endpoint = partitions_by_endpoint(
            plan.members,
            held,
            last=request.member_id,
            configured=plan.configured,
            topics=plan.topics,
        )
    if group.topology is not None:
        response.endpoint_information_epoch = epoch


def _tell_tasks(response: StreamsGroupHeartbeatResponse, held: HeldTasks) -> None:
    response.active_tasks = [
        _TaskIds(subtopology_id=name, partitions=sorted(dated))
        for name, dated in sorted(held.active.items())
    ]
    response.standby_tasks, response.warmup_tasks = (
        [
            _TaskIds(subtopology_id=name, partitions=sorted(partitions))
            for name, partitions in sorted(tasks.items())
        ]
        for tasks in (held.standby, held.warmup)
    )
