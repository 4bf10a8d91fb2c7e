"""What a streams group answers to StreamsGroupHeartbeat (KIP-1071), and how members end.

Each function looks at a `StreamsGroup` and gives the records that follow, in Kafka's order, with
the response; it changes nothing. A heartbeat goes through up to five steps, each upon the outcome
of the last: the member, the topology, the group's epoch, the target assignment, what the member
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kbroker.coordinator.group.membership.epochs import LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from kbroker.coordinator.group.membership.errors import fenced_epoch, group_is_full, unknown_member
from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.group.membership.overrides import GroupOverrides
from kbroker.coordinator.group.streams.assignor import StreamsWorker, Workload, assign_tasks
from kbroker.coordinator.group.streams.endpoints import partitions_by_endpoint
from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.reconciliation import (
    CurrentTasks,
    StreamsMemberState,
    reconcile,
)
from kbroker.coordinator.group.streams.records import (
    StreamsMember,
    Topology,
    streams_current_record,
    streams_group_record,
    streams_member_record,
    streams_member_tombstones,
    streams_target_epoch_record,
    streams_target_record,
    topology_record,
)
from kbroker.coordinator.group.streams.tasks import HeldTasks, Tasks, TaskSet
from kbroker.coordinator.group.streams.topology import (
    ConfiguredTopology,
    StreamsStatus,
    configure,
    required_topics,
    same_topology,
    topology_of,
)
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import ClusterTopics
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kbroker.protocol.messages.topics import CreateTopicsRequest

NOT_VALIDATED: Final = -1
"""The validated topology epoch of a group whose topics don't fit."""
NUM_STANDBY_REPLICAS: Final = "num.standby.replicas"

_TaskIds = StreamsGroupHeartbeatResponse.TaskIds
_Status = StreamsGroupHeartbeatResponse.Status


class StreamsSettings(Protocol):
    """What of the broker's configuration a streams group reads."""

    @property
    def group_streams_session_timeout_ms(self) -> int: ...
    @property
    def group_streams_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_streams_max_size(self) -> int: ...
    @property
    def group_streams_num_standby_replicas(self) -> int: ...
    @property
    def group_streams_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_streams_assignment_interval_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StreamsGroupSettings:
    """What holds for one group: its own settings over the broker's."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_size: int
    num_standby_replicas: int
    initial_rebalance_delay_ms: int
    assignment_interval_ms: int

    @classmethod
    def of(
        cls, group_id: str, broker: StreamsSettings, overrides: GroupOverrides
    ) -> StreamsGroupSettings:
        """Those of that group, as of now."""

        def own_or(name: str, default: int) -> int:
            own = overrides.get_int(group_id, f"streams.{name}")
            return default if own is None else own

        return cls(
            own_or("session.timeout.ms", broker.group_streams_session_timeout_ms),
            own_or("heartbeat.interval.ms", broker.group_streams_heartbeat_interval_ms),
            broker.group_streams_max_size,
            own_or("num.standby.replicas", broker.group_streams_num_standby_replicas),
            own_or("initial.rebalance.delay.ms", broker.group_streams_initial_rebalance_delay_ms),
            own_or("assignment.interval.ms", broker.group_streams_assignment_interval_ms),
        )


@dataclass(frozen=True, slots=True)
class StreamsSurroundings:
    """What a decision needs besides group and request. wall_ms: now. is_delayed: the first
    assignment of the group is put off until more members are there.
    """

    settings: StreamsGroupSettings
    topics: ClusterTopics
    wall_ms: int
    client_id: str
    client_host: str
    is_delayed: bool = False


@dataclass(frozen=True, slots=True)
class StreamsDecision:
    """records: to be written first. member_id: whose session starts anew. missing: internal topics
    to be created. The rest is what no record tells (see StreamsGroup): to be kept once the records
    are written.
    """

    records: list[CoordinatorRecord]
    response: StreamsGroupHeartbeatResponse
    member_id: str | None = None
    missing: tuple[CreateTopicsRequest.CreatableTopic, ...] = ()
    configured: ConfiguredTopology | None = None
    has_moved: bool = False
    begins_delay: bool = False
    ends_application: bool = False


def check_streams_heartbeat(request: StreamsGroupHeartbeatRequest) -> None:
    """What is wrong with a request by itself. Raises KafkaError(INVALID_REQUEST)."""
    epoch = request.member_epoch
    said = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    problem = None
    if request.instance_id is not None:
        problem = "Static membership is not yet supported."
    elif request.task_offsets is not None:
        problem = "TaskOffsets are not supported yet."
    elif request.task_end_offsets is not None:
        problem = "TaskEndOffsets are not supported yet."
    elif request.warmup_tasks:
        problem = "WarmupTasks are not supported yet."
    elif request.topology is not None and any(
        one.source_topic_regex for one in request.topology.subtopologies
    ):
        problem = "Regular expressions for source topics are not supported yet."
    elif not request.member_id:
        problem = "MemberId can't be empty."
    elif not request.group_id:
        problem = "GroupId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif epoch == 0:
        problem = _problem_of_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        problem = "InstanceId can't be null."
    elif epoch < LEAVE_EPOCH:
        problem = f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    if problem is None and any(tasks is None for tasks in said) and said != (None, None, None):
        problem = "If one task-type is non-null, all must be non-null."
    if problem is None and epoch != 0 and request.topology is not None:
        problem = "Topology can only be provided when (re-)joining."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _problem_of_join(request: StreamsGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            return f"{name} must be empty when (re-)joining."
    if request.topology is None:
        return "Topology must be non-null when (re-)joining."
    return None


def streams_heartbeat(
    group: StreamsGroup, request: StreamsGroupHeartbeatRequest, around: StreamsSurroundings
) -> StreamsDecision:
    """A heartbeat of a member that joins or is there. Raises KafkaError."""
    member_id = request.member_id
    current = _find_member(group, request, around.settings)
    former = group.members.get(member_id)
    member = _updated(former, request, around)
    plan = _Plan(group, {**group.members, member_id: member}, around)
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
        target=TaskSet() if around.is_delayed else plan.targets.get(member_id, TaskSet()),
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
        heartbeat_interval_ms=around.settings.heartbeat_interval_ms,
    )
    if is_told:
        _tell_tasks(response, after.assigned)
    _tell_places(response, group, request, plan, after.assigned, has_moved=has_moved)
    plan.say_what_ails(request)
    response.status = plan.status
    return StreamsDecision(
        records,
        response,
        member_id,
        missing=plan.configured.missing,
        configured=plan.configured,
        has_moved=has_moved and group.topology is not None,
        begins_delay=around.is_delayed,
        ends_application=request.shutdown_application,
    )


def streams_leave(group: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> StreamsDecision:
    """A member goes. Raises KafkaError(UNKNOWN_MEMBER_ID)."""
    member_id = request.member_id
    if member_id not in group.members:
        raise unknown_member(group.group_id, member_id)
    response = StreamsGroupHeartbeatResponse(
        member_id=member_id, member_epoch=request.member_epoch, status=[]
    )
    return StreamsDecision(
        streams_removal(group, member_id), response, ends_application=request.shutdown_application
    )


def streams_removal(group: StreamsGroup, member_id: str) -> list[CoordinatorRecord]:
    """The end of a member, and the group's next epoch."""
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
    """The first assignment, when the time that it was put off for is over."""
    if not group.members or group.configured is None or group.epoch <= group.target_epoch:
        return []
    around = StreamsSurroundings(settings, topics, wall_ms, "", "")
    plan = _Plan(group, group.members, around)
    return plan.assign()


def said_of(request: StreamsGroupHeartbeatRequest) -> TaskSet | None:
    """What the member says it has; None if it did not say."""
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
    """Check who asks; what it has."""
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
    around: StreamsSurroundings,
) -> StreamsMember:
    """What is known of a member after this request: null fields leave it as it was."""
    old = former or StreamsMember(instance_id=None, rack_id=None, topology_epoch=-1)
    timeout_ms, endpoint, tags = (
        request.rebalance_timeout_ms,
        request.user_endpoint,
        request.client_tags,
    )
    member = StreamsMember(
        instance_id=None,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=around.client_id,
        client_host=around.client_host,
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
    """Raises KafkaError(INVALID_REQUEST) for tasks that are none."""
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


class _Plan:
    """The group as it will be with these members: topology, epoch and target."""

    def __init__(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsMember],
        around: StreamsSurroundings,
    ) -> None:
        self._group = group
        self.members = members
        self.topics = around.topics
        self._around = around
        self._epoch = group.epoch
        self._hash = group.metadata_hash
        self._topology = group.topology
        self.configured = group.configured or ConfiguredTopology(0, {})
        self.target_epoch = group.target_epoch
        self.targets: Mapping[str, TaskSet] = group.targets
        self.status: list[_Status] = []

    def say(self, status: StreamsStatus, detail: str) -> None:
        """What the member shall be told."""
        self.status.append(_Status(status_code=int(status), status_detail=detail))

    def say_what_ails(self, request: StreamsGroupHeartbeatRequest) -> None:
        """Topics that don't fit, an application that is to end."""
        if self.configured.problem is not None:
            self.say(*self.configured.problem)
        asked = request.member_id if request.shutdown_application else None
        shutdown_by = self._group.shutdown_by or asked
        if shutdown_by is not None:
            self.say(
                StreamsStatus.SHUTDOWN_APPLICATION,
                f"Streams group member {shutdown_by} encountered a fatal error and requested a "
                "shutdown for the entire application.",
            )

    def take_topology(
        self, told: StreamsGroupHeartbeatRequest.Topology | None
    ) -> list[CoordinatorRecord]:
        """The first member brings the topology; one with an older one may stay."""
        if told is None:
            return []
        topology, known = topology_of(told), self._topology
        if known is None:
            self._topology = topology
            return [topology_record(self._group.group_id, topology)]
        if topology.epoch >= known.epoch and not same_topology(topology, known):
            message = "Topology updates are not supported yet."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return []

    def configure(self) -> None:
        """Look whether the cluster's topics fit, unless they are those of last time."""
        group, topics = self._group, self._around.topics.topics
        topology = self._the_topology()
        if (
            group.configured is not None
            and group.topology is not None
            and group.seen_topics is topics
        ):
            return
        self._hash = metadata_hash(required_topics(topology), self._around.topics)
        if group.configured is None or self._hash != group.metadata_hash:
            self.configured = configure(topology, topics)

    def next_epoch(self, *, changed: bool) -> list[CoordinatorRecord]:
        """A new epoch, if a member, the topics, what fits or the settings are others now."""
        group, settings = self._group, self._around.settings
        validated = self._the_topology().epoch if self.configured.is_ready else NOT_VALIDATED
        configs = {NUM_STANDBY_REPLICAS: str(settings.num_standby_replicas)}
        if not (
            changed
            or self._hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or configs != group.assignment_configs
        ):
            return []
        self._epoch = group.epoch + 1
        record = streams_group_record(group.group_id, self._epoch, self._hash, validated, configs)
        return [record]

    def assign(self) -> list[CoordinatorRecord]:
        """A new target, if the group's epoch is past that of the last and it may be made."""
        if self._around.is_delayed:
            self.say(
                StreamsStatus.ASSIGNMENT_DELAYED,
                "Assignment delayed due to the configured initial rebalance delay.",
            )
            return []
        if self.target_epoch >= self._epoch:
            return []
        if not self._may_assign():
            self.say(
                StreamsStatus.ASSIGNMENT_DELAYED,
                "Assignment delayed due to the configured assignment interval.",
            )
            return []
        group_id, former = self._group.group_id, self.targets
        assigned = self._assigned()
        records = [
            streams_target_record(group_id, member_id, target)
            for member_id, target in assigned.items()
            if former.get(member_id) != target
        ]
        self.targets, self.target_epoch = assigned, self._epoch
        wall_ms = self._around.wall_ms
        return [*records, streams_target_epoch_record(group_id, self._epoch, wall_ms)]

    def _assigned(self) -> dict[str, TaskSet]:
        if not self.configured.is_ready:
            return {member_id: TaskSet() for member_id in self.members}
        workers = {
            member_id: StreamsWorker(member.process_id, self.targets.get(member_id, TaskSet()))
            for member_id, member in self.members.items()
        }
        subtopologies = self.configured.subtopologies
        load = Workload(
            {name: one.task_count for name, one in subtopologies.items()},
            frozenset(name for name, one in subtopologies.items() if one.is_stateful),
            self._around.settings.num_standby_replicas,
        )
        return assign_tasks(workers, load)

    def _may_assign(self) -> bool:
        """Assignments are made at most once per interval, so that many who join are one change."""
        since_ms = self._around.wall_ms - self._group.target_timestamp_ms
        return since_ms >= self._around.settings.assignment_interval_ms or since_ms < 0

    def _the_topology(self) -> Topology:
        """Who joins tells it, and members that joined are in its group."""
        if self._topology is None:
            message = f"Group {self._group.group_id} has no topology: rejoin."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return self._topology


def _tell_places(
    response: StreamsGroupHeartbeatResponse,
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest,
    plan: _Plan,
    assigned: HeldTasks,
    *,
    has_moved: bool,
) -> None:
    """Who is where, unless the member knows."""
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
