"""A streams group after a heartbeat: topology, epoch and target assignment, each based on the
result of the one before. `membership` has the steps before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.group.streams.assignor import StreamsWorker, Workload, assign_tasks
from kbroker.coordinator.group.streams.context import StreamsContext
from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.records import (
    StreamsMember,
    Topology,
    streams_group_record,
    streams_target_epoch_record,
    streams_target_record,
    topology_record,
)
from kbroker.coordinator.group.streams.status import StreamsStatus
from kbroker.coordinator.group.streams.tasks import TaskSet
from kbroker.coordinator.group.streams.topology import (
    ConfiguredTopology,
    configure,
    required_topics,
    same_topology,
    topology_of,
)
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

NOT_VALIDATED: Final = -1
"""The validated topology epoch of a group whose topics do not match its topology."""
NUM_STANDBY_REPLICAS: Final = "num.standby.replicas"

_Status = StreamsGroupHeartbeatResponse.Status


class StreamsPlan:
    """The group with these members: topology, epoch and target."""

    def __init__(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsMember],
        context: StreamsContext,
    ) -> None:
        self._group = group
        self.members = members
        self.topics = context.topics
        self._context = context
        self._epoch = group.epoch
        self._hash = group.metadata_hash
        self._topology = group.topology
        self.configured = group.configured or ConfiguredTopology(0, {})
        self.target_epoch = group.target_epoch
        self.targets: Mapping[str, TaskSet] = group.targets
        self.status: list[_Status] = []

    def say(self, status: StreamsStatus, detail: str) -> None:
        """Add a status to the response."""
        self.status.append(_Status(status_code=int(status), status_detail=detail))

    def add_problems(self, request: StreamsGroupHeartbeatRequest) -> None:
        """Add the statuses for topics that do not match, and for a requested shutdown of the
        application.
        """
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
        """The first member sets the topology; a member with an older one may stay."""
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
        """Configure the topology against the cluster's topics, unless they are unchanged."""
        group, topics = self._group, self._context.topics.topics
        topology = self._the_topology()
        if (
            group.configured is not None
            and group.topology is not None
            and group.seen_topics is topics
        ):
            return
        self._hash = metadata_hash(required_topics(topology), self._context.topics)
        if group.configured is None or self._hash != group.metadata_hash:
            self.configured = configure(topology, topics)

    def next_epoch(self, *, changed: bool) -> list[CoordinatorRecord]:
        """A new epoch, if a member, the topics, the configured topology or the settings have
        changed.
        """
        group, settings = self._group, self._context.settings
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
        """A new target, if the group epoch is above that of the last target and an assignment is
        allowed now.
        """
        if self._context.is_delayed:
            self.say(
                StreamsStatus.ASSIGNMENT_DELAYED,
                "Assignment delayed due to the configured initial rebalance delay.",
            )
            return []
        if self.target_epoch >= self._epoch:
            return []
        if not self._context.may_assign(self._group.target_timestamp_ms):
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
        wall_ms = self._context.wall_ms
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
            self._context.settings.num_standby_replicas,
        )
        return assign_tasks(workers, load)

    def _the_topology(self) -> Topology:
        """The topology: a joining member has it in its request, and the group of an existing member
        has it.
        """
        if self._topology is None:
            message = f"Group {self._group.group_id} has no topology: rejoin."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return self._topology
