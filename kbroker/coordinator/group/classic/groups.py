"""The classic groups of one partition of `__consumer_offsets`, as a `GroupKind`.

The durable state is in `metadata`, the last record of every group, which only replay changes. The
`groups` add the state of a rebalance; after a load they are built from `metadata`. A group may
exist without a record: offsets that are committed without a member belong to a classic group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from random import Random
from typing import ClassVar, Final, Protocol

from kbroker.coordinator.group.classic.generation import GroupSettings
from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.classic.memory import MemberMemory, PendingMembers
from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.kind import GroupChange, GroupType, OffsetCommitter
from kbroker.coordinator.group.membership.embedded_protocol import PROTOCOL_TYPE
from kbroker.coordinator.group.membership.join import Join
from kbroker.coordinator.group.membership.leave import leave_response
from kbroker.coordinator.group.offsets.expiry import Retention
from kbroker.coordinator.group.records import group_metadata_record, group_tombstone
from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import (
    CoordinatorResult,
    DeferredResponse,
    Reply,
    Result,
    Results,
)
from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue, Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    DescribeGroupsResponse,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from kbroker.protocol.messages.stored.group_records import GroupMetadataKey, GroupMetadataValue

DESCRIBE_NOT_FOUND_VERSION: Final = 6
"""From this DescribeGroups version on an unknown group is an error; before, it is described as
dead.
"""

_DescribedGroup = DescribeGroupsResponse.DescribedGroup
_DescribedMember = DescribeGroupsResponse.DescribedGroupMember


def _answered_by(waiter: DeferredResponse, results: Results) -> CoordinatorResult[Message]:
    """The decision on a request that is answered by a Reply to its waiter, in results or in a later
    decision.
    """
    return CoordinatorResult((), waiter, on_written=lambda now_ms: results)


class ClassicSettings(GroupSettings, Protocol):
    """The part of the broker's configuration that classic groups read."""

    @property
    def kbroker_group_max_pending_members(self) -> int: ...


class ClassicGroups:
    """Groups by id. wall_ms: the wall clock. memory: shared by the shards of a coordinator.
    is_other_type: whether an id belongs to a group of another type.
    """

    __slots__ = (
        "_deadlines",
        "_is_other_type",
        "_memory",
        "_pending_members",
        "_random",
        "_settings",
        "_wall_ms",
        "groups",
        "metadata",
    )

    group_type: ClassVar[GroupType] = GroupType.CLASSIC
    replays: ClassVar[Collection[type[CoordinatorKey]]] = (GroupMetadataKey,)
    gives_way_to: ClassVar[Collection[GroupType]] = (GroupType.CONSUMER, GroupType.STREAMS)
    keeps_offsets: ClassVar[bool] = True

    def __init__(
        self,
        settings: ClassicSettings,
        *,
        deadlines: Deadlines,
        random: Random,
        wall_ms: Callable[[], int],
        memory: MemberMemory,
        is_other_type: Callable[[str], bool],
    ) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.metadata: dict[str, GroupMetadataValue] = {}
        """The last record of every group that has one."""
        self._settings = settings
        self._deadlines = deadlines
        self._random = random
        self._wall_ms = wall_ms
        self._memory = memory
        self._is_other_type = is_other_type
        self._pending_members = PendingMembers(settings.kbroker_group_max_pending_members)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self.groups

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    # -- replay and lifecycle ----------------------------------------------------------------

    def replay(self, key: CoordinatorKey, value: CoordinatorValue | None) -> GroupChange | None:
        """Apply the last record of a group; the live group is built by `on_loaded`."""
        if not isinstance(key, GroupMetadataKey):
            return None
        if isinstance(value, GroupMetadataValue):
            self.metadata[key.group] = value
            return None
        self.metadata.pop(key.group, None)
        group = self.groups.pop(key.group, None)
        if group is not None:
            group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return GroupChange(key.group, is_created=False)

    def on_loaded(self, now_ms: int) -> list[Result]:
        """Build the groups from their last records; sessions start."""
        results: list[Result] = []
        for group_id, value in self.metadata.items():
            if self._is_other_type(group_id):
                continue
            group = self.groups.get(group_id)
            if group is None:
                group = self.create(group_id)
            group.restore(value, now_ms)
            results += group.on_loaded(now_ms)
        return results

    def unload(self, error: ErrorCode) -> list[Result]:
        """Answer every waiting member with error, and cancel all deadlines."""
        results: list[Result] = []
        for group in self.groups.values():
            results += group.unload(error)
        self.groups.clear()
        return results

    def on_topics_deleted(self, topic_ids: Collection[Uuid]) -> list[CoordinatorRecord]:
        """None: classic groups know topics by the metadata of their members only."""
        return []

    def changes(self, key: CoordinatorKey, value: CoordinatorValue | None) -> str | None:
        """The log line for generations, and for groups that are created or deleted."""
        if not isinstance(key, GroupMetadataKey):
            return None
        if not isinstance(value, GroupMetadataValue):
            return None if self._is_other_type(key.group) else f"group {key.group} deleted"
        if value.members:
            return (
                f"group {key.group} generation {value.generation}: {len(value.members)} members, "
                f"protocol {value.protocol}, leader {value.leader}"
            )
        if value.generation == 0:
            return f"group {key.group} created"
        return f"group {key.group} generation {value.generation}: empty"

    def superseded(self) -> list[str]:
        """Ids with a record of a classic group that belong to a group of another type."""
        return [group_id for group_id in self.metadata if self._is_other_type(group_id)]

    # -- creating and deleting groups --------------------------------------------------------

    def ensure(self, group_id: str) -> None:
        """Create a classic group with that id, to which committed offsets belong, unless there is a
        group.
        """
        if group_id not in self.groups and not self._is_other_type(group_id):
            self.create(group_id)

    def create(self, group_id: str) -> ClassicGroup:
        """A new group without members."""
        group = self.groups[group_id] = self.detached(group_id)
        return group

    def detached(self, group_id: str) -> ClassicGroup:
        """A new group that is not in the map yet."""
        return ClassicGroup(
            group_id,
            settings=self._settings,
            deadlines=self._deadlines,
            random=self._random,
            wall_ms=self._wall_ms,
            pending_members=self._pending_members,
            memory=self._memory,
        )

    def give_way(self, group_id: str) -> None:
        """Remove the group: a group of another type with this id was created."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def create_by_join(
        self, group_id: str, join: Join, former: Sequence[CoordinatorRecord], now_ms: int
    ) -> CoordinatorResult[Message]:
        """The first JoinGroup of a member creates the group. former: tombstones of a group of
        another type with that id; they are in one batch with the first record of the new group, so
        that the id always belongs to exactly one group.
        """
        group = self.create(group_id)
        record = group_metadata_record(group_id, group.empty_value())
        results = group.join(join, now_ms)
        if not former and any(isinstance(result, CoordinatorResult) for result in results):
            return _answered_by(join.waiter, results)
        then = partial(self._on_creation_appended, group, join)
        creation: Result = CoordinatorResult([*former, record], None, on_completion=then)
        return _answered_by(join.waiter, [creation, *results])

    def _on_creation_appended(
        self, group: ClassicGroup, join: Join, error: ErrorCode, now_ms: int
    ) -> list[Result]:
        if error is ErrorCode.NONE or self.groups.get(group.group_id) is not group:
            return []  # a group that was replaced meanwhile has answered its members
        if self._is_other_type(group.group_id):
            del self.groups[group.group_id]  # the append was rejected: the former group stays
            return group.unload(error)
        return group.abandon_creation(join.waiter, error, now_ms)

    def is_idle(self, group_id: str) -> bool:
        """Whether the group has no members."""
        return self.groups[group_id].is_idle

    def has_record(self, group_id: str) -> bool:
        """Whether the log has a record of the group, besides its offsets."""
        return group_id in self.metadata

    def end(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstone of a group."""
        return [group_tombstone(group_id)]

    # -- the classic protocol ----------------------------------------------------------------

    def join(self, group_id: str, join: Join, now_ms: int) -> CoordinatorResult[Message]:
        """JoinGroup to a group that exists."""
        return _answered_by(join.waiter, self.groups[group_id].join(join, now_ms))

    def sync(self, request: SyncGroupRequest, now_ms: int) -> CoordinatorResult[Message]:
        """SyncGroup."""
        waiter: DeferredResponse = Deferred()
        group = self.groups[request.group_id]
        return _answered_by(waiter, group.sync(request, waiter, now_ms))

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat."""
        return self.groups[request.group_id].heartbeat(request, now_ms)

    def leave(
        self,
        group_id: str,
        leaving: Sequence[LeaveGroupRequest.MemberIdentity],
        now_ms: int,
    ) -> CoordinatorResult[Message]:
        """LeaveGroup: one result per identity, in order, once the record of the group is committed
        if it became empty.
        """
        errors, results = self.groups[group_id].leave(leaving, now_ms)
        records: list[CoordinatorRecord] = []
        replies: list[Reply] = []
        for result in results:
            if isinstance(result, Reply):
                replies.append(result)
            else:
                records += result.records
        return CoordinatorResult(records, leave_response(leaving, errors), replies=replies)

    def leave_errors(
        self, group_id: str, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """The error that `leave` would return for each identity separately."""
        return self.groups[group_id].leave_errors(leaving)

    # -- offsets -----------------------------------------------------------------------------

    def check_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """Whether that member of that generation may commit."""
        return self.groups[group_id].check_commit(
            committer.member_id, committer.instance_id, committer.epoch
        )

    def check_transactional_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """As `check_commit`, in a transaction, where a rebalance does not matter (KIP-447)."""
        group = self.groups[group_id]
        if committer.epoch < 0 and (committer.names_no_member or group.state is GroupState.EMPTY):
            return ErrorCode.NONE
        error = group.check_member(committer.member_id, committer.instance_id)
        if error is ErrorCode.NONE and committer.epoch != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """NONE: every client may read the offsets of a classic group."""
        return ErrorCode.NONE

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A commit was accepted: renew the member's session."""
        group = self.groups.get(group_id)
        if group is not None:
            group.touch(member_id, now_ms)

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics that members of this generation subscribe to. Raises KafkaError(NON_EMPTY_GROUP)
        if the members are not consumers.
        """
        group = self.groups[group_id]
        if group.state is GroupState.EMPTY:
            return frozenset()
        if group.protocol_type != PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return group.subscribed_topics()

    def retention(self, group_id: str) -> Retention | None:
        """The retention time starts when the group becomes empty, for a simple consumer with the
        commit. While a group has members, offsets expire only of topics without a subscriber.
        """
        group = self.groups[group_id]
        if group.protocol_type is None:
            return Retention(())
        if group.state is GroupState.EMPTY:
            return Retention((), group.state_since_ms)
        subscribed = group.subscribed_topics() if group.state is GroupState.STABLE else None
        return None if subscribed is None else Retention(subscribed)

    # -- describing groups -------------------------------------------------------------------

    def listed(self, states: Set[str]) -> Iterator[ListGroupsResponse.ListedGroup]:
        """The groups in one of these states, in lower case; all groups if there are none."""
        for group in self.groups.values():
            if states and group.state.value.lower() not in states:
                continue
            yield ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=self.group_type.value,
            )

    def describe(self, group_id: str) -> tuple[_DescribedGroup, Iterator[_DescribedMember]]:
        """The group and its members. Subscriptions and assignments are included while the group is
        stable.
        """
        group = self.groups[group_id]
        is_stable, protocol_name = group.state is GroupState.STABLE, group.protocol_name
        described = _DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(protocol_name or "") if is_stable else "",
        )
        members = (
            _DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol_name) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in list(group.members.values())
        )
        return described, members

    def describe_missing(
        self, group_id: str, message: str, version: int
    ) -> tuple[_DescribedGroup, Iterator[_DescribedMember]]:
        """A dead group; from DESCRIBE_NOT_FOUND_VERSION on with an error."""
        described = _DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= DESCRIBE_NOT_FOUND_VERSION:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = message
        return described, iter(())
