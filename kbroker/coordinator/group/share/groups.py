"""The share groups (KIP-932) of one partition of `__consumer_offsets`: their map, their sessions,
the known states of their partitions, and their descriptions. Requests come through `share_service`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Final, get_args

from msgspec.structs import replace

from kbroker.coordinator.group.epoch_groups import EpochGroups
from kbroker.coordinator.group.kind import GroupChange, GroupType, OffsetCommitter
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.membership.epochs import LEAVE_EPOCH
from kbroker.coordinator.group.membership.errors import group_not_found
from kbroker.coordinator.group.membership.overrides import GroupOverrides
from kbroker.coordinator.group.offsets.expiry import Retention
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.membership import (
    ShareContext,
    ShareHeartbeat,
    ShareSettings,
    share_heartbeat,
    share_leave,
    share_removal,
    with_initializing,
)
from kbroker.coordinator.group.share.records import (
    ShareGroupKey,
    StatePartitions,
    share_group_tombstones,
    state_partitions_record,
)
from kbroker.coordinator.group.share.state_changes import StateChanges
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Result
from kbroker.coordinator.topics import ClusterTopic, ClusterTopics
from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
)
from kbroker.protocol.messages.stored.share_group_records import (
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
)

ASSIGNOR: Final = "simple"
RETRY_MS: Final = 1_000
"""The time after which the removal of a member is retried if its tombstones could not be
written.
"""

_Described = ShareGroupDescribeResponse.DescribedGroup
_Places = ShareGroupDescribeResponse.TopicPartitions
DescribedShareGroup = tuple[_Described, Iterator[ShareGroupDescribeResponse.Member]]
"""A group without members, and an iterator that creates its members one by one."""


class ShareGroups(EpochGroups[ShareGroup]):
    """Groups by id, a GroupKind. topics: returns the cluster's current topics. wall_ms: the wall
    clock. state_changes: those in progress.
    """

    __slots__ = (
        "_deadlines",
        "_initializing_until",
        "_overrides",
        "_sessions",
        "_settings",
        "_topics",
        "_wall_ms",
        "state_changes",
    )

    group_type: ClassVar[GroupType] = GroupType.SHARE
    replays: ClassVar[Collection[type[CoordinatorKey]]] = get_args(ShareGroupKey)
    gives_way_to: ClassVar[Collection[GroupType]] = ()
    keeps_offsets: ClassVar[bool] = False

    def __init__(
        self,
        settings: ShareSettings,
        *,
        topics: Callable[[], ClusterTopics],
        deadlines: Deadlines,
        wall_ms: Callable[[], int],
        overrides: GroupOverrides,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._topics = topics
        self._deadlines = deadlines
        self._wall_ms = wall_ms
        self._overrides = overrides
        self._sessions: dict[tuple[str, str], Deadline] = {}
        self._initializing_until: dict[str, int] = {}
        """By group: until when the initialization requested last is assumed to be in progress."""
        self.state_changes = StateChanges()

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: CoordinatorKey, value: CoordinatorValue | None) -> GroupChange | None:
        """Apply a record of the log."""
        if not isinstance(key, ShareGroupKey):
            return None
        group = self.groups.get(key.group_id)
        if isinstance(key, ShareGroupMetadataKey) and value is None:
            if group is not None:
                del self.groups[key.group_id]
                self._initializing_until.pop(key.group_id, None)
                for member_id in group.members:
                    self._forget(key.group_id, member_id)
            return GroupChange(key.group_id, is_created=False)
        is_new = group is None
        if group is None:
            if value is None:
                return None
            group = self.groups[key.group_id] = ShareGroup(key.group_id)
        group.replay(key, value)
        if isinstance(key, ShareGroupMemberMetadataKey) and value is None:
            self._forget(key.group_id, key.member_id)
        return GroupChange(key.group_id, is_created=True) if is_new else None

    def on_loaded(self, now_ms: int) -> list[Result]:
        """Called after all records were replayed: start the sessions."""
        for group_id, group in self.groups.items():
            for member_id in group.members:
                self._renew(group_id, member_id, now_ms)
        return []

    def unload(self, error: ErrorCode) -> list[Result]:
        """This broker no longer coordinates these groups: cancel all deadlines."""
        for deadline in self._sessions.values():
            self._deadlines.cancel(deadline)
        self._sessions.clear()
        self._initializing_until.clear()
        self.groups.clear()
        return []

    # -- membership --------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ShareGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        now_ms: int,
    ) -> CoordinatorResult[ShareHeartbeat]:
        """ShareGroupHeartbeat, checked by `check_share_heartbeat`. Raises KafkaError."""
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                raise _not_found(request.group_id)
            group = ShareGroup(request.group_id)
        topics = self._topics()
        if request.member_epoch == LEAVE_EPOCH:
            return share_leave(group, request, topics)
        settings, overrides = self._settings, self._overrides
        heartbeat_ms = overrides.get_int(request.group_id, "share.heartbeat.interval.ms")
        assignment_ms = overrides.get_int(request.group_id, "share.assignment.interval.ms")
        context = ShareContext(
            max_size=settings.group_share_max_size,
            heartbeat_interval_ms=settings.group_share_heartbeat_interval_ms
            if heartbeat_ms is None
            else heartbeat_ms,
            assignment_interval_ms=settings.group_share_assignment_interval_ms
            if assignment_ms is None
            else assignment_ms,
            topics=topics,
            wall_ms=self._wall_ms(),
            client_id=client_id,
            client_host=client_host,
            is_initializing=now_ms < self._initializing_until.get(request.group_id, now_ms),
            changes=self.state_changes.of(request.group_id),
        )
        result = share_heartbeat(group, request, context)
        heartbeat = result.answer

        def settle(now_ms: int) -> list[Result]:
            self._settled(request.group_id, heartbeat, topics, now_ms)
            return []

        return result.followed_by(settle)

    def _settled(
        self, group_id: str, decision: ShareHeartbeat, topics: ClusterTopics, now_ms: int
    ) -> None:
        """The decision on a heartbeat, made with these topics, is in the log."""
        group, member_id = self.groups.get(group_id), decision.member_id
        if group is None or member_id is None:
            return
        group.seen_topics = topics.topics
        group.quiet_on = topics.topics if decision.is_quiet else None
        self._renew(group_id, member_id, now_ms)
        if decision.initialize:
            retry_ms = self._settings.group_share_initialize_retry_interval_ms
            self._initializing_until[group_id] = now_ms + retry_ms

    def _renew(self, group_id: str, member_id: str, now_ms: int) -> None:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = Deadline(partial(self._on_session_over, group_id, member_id))
            self._sessions[(group_id, member_id)] = session
        own_ms = self._overrides.get_int(group_id, "share.session.timeout.ms")
        timeout_ms = self._settings.group_share_session_timeout_ms if own_ms is None else own_ms
        self._deadlines.set(session, now_ms + timeout_ms)

    def _forget(self, group_id: str, member_id: str) -> None:
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            self._deadlines.cancel(session)

    def _on_session_over(self, group_id: str, member_id: str, now_ms: int) -> list[Result]:
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            self._forget(group_id, member_id)
            return []

        def then(error: ErrorCode, now_ms: int) -> list[Result]:
            group = self.groups.get(group_id)
            if group is None or member_id not in group.members:
                self._forget(group_id, member_id)
            elif error is not ErrorCode.NONE:
                self._deadlines.set(self._sessions[(group_id, member_id)], now_ms + RETRY_MS)
            return []

        records = share_removal(group, member_id, self._topics())
        return [CoordinatorResult(records, None, on_completion=then)]

    # -- the states of its partitions --------------------------------------------------------

    def initialize(self, group_id: str, places: Assignment) -> list[CoordinatorRecord]:
        """These partitions are to be initialized, or initialized again (AlterShareGroupOffsets)."""
        group = self.groups.get(group_id) or ShareGroup(group_id)
        return [state_partitions_record(group_id, with_initializing(group, places, self._topics()))]

    def initialized(self, group_id: str, places: Assignment) -> list[CoordinatorRecord]:
        """These partitions have been initialized."""
        group = self.groups.get(group_id)
        if group is None:
            return []
        states = group.states
        initializing = dict(states.initializing)
        initialized = dict(states.initialized)
        for topic_id, partitions in places.items():
            made = partitions & initializing.get(topic_id, frozenset())
            if not made:
                continue
            initialized[topic_id] = initialized.get(topic_id, frozenset()) | made
            left = initializing[topic_id] - made
            if left:
                initializing[topic_id] = left
            else:
                del initializing[topic_id]
        after = replace(states, initializing=initializing, initialized=initialized)
        return [] if after == states else [state_partitions_record(group_id, after)]

    def delete_states(self, group_id: str, topic_ids: Iterable[Uuid]) -> list[CoordinatorRecord]:
        """Records that the states of these topics are to be deleted."""
        group = self.groups.get(group_id)
        if group is None:
            return []
        ending = frozenset(topic_ids)
        states = group.states
        after = StatePartitions(
            _without(states.initializing, ending),
            _without(states.initialized, ending),
            states.deleting | ending,
            states.names,
        )
        return [] if after == states else [state_partitions_record(group_id, after)]

    def deleted_states(self, group_id: str, topic_ids: Iterable[Uuid]) -> list[CoordinatorRecord]:
        """Records that the states of these topics were deleted."""
        group = self.groups.get(group_id)
        if group is None:
            return []
        states = group.states
        after = replace(states, deleting=states.deleting - frozenset(topic_ids))
        return [] if after == states else [state_partitions_record(group_id, after)]

    def on_topics_deleted(self, topic_ids: Collection[Uuid]) -> list[CoordinatorRecord]:
        """The states of deleted topics are deleted with them."""
        gone = frozenset(topic_ids)
        records = []
        for group_id, group in self.groups.items():
            states = group.states
            after = StatePartitions(
                _without(states.initializing, gone),
                _without(states.initialized, gone),
                states.deleting - gone,
                states.names,
            )
            if after != states:
                records.append(state_partitions_record(group_id, after))
        return records

    def end(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstones of a group without members. Raises KafkaError: GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP.
        """
        self.require_empty(group_id)
        return share_group_tombstones(group_id)

    def require_empty(self, group_id: str) -> ShareGroup:
        """A group without members. Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.groups.get(group_id)
        if group is None:
            raise _not_found(group_id)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
        return group

    # -- describing groups -------------------------------------------------------------------

    def changes(self, key: CoordinatorKey, value: CoordinatorValue | None) -> str | None:
        """The log line for group epochs."""
        if not isinstance(key, ShareGroupMetadataKey):
            return None
        epoch = value.epoch if isinstance(value, ShareGroupMetadataValue) else None
        return self._changes(key.group_id, epoch)

    def check_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """Share groups have no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_transactional_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """Share groups have no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Share groups have no committed offsets."""
        return ErrorCode.NONE

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Raises KafkaError(GROUP_ID_NOT_FOUND)."""
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)

    def retention(self, group_id: str) -> Retention | None:
        """None: share groups have no committed offsets."""
        return None

    def describe(self, group_id: str) -> DescribedShareGroup:
        """The group and its members."""
        group = self.groups[group_id]
        topics = self._topics().topics_by_id
        described = _Described(
            group_id=group_id,
            group_state=group.state(),
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=ASSIGNOR,
        )
        members = (
            ShareGroupDescribeResponse.Member(
                member_id=member_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                assignment=_described(group.current(member_id).assigned, topics),
            )
            for member_id, member in list(group.members.items())
        )
        return described, members

    def describe_missing(self, group_id: str, message: str, version: int) -> DescribedShareGroup:
        """The description with an error, also for groups of other types."""
        error = _not_found(group_id)
        refusal = _Described(group_id=group_id, error_code=error.code, error_message=error.message)
        return refusal, iter(())


def _not_found(group_id: str) -> KafkaError:
    return group_not_found("share", group_id)


def _without(places: Assignment, topic_ids: frozenset[Uuid]) -> Assignment:
    return {
        topic_id: partitions for topic_id, partitions in places.items() if topic_id not in topic_ids
    }


def _described(
    assignment: Assignment, topics: Mapping[Uuid, ClusterTopic]
) -> ShareGroupDescribeResponse.Assignment:
    return ShareGroupDescribeResponse.Assignment(
        topic_partitions=[
            _Places(topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
            if (topic := topics.get(topic_id)) is not None
        ]
    )
