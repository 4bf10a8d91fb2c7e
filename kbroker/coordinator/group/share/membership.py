"""The response of a share group to ShareGroupHeartbeat (KIP-932), and the removal of members.

Each function reads a `ShareGroup` and returns the records of the decision, in Kafka's order, with
the response; it changes nothing. A heartbeat has five steps, each based on the result of the one
before: the member, the group epoch, the target assignment, the current assignment, and the
partitions to initialize in `__share_group_state`. Only initialized partitions are assigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from kbroker.coordinator.group.membership.assignment import Assignment, Subscriber
from kbroker.coordinator.group.membership.context import AssignmentContext
from kbroker.coordinator.group.membership.epochs import LEAVE_EPOCH
from kbroker.coordinator.group.membership.errors import fenced_epoch, group_is_full, unknown_member
from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.group.membership.subscriptions import Subscription, all_topics
from kbroker.coordinator.group.share.assignor import assign_simple
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.records import (
    ShareCurrent,
    ShareMember,
    StatePartitions,
    share_current_record,
    share_group_record,
    share_member_record,
    share_member_tombstones,
    share_target_epoch_record,
    share_target_record,
    state_partitions_record,
)
from kbroker.coordinator.group.share.state_changes import StateChange
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.coordinator.topics import ClusterTopics
from kbroker.model import Uuid
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


class ShareSettings(Protocol):
    """The part of the broker's configuration that the membership of share groups reads."""

    @property
    def group_share_session_timeout_ms(self) -> int: ...
    @property
    def group_share_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_share_max_size(self) -> int: ...
    @property
    def group_share_assignment_interval_ms(self) -> int: ...
    @property
    def group_share_initialize_retry_interval_ms(self) -> int: ...


class ShareContext(AssignmentContext, kw_only=True):
    """is_initializing: whether the partitions that the log has as initializing are being
    initialized for members now. changes: those of the group's states that are in progress.
    """

    max_size: int
    is_initializing: bool
    changes: Sequence[StateChange] = ()


class ShareHeartbeat(msgspec.Struct, frozen=True):
    """The response to a heartbeat. member_id: that of a member that stays. initialize: partitions
    to initialize once the records are committed. is_quiet: whether no partition is left to assign
    or initialize.
    """

    response: ShareGroupHeartbeatResponse
    member_id: str | None = None
    initialize: Assignment | None = None
    is_quiet: bool = False


def share_heartbeat(
    group: ShareGroup, request: ShareGroupHeartbeatRequest, context: ShareContext
) -> CoordinatorResult[ShareHeartbeat]:
    """The heartbeat of a new or existing member. Raises KafkaError."""
    member_id = request.member_id
    former = group.members.get(member_id)
    _check_member(group, request, context.max_size)
    member = _updated(former, request, context)
    records = []
    if member != former:
        records.append(share_member_record(group.group_id, member_id, member))
    names = None if former is None else former.subscribed_topic_names
    changed = member.subscribed_topic_names != names
    is_quiet = not changed and group.quiet_on is context.topics.topics
    target_epoch, target = group.target_epoch, group.targets.get(member_id, {})
    initialize: Assignment = {}
    if not is_quiet:
        plan = _Plan(group, member_id, member, context)
        records += plan.advance(changed=changed)
        target_epoch, target = plan.target_epoch, plan.target
        initialize = plan.to_initialize()
        is_quiet = plan.is_quiet
    current = group.current(member_id)
    taken = _taken(current, target_epoch, target, member, context.topics, changed=changed)
    if taken is not current:
        records.append(share_current_record(group.group_id, member_id, taken))
    if initialize:
        records.append(
            state_partitions_record(
                group.group_id, with_initializing(group, initialize, context.topics)
            )
        )
    response = ShareGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=taken.member_epoch,
        heartbeat_interval_ms=context.heartbeat_interval_ms,
    )
    is_full = request.member_epoch == 0 or request.subscribed_topic_names is not None
    if is_full or taken.assigned != current.assigned:
        response.assignment = _assignment(taken.assigned)
    heartbeat = ShareHeartbeat(response, member_id, initialize or None, is_quiet)
    return CoordinatorResult(records, heartbeat)


def _taken(
    current: ShareCurrent,
    target_epoch: int,
    target: Assignment,
    member: ShareMember,
    topics: ClusterTopics,
    *,
    changed: bool,
) -> ShareCurrent:
    """The member's assignment after this heartbeat: its target, without topics to which it no
    longer subscribes. changed: whether its subscription changed. Returns current if nothing
    changes.
    """
    if current.member_epoch == target_epoch and not changed:
        return current
    subscribed = frozenset(member.subscribed_topic_names)
    assigned = {
        topic_id: partitions
        for topic_id, partitions in target.items()
        if (topic := topics.topics_by_id.get(topic_id)) is not None and topic.name in subscribed
    }
    if current.member_epoch != target_epoch:
        return ShareCurrent(target_epoch, current.member_epoch, assigned)
    return current if assigned == current.assigned else replace(current, assigned=assigned)


def share_leave(
    group: ShareGroup, request: ShareGroupHeartbeatRequest, topics: ClusterTopics
) -> CoordinatorResult[ShareHeartbeat]:
    """A member leaves. Raises KafkaError(UNKNOWN_MEMBER_ID)."""
    if request.member_id not in group.members:
        raise unknown_member(group.group_id, request.member_id)
    response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    records = share_removal(group, request.member_id, topics)
    return CoordinatorResult(records, ShareHeartbeat(response))


def share_removal(
    group: ShareGroup, member_id: str, topics: ClusterTopics
) -> list[CoordinatorRecord]:
    """The removal of a member, and the next group epoch."""
    left = all_topics(group.subscriptions.without((member_id,)))
    return [
        *share_member_tombstones(group.group_id, member_id),
        share_group_record(group.group_id, group.epoch + 1, metadata_hash(left, topics)),
    ]


def _check_member(group: ShareGroup, request: ShareGroupHeartbeatRequest, max_size: int) -> None:
    """Raises KafkaError: GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH."""
    epoch = request.member_epoch
    if request.member_id not in group.members:
        if epoch != 0:
            raise unknown_member(group.group_id, request.member_id)
        if len(group.members) >= max_size:
            raise group_is_full("share", max_size)
        return
    current = group.current(request.member_id)
    if epoch not in (0, current.member_epoch, current.previous_epoch):
        previous = f", and it does not match the previous member epoch ({current.previous_epoch})"
        detail = previous if epoch < current.member_epoch else ""
        raise fenced_epoch("share", epoch, current.member_epoch, detail)


def _updated(
    former: ShareMember | None, request: ShareGroupHeartbeatRequest, context: ShareContext
) -> ShareMember:
    """A member's state after this request; null fields keep their values."""
    names = request.subscribed_topic_names
    known = [] if former is None else former.subscribed_topic_names
    rack_id = None if former is None else former.rack_id
    return ShareMember(
        rack_id=rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=known if names is None else sorted(set(names)),
    )


class _Plan:
    """The group with this member: epoch and target. is_quiet: whether no partition is left to
    assign or initialize.
    """

    def __init__(
        self, group: ShareGroup, member_id: str, member: ShareMember, context: ShareContext
    ) -> None:
        self._group = group
        self._member_id = member_id
        self._member = member
        self._context = context
        self._epoch = group.epoch
        self.target_epoch = group.target_epoch
        self._targets: Mapping[str, Assignment] = group.targets
        self._subscription = group.subscriptions.find(member.subscribed_topic_names)
        self._subscriptions: list[Subscription] = group.subscriptions.without((member_id,))
        if self._subscription not in self._subscriptions:
            self._subscriptions.append(self._subscription)
        self._topics = {
            topic.topic_id: topic
            for name in sorted(all_topics(self._subscriptions))
            if (topic := context.topics.topics.get(name)) is not None
        }
        self.is_quiet = False

    @property
    def target(self) -> Assignment:
        """The member's target assignment."""
        return self._targets.get(self._member_id, {})

    def advance(self, *, changed: bool) -> list[CoordinatorRecord]:
        """The records of the next epoch and target. changed: a member or its subscription is
        new.
        """
        group, topics = self._group, self._context.topics
        records: list[CoordinatorRecord] = []
        new_hash = group.metadata_hash
        if changed or group.seen_topics is not topics.topics:
            names = {topic.name for topic in self._topics.values()}
            new_hash = metadata_hash(names, topics)
        if changed or new_hash != group.metadata_hash or self._has_new_states():
            self._epoch = group.epoch + 1
            records.append(share_group_record(group.group_id, self._epoch, new_hash))
        if self._epoch > self.target_epoch and self._context.may_assign(
            self._group.target_timestamp_ms
        ):
            records += self._assign()
        return records

    def _assignable(self) -> dict[Uuid, frozenset[int]]:
        """Initialized partitions of subscribed topics."""
        return {
            topic_id: frozenset(partitions)
            for topic_id, partitions in self._group.states.initialized.items()
            if topic_id in self._topics
        }

    def _has_new_states(self) -> bool:
        """Whether partitions were initialized since the last assignment."""
        if self._epoch > self.target_epoch:
            return False  # an assignment is due anyway
        assigned: dict[Uuid, set[int]] = {}
        for target in self._targets.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            not partitions <= assigned.get(topic_id, frozenset())
            for topic_id, partitions in self._assignable().items()
        )

    def _assign(self) -> list[CoordinatorRecord]:
        group, topics = self._group, self._context.topics.topics
        topic_ids = {
            subscription: frozenset(
                topics[name].topic_id for name in subscription.topics() if name in topics
            )
            for subscription in self._subscriptions
        }
        of = group.subscriptions.of
        subscribers = {
            member_id: Subscriber(
                name=member_id,
                topics=topic_ids[
                    self._subscription if member_id == self._member_id else of(member_id)
                ],
                current=self._targets.get(member_id, {}),
            )
            for member_id in {**group.members, self._member_id: self._member}
        }
        assigned = assign_simple(subscribers, self._assignable())
        records = [
            share_target_record(group.group_id, member_id, assignment)
            for member_id, assignment in assigned.items()
            if self._targets.get(member_id) != assignment
        ]
        self._targets, self.target_epoch = assigned, self._epoch
        wall_ms = self._context.wall_ms
        return [*records, share_target_epoch_record(group.group_id, self._epoch, wall_ms)]

    def to_initialize(self) -> Assignment:
        """Partitions of subscribed topics that are neither initialized nor being initialized. Left
        out are topics whose states are being reset or deleted: initializing them would undo the
        reset, or leave a state that the log does not have. A failed deletion of states is ignored:
        the states are initialized again.
        """
        states, found = self._group.states, {}
        others = [change for change in self._context.changes if not change.for_members]
        is_complete = True
        for topic_id, topic in self._topics.items():
            if any(change.concerns(topic_id) for change in others):
                is_complete = False
                continue
            missing = topic.partitions.keys() - states.initialized.get(topic_id, frozenset())
            is_complete = is_complete and not missing
            if self._context.is_initializing:
                missing -= states.initializing.get(topic_id, frozenset())
            if missing:
                found[topic_id] = frozenset(missing)
        self.is_quiet = is_complete and self._epoch <= self.target_epoch
        return found


def with_initializing(
    group: ShareGroup, added: Assignment, topics: ClusterTopics
) -> StatePartitions:
    """The group's states after these partitions are initialized; a started deletion is dropped."""
    states = group.states
    by_id = topics.topics_by_id
    return replace(
        states,
        initializing={
            **states.initializing,
            **{
                topic_id: states.initializing.get(topic_id, frozenset()) | partitions
                for topic_id, partitions in added.items()
            },
        },
        deleting=states.deleting - added.keys(),
        names={
            **states.names,
            **{topic_id: by_id[topic_id].name for topic_id in added if topic_id in by_id},
        },
    )


def _assignment(assigned: Assignment) -> ShareGroupHeartbeatResponse.Assignment:
    return ShareGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ShareGroupHeartbeatResponse.TopicPartitions(
                topic_id=topic_id, partitions=sorted(partitions)
            )
            for topic_id, partitions in assigned.items()
        ]
    )
