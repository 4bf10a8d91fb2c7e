"""The replayed state of one streams group (KIP-1071): members, epochs, the topology, target and
current assignments. Only replay changes it; `membership` makes the decisions.

Empty -> NotReady -> Assigning -> Reconciling -> Stable

Epochs are those of a consumer group. The group is not ready until its topology matches the
cluster's topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.coordinator.group.membership.epochs import FIRST_EPOCH, MEMBER_EPOCH_VERSION
from kbroker.coordinator.group.streams.reconciliation import CurrentTasks, StreamsMemberState
from kbroker.coordinator.group.streams.records import (
    StreamsGroupKey,
    StreamsMember,
    Topology,
    streams_current_of,
    streams_target_of,
)
from kbroker.coordinator.group.streams.tasks import HeldTasks, Task, TaskSet
from kbroker.coordinator.group.streams.topology import ConfiguredTopology, reader_of
from kbroker.protocol.codecs.schema import CoordinatorValue
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.stored.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
)

NOTHING: Final = CurrentTasks()


class StreamsGroup:
    """One group.

    runners: the member that runs a task or has not revoked it yet; keepers: those that keep its
    state. The attributes from `configured` on are in no record, and are computed again after a
    reload: the topology configured against the cluster's topics, the map of topics it was
    configured against, how often the endpoint information changed, and the member that requested
    the shutdown of the application.
    """

    __slots__ = (
        "assignment_configs",
        "configured",
        "currents",
        "endpoint_epoch",
        "epoch",
        "group_id",
        "keepers",
        "members",
        "metadata_hash",
        "runners",
        "seen_topics",
        "shutdown_by",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
        "topology",
        "validated_topology_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.validated_topology_epoch = 0
        self.assignment_configs: dict[str, str] = {}
        self.topology: Topology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.targets: dict[str, TaskSet] = {}
        self.currents: dict[str, CurrentTasks] = {}
        self.runners: dict[Task, str] = {}
        self.keepers: dict[Task, set[str]] = {}
        self.configured: ConfiguredTopology | None = None
        self.seen_topics: object = None
        self.endpoint_epoch = 0
        self.shutdown_by: str | None = None

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: StreamsGroupKey, value: CoordinatorValue | None) -> None:
        """Apply one record; the tombstone of the whole group is handled by `groups`."""
        match key:
            case StreamsGroupMetadataKey():
                if isinstance(value, StreamsGroupMetadataValue):
                    self._replay_group(value)
            case StreamsGroupMemberMetadataKey():
                self.members.pop(key.member_id, None)
                if isinstance(value, StreamsMember):
                    self.members[key.member_id] = value
                elif not self.members:
                    self.shutdown_by = None
            case StreamsGroupTargetAssignmentMetadataKey():
                if isinstance(value, StreamsGroupTargetAssignmentMetadataValue):
                    self.target_epoch = value.assignment_epoch
                    self.target_timestamp_ms = value.assignment_timestamp
            case StreamsGroupTargetAssignmentMemberKey():
                if isinstance(value, StreamsGroupTargetAssignmentMemberValue):
                    self.targets[key.member_id] = streams_target_of(value)
                else:
                    self.targets.pop(key.member_id, None)
            case StreamsGroupCurrentMemberAssignmentKey():
                self._replay_current(key.member_id, value)
            case StreamsGroupTopologyKey():
                self.topology = value if isinstance(value, Topology) else None

    def _replay_group(self, value: StreamsGroupMetadataValue) -> None:
        self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        self.validated_topology_epoch = value.validated_topology_epoch
        self.assignment_configs = {
            config.key: config.value for config in value.last_assignment_configs or ()
        }

    def _replay_current(self, member_id: str, value: CoordinatorValue | None) -> None:
        former = self.currents.pop(member_id, None)
        if former is not None:
            for held in (former.assigned, former.revoking):
                self._let_go(member_id, held)
        if isinstance(value, StreamsGroupCurrentMemberAssignmentValue):
            current = self.currents[member_id] = streams_current_of(value)
            for held in (current.assigned, current.revoking):
                self.runners.update(dict.fromkeys(held.active_tasks(), member_id))
                for task in held.passive_tasks():
                    self.keepers.setdefault(task, set()).add(member_id)

    def _let_go(self, member_id: str, held: HeldTasks) -> None:
        for task in held.active_tasks():
            if self.runners.get(task) == member_id:
                del self.runners[task]
        for task in held.passive_tasks():
            keepers = self.keepers.get(task, set())
            keepers.discard(member_id)
            if not keepers:
                self.keepers.pop(task, None)

    # -- queries -----------------------------------------------------------------------------

    def current(self, member_id: str) -> CurrentTasks:
        """A member's current assignment; empty for an unknown member."""
        return self.currents.get(member_id, NOTHING)

    def state(self) -> str:
        """The state under the name clients see."""
        if not self.members:
            return "Empty"
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return "NotReady"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(self.current(member_id).is_at(self.target_epoch) for member_id in self.members):
            return "Stable"
        return "Reconciling"

    def is_free_to_run(self, task: Task, process_id: str) -> bool:
        """See `reconciliation.Holders`."""
        return task not in self.runners and not self._is_kept_by(task, process_id)

    def is_free_to_keep(self, task: Task, process_id: str) -> bool:
        """See `reconciliation.Holders`."""
        runner = self.runners.get(task)
        is_run = runner is not None and self._process_of(runner) == process_id
        return not is_run and not self._is_kept_by(task, process_id)

    def _is_kept_by(self, task: Task, process_id: str) -> bool:
        keepers = self.keepers.get(task, ())
        return any(self._process_of(member_id) == process_id for member_id in keepers)

    def _process_of(self, member_id: str) -> str | None:
        member = self.members.get(member_id)
        return None if member is None else member.process_id

    def is_unrevoked(self, member_id: str) -> bool:
        """Whether the member was told to revoke tasks and has not confirmed it."""
        return self.current(member_id).state is StreamsMemberState.UNREVOKED_TASKS

    def subscribed_names(self) -> set[str]:
        """The topics that tasks read; none if the group has no members."""
        if self.topology is None or not self.members:
            return set()
        return set(reader_of(self.topology))

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        version: int | None,
        places: Iterable[tuple[str, int]],
    ) -> ErrorCode:
        """Whether a member of this epoch may commit these (topic, partition). An older epoch is
        accepted for the input of active tasks that were assigned in it and still are. version: None
        in a transaction.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version is not None and version < MEMBER_EPOCH_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        current = self.current(member_id)
        if epoch == current.member_epoch:
            return ErrorCode.NONE
        if epoch > current.member_epoch or self.topology is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        readers = reader_of(self.topology)
        for topic, partition in places:
            since = _assigned_since(current, readers.get(topic), partition)
            if since is None or since > epoch:
                return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a client with this member id and epoch may read offsets; without a member id
        (None, -1) it may.
        """
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch != self.current(member_id or "").member_epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE


def _assigned_since(current: CurrentTasks, subtopology: str | None, partition: int) -> int | None:
    """The epoch in which the member got the task that reads the partition; None if it does not have
    that task.
    """
    nothing: Mapping[int, int] = {}
    for held in (current.assigned, current.revoking):
        since = held.active.get(subtopology or "", nothing).get(partition)
        if since is not None and subtopology is not None:
            return since
    return None
