"""One partition of `__consumer_offsets` as state: the groups whose ids hash to it, and their
offsets.

What must survive is in `metadata` (the last record of every group) and in `offsets`; both change by
replay only. The live `groups` hold on top of it what a rebalance is about; after a reload they are
built from `metadata`. A core: time, randomness and the log are its caller's (`runtime`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Final, Protocol

from kbroker.coordinator.classic_group import (
    ClassicGroup,
    GroupSettings,
    join_error,
)
from kbroker.coordinator.deadlines import Deadline, Deadlines
from kbroker.coordinator.effects import Append, Effect, Reply, Waiter
from kbroker.coordinator.group_members import UNKNOWN_MEMBER, Join
from kbroker.coordinator.group_state import GroupState
from kbroker.coordinator.offsets import OffsetStore
from kbroker.coordinator.records import (
    NO_EXPIRY,
    CoordinatorRecord,
    decode_record,
    group_metadata_record,
    group_tombstone,
    offset_tombstone,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.messages.groups import (
    DescribeGroupsResponse,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP_ID_NOT_FOUND_VERSION: Final = 9
"""From this OffsetCommit on a member of an unknown group is told so; before, its generation is
called illegal.
"""
DESCRIBE_NOT_FOUND_VERSION: Final = 6
"""From this DescribeGroups on an unknown group is an error; before, it is a dead group."""
TOMBSTONES_PER_BATCH: Final = 1000
CLASSIC_TYPE: Final = "classic"


class ShardSettings(GroupSettings, Protocol):
    """What of the broker's configuration a shard reads."""

    @property
    def offsets_retention_minutes(self) -> int: ...
    @property
    def offsets_retention_check_interval_ms(self) -> int: ...


class GroupShard:
    """The groups of one partition.

    wall_ms: the wall clock, for what is stored and how old that is. The now_ms of requests and
    deadlines is monotonic: a jump of the wall clock expires no member.
    """

    __slots__ = (
        "_deadlines",
        "_expiry",
        "_random",
        "_settings",
        "_wall_ms",
        "groups",
        "metadata",
        "offsets",
    )

    def __init__(self, settings: ShardSettings, random: Random, wall_ms: Callable[[], int]) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.metadata: dict[str, GroupMetadataValue] = {}
        """The last record of every group that has one."""
        self.offsets = OffsetStore()
        self._settings = settings
        self._random = random
        self._wall_ms = wall_ms
        self._deadlines = Deadlines()
        self._expiry = Deadline(self._on_expiry)

    # -- replay ------------------------------------------------------------------------------

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """See `records.decode_record`."""
        return decode_record(key, value)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record that is in the log."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey) and not isinstance(value, GroupMetadataValue):
            offset = value if isinstance(value, OffsetCommitValue) else None
            self.offsets.replay(key, offset)
            if offset is not None and key.group not in self.groups:
                self._create(key.group)
        elif isinstance(key, GroupMetadataKey):
            if isinstance(value, GroupMetadataValue):
                self.metadata[key.group] = value
            else:
                self.metadata.pop(key.group, None)
                group = self.groups.pop(key.group, None)
                if group is not None:
                    group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        """Apply a record of a transaction that is not over."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            offset = value if isinstance(value, OffsetCommitValue) else None
            self.offsets.replay_pending(producer_id, key, offset)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker that ends a transaction."""
        for group_id in self.offsets.end_transaction(producer_id, commit=commit):
            if group_id not in self.groups:
                self._create(group_id)

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """All records were replayed: bring the groups to life."""
        effects: list[Effect] = []
        for group_id, value in self.metadata.items():
            group = self.groups.get(group_id)
            if group is None:
                group = self._create(group_id)
            group.restore(value, now_ms)
            effects += group.on_loaded(now_ms)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._deadlines.set(self._expiry, now_ms + interval_ms)
        return effects

    def unload(self, error: ErrorCode) -> list[Effect]:
        """This broker no longer coordinates these groups: answer everybody who waits."""
        effects: list[Effect] = []
        for group in self.groups.values():
            effects += group.unload(error)
        self.groups = {}
        return effects

    def next_deadline_ms(self) -> int | None:
        """When to call `on_deadline`; perhaps early."""
        return self._deadlines.next_ms()

    def on_deadline(self, now_ms: int) -> list[Effect]:
        """What is due."""
        return self._deadlines.fire(now_ms)

    def news(self, record: CoordinatorRecord) -> str | None:
        """Generations, and groups that come and go; offsets are no news."""
        key, value = record.key, record.value
        if not isinstance(key, GroupMetadataKey):
            return None
        if not isinstance(value, GroupMetadataValue):
            return f"group {key.group} deleted"
        if value.members:
            return (
                f"group {key.group} generation {value.generation}: {len(value.members)} members, "
                f"protocol {value.protocol}, leader {value.leader}"
            )
        if value.generation == 0:
            return f"group {key.group} created"
        return f"group {key.group} generation {value.generation}: empty"

    # -- membership --------------------------------------------------------------------------

    def join(self, group_id: str, join: Join, now_ms: int) -> list[Effect]:
        """JoinGroup. A group comes into being when somebody without a member id joins it."""
        group = self.groups.get(group_id)
        if group is not None:
            return group.join(join, now_ms)
        if join.member_id != UNKNOWN_MEMBER:
            error = ErrorCode.UNKNOWN_MEMBER_ID
            return [Reply(join.waiter, join_error(join.member_id, error))]
        if not join.protocol_type or not join.protocols:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return [Reply(join.waiter, join_error(join.member_id, error))]
        group = self._create(group_id)
        record = group_metadata_record(group_id, group.empty_value())
        effects = group.join(join, now_ms)
        if any(isinstance(effect, Append) for effect in effects):
            return effects
        return [Append([record], partial(self._on_creation_appended, group, join)), *effects]

    def sync(self, request: SyncGroupRequest, waiter: Waiter, now_ms: int) -> list[Effect]:
        """SyncGroup."""
        group = self.groups.get(request.group_id)
        if group is None:
            response = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            return [Reply(waiter, response)]
        return group.sync(request, waiter, now_ms)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat."""
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(request, now_ms)

    def leave(
        self, group_id: str, identities: Iterable[LeaveGroupRequest.MemberIdentity], now_ms: int
    ) -> tuple[LeaveGroupResponse, list[Effect]]:
        """LeaveGroup: one result per identity, in order."""
        identities = list(identities)
        group = self.groups.get(group_id)
        effects: list[Effect] = []
        errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
        if group is not None:
            errors, effects = group.leave(identities, now_ms)
        response = LeaveGroupResponse(
            members=[
                LeaveGroupResponse.MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=error,
                )
                for identity, error in zip(identities, errors, strict=True)
            ]
        )
        return response, effects

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        version: int,
    ) -> ErrorCode:
        """Whether this commit is from a member of this generation, or of one that needs no
        group.
        """
        group = self.groups.get(group_id)
        if group is not None:
            return group.check_commit(member_id, instance_id, generation_id)
        if generation_id < 0:
            return ErrorCode.NONE
        if version >= GROUP_ID_NOT_FOUND_VERSION:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def check_transactional_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """The same for offsets that a producer commits for its consumer: it may not know of a group
        at all (KIP-98), or name the member it reads as (KIP-447).
        """
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation_id < 0 else ErrorCode.ILLEGAL_GENERATION
        is_nobody = member_id == UNKNOWN_MEMBER and instance_id is None
        if generation_id < 0 and (is_nobody or group.state is GroupState.EMPTY):
            return ErrorCode.NONE
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A commit was accepted: the member lives."""
        group = self.groups.get(group_id)
        if group is not None:
            group.touch(member_id, now_ms)

    # -- what tools read ---------------------------------------------------------------------

    def list_groups(
        self, states: frozenset[str], types: frozenset[str]
    ) -> Iterator[ListGroupsResponse.ListedGroup]:
        """Groups in one of these states and of one of these types, both in lower case; empty:
        any.
        """
        if types and CLASSIC_TYPE not in types:
            return
        for group in self.groups.values():
            if states and group.state.value.lower() not in states:
                continue
            yield ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC_TYPE,
            )

    def describe(self, group_id: str, version: int) -> DescribeGroupsResponse.DescribedGroup:
        """One group; subscriptions and assignments are shown while it is stable."""
        group = self.groups.get(group_id)
        if group is None:
            response = DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, group_state=GroupState.DEAD.value
            )
            if version >= DESCRIBE_NOT_FOUND_VERSION:
                response.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                response.error_message = f"Group {group_id} not found."
            return response
        is_stable = group.state is GroupState.STABLE
        return DescribeGroupsResponse.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if is_stable else "",
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in group.members.values()
            ],
        )

    # -- what goes by itself -----------------------------------------------------------------

    def on_topics_deleted(self, names: Iterable[str]) -> list[Effect]:
        """The offsets of deleted topics end."""
        return _in_batches(list(self.offsets.tombstones_of_topics(names)))

    def _on_expiry(self, now_ms: int) -> list[Effect]:
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._deadlines.set(self._expiry, now_ms + interval_ms)
        wall_ms = self._wall_ms()
        records: list[CoordinatorRecord] = []
        for group_id, group in self.groups.items():
            expired, kept = self._expired_offsets(group, wall_ms)
            records += [offset_tombstone(group_id, *topic_partition) for topic_partition in expired]
            if not kept and self._may_be_deleted(group):
                records.append(group_tombstone(group_id))
        return _in_batches(records)

    def _may_be_deleted(self, group: ClassicGroup) -> bool:
        return (
            group.state is GroupState.EMPTY
            and not group.pending_joins
            and not self.offsets.has_pending(group.group_id)
        )

    def _expired_offsets(
        self, group: ClassicGroup, wall_ms: int
    ) -> tuple[list[tuple[str, int]], bool]:
        """(topic, partition) of offsets whose time is over, and whether any other is left. KIP-211.

        Time runs from when the group became empty, for a simple consumer from the commit; offsets
        of a group at work end only where nobody subscribes to their topic any more.
        """
        retention_ms = self._settings.offsets_retention_minutes * 60_000
        subscribed: frozenset[str] | None = None
        since_empty: int | None = None
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since_empty = group.state_since_ms
            else:
                subscribed = group.subscribed_topics() if group.state is GroupState.STABLE else None
                if subscribed is None:
                    return [], True
        expired: list[tuple[str, int]] = []
        kept = False
        unstable = self.offsets.unstable(group.group_id)
        for topic, partitions in self.offsets.of_group(group.group_id).items():
            for partition, value in partitions.items():
                since = max(value.commit_timestamp, since_empty or 0)
                until = value.expire_timestamp
                if until == NO_EXPIRY:
                    until = since + retention_ms
                if (
                    wall_ms >= until
                    and (subscribed is None or topic not in subscribed)
                    and (topic, partition) not in unstable
                ):
                    expired.append((topic, partition))
                else:
                    kept = True
        return expired, kept

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(
            group_id,
            settings=self._settings,
            deadlines=self._deadlines,
            random=self._random,
            wall_ms=self._wall_ms,
        )
        return group

    def _on_creation_appended(
        self, group: ClassicGroup, join: Join, error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        if error is ErrorCode.NONE:
            return []
        return group.abandon_creation(join.waiter, error, now_ms)


def _in_batches(records: list[CoordinatorRecord]) -> list[Effect]:
    return [
        Append(records[start : start + TOMBSTONES_PER_BATCH])
        for start in range(0, len(records), TOMBSTONES_PER_BATCH)
    ]
