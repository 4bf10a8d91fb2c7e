"""One partition of `__consumer_offsets` as state: the groups whose ids hash to it, and their
offsets. Consumer groups (KIP-848) are in `consumer_groups`, streams groups (KIP-1071) in
`streams_groups`; here they meet the classic ones: an id belongs to one group, and an empty classic
group gives way to a member of another kind, as they do to a classic member.

What must survive is in `metadata` (the last record of every group) and in `offsets`; both change by
replay only. The live `groups` hold on top of it what a rebalance is about; after a reload they are
built from `metadata`. A core: time, randomness and the log are its caller's (`runtime`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol

from kbroker.coordinator.group.classic.group import ClassicGroup, GroupSettings, join_error
from kbroker.coordinator.group.classic.memory import MemberMemory, PendingMembers
from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.groups import CONSUMER_TYPE, ConsumerGroups, Replacements
from kbroker.coordinator.group.consumer.membership import (
    ConsumerSettings,
    Decision,
    Removal,
    heartbeat,
)
from kbroker.coordinator.group.consumer.records import ConsumerGroupKey, group_tombstones
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join
from kbroker.coordinator.group.membership.overrides import NO_OVERRIDES, GroupOverrides
from kbroker.coordinator.group.migration import MigrationPolicy, downgrade, may_downgrade, upgrade
from kbroker.coordinator.group.offsets.expiry import ExpirySweep, OffsetExpiry
from kbroker.coordinator.group.offsets.store import DeletedTopic, OffsetStore
from kbroker.coordinator.group.records import decode_record, group_metadata_record, group_tombstone
from kbroker.coordinator.group.share.groups import SHARE_TYPE, ShareGroups
from kbroker.coordinator.group.share.membership import ShareSettings
from kbroker.coordinator.group.share.records import ShareGroupKey
from kbroker.coordinator.group.streams.description import described_streams
from kbroker.coordinator.group.streams.groups import STREAMS_TYPE, StreamsGroups
from kbroker.coordinator.group.streams.membership import StreamsDecision, StreamsSettings
from kbroker.coordinator.group.streams.records import StreamsGroupKey, streams_group_tombstones
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.effects import Append, Effect, Reply, Waiter
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import ClusterTopics
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
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
from kbroker.protocol.messages.share_group_records import ShareGroupMetadataKey
from kbroker.protocol.messages.streams_group_records import (
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
)
from kbroker.protocol.schema import CoordinatorKey

GROUP_ID_NOT_FOUND_VERSION: Final = 9
"""From this OffsetCommit on a member of an unknown group is told so; before, its generation is
called illegal.
"""
DESCRIBE_NOT_FOUND_VERSION: Final = 6
"""From this DescribeGroups on an unknown group is an error; before, it is a dead group."""
TOMBSTONES_PER_BATCH: Final = 1000
MOST_KNOWN_KEYS: Final = 50_000
CLASSIC_TYPE: Final = "classic"

_DescribedMember = DescribeGroupsResponse.DescribedGroupMember

SHOWN_REGEX: Final = 200
"""Characters of a client's regular expression in a log line."""


class ShardSettings(GroupSettings, ConsumerSettings, ShareSettings, StreamsSettings, Protocol):
    """What of the broker's configuration a shard reads."""

    @property
    def offsets_retention_minutes(self) -> int: ...
    @property
    def offsets_retention_check_interval_ms(self) -> int: ...
    @property
    def kbroker_group_max_pending_members(self) -> int: ...
    @property
    def kbroker_group_members_max_bytes(self) -> int: ...


class GroupShard:
    """The groups of one partition.

    wall_ms: the wall clock, for what is stored and how old that is. The now_ms of requests and
    deadlines is monotonic: a jump of the wall clock expires no member. memory: of classic groups,
    shared by the shards of a coordinator.
    """

    __slots__ = (
        "_deadlines",
        "_expiry",
        "_known_keys",
        "_memory",
        "_pending_members",
        "_random",
        "_settings",
        "_sweep",
        "_topics",
        "_wall_ms",
        "consumer",
        "deleted_topics",
        "groups",
        "metadata",
        "offsets",
        "share",
        "streams",
    )

    def __init__(
        self,
        settings: ShardSettings,
        random: Random,
        wall_ms: Callable[[], int],
        topics: Callable[[], ClusterTopics],
        overrides: GroupOverrides = NO_OVERRIDES,
        memory: MemberMemory | None = None,
    ) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.metadata: dict[str, GroupMetadataValue] = {}
        """The last record of every group that has one."""
        self.offsets = OffsetStore()
        self.deleted_topics: list[DeletedTopic] = []
        """Topics deleted while the log was loaded."""
        self._pending_members = PendingMembers(settings.kbroker_group_max_pending_members)
        self._memory = memory or MemberMemory(settings.kbroker_group_members_max_bytes)
        self._known_keys: dict[bytes, CoordinatorKey] = {}
        """While the log is loaded: a partition holds many commits of few keys."""
        self._settings = settings
        self._random = random
        self._topics = topics
        self._wall_ms = wall_ms
        self._deadlines = Deadlines()
        self._expiry = Deadline(self._on_expiry)
        self._sweep: ExpirySweep | None = None
        self.consumer = ConsumerGroups(
            settings,
            topics=topics,
            deadlines=self._deadlines,
            random=random,
            wall_ms=wall_ms,
            overrides=overrides,
            downgrade=self._downgrade,
        )
        self._topics = topics
        self.streams = StreamsGroups(
            settings,
            topics=topics,
            deadlines=self._deadlines,
            wall_ms=wall_ms,
            overrides=overrides,
        )
        self.share = ShareGroups(
            settings,
            topics=topics,
            deadlines=self._deadlines,
            wall_ms=wall_ms,
            overrides=overrides,
        )

    # -- replay ------------------------------------------------------------------------------

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """See `records.decode_record`."""
        if len(self._known_keys) > MOST_KNOWN_KEYS:
            self._known_keys.clear()
        return decode_record(key, value, self._known_keys)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record that is in the log."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            offset = value if isinstance(value, OffsetCommitValue) else None
            self.offsets.replay(key, offset)
            if offset is not None and key.group not in self.groups:
                self._ensure_group(key.group)
        elif isinstance(key, GroupMetadataKey):
            if isinstance(value, GroupMetadataValue):
                self.metadata[key.group] = value
                return
            self.metadata.pop(key.group, None)
            group = self.groups.pop(key.group, None)
            if group is not None:
                group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._on_group_ended(key.group)
        elif isinstance(key, ConsumerGroupKey):
            self.consumer.replay(key, value)
            if value is not None:
                self.groups.pop(key.group_id, None)
            elif isinstance(key, ConsumerGroupMetadataKey):
                self._on_group_ended(key.group_id)
        elif isinstance(key, ShareGroupKey):
            self.share.replay(key, value)
            if value is not None:
                self.groups.pop(key.group_id, None)
            elif isinstance(key, ShareGroupMetadataKey):
                self._on_group_ended(key.group_id)
        elif isinstance(key, StreamsGroupKey):
            self.streams.replay(key, value)
            if value is not None:
                self.groups.pop(key.group_id, None)
            elif isinstance(key, StreamsGroupMetadataKey):
                self._on_group_ended(key.group_id)

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        """Apply a record of a transaction that is not over."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            offset = value if isinstance(value, OffsetCommitValue) else None
            self.offsets.replay_pending(producer_id, key, offset)
            if offset is not None:
                self._ensure_group(key.group)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker that ends a transaction."""
        self.offsets.end_transaction(producer_id, commit=commit)

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """All records were replayed: start sessions and deadlines of the groups."""
        self._known_keys.clear()
        effects = _in_batches(list(self._leftovers()))
        effects += self.on_topics_deleted(self.deleted_topics)
        self.deleted_topics = []
        for group_id, value in self.metadata.items():
            if self._has_other_type(group_id):
                continue
            group = self.groups.get(group_id)
            if group is None:
                group = self._create(group_id)
            group.restore(value, now_ms)
            effects += group.on_loaded(now_ms)
        self.consumer.on_loaded(now_ms)
        self.share.on_loaded(now_ms)
        self.streams.on_loaded(now_ms)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._deadlines.set(self._expiry, now_ms + interval_ms)
        return effects

    def _leftovers(self) -> Iterator[CoordinatorRecord]:
        """Tombstones for records that an earlier version could write: offsets under the id of a
        share group, and a classic group of the same id. A group of another type takes precedence
        over a classic group.
        """
        for group_id in self.share.groups:
            yield from self.offsets.tombstones_of_group(group_id)
        for group_id in self.metadata:
            if self._has_other_type(group_id):
                yield group_tombstone(group_id)

    def unload(self, error: ErrorCode) -> list[Effect]:
        """This broker no longer coordinates these groups: answer everybody who waits."""
        effects: list[Effect] = []
        for group in self.groups.values():
            effects += group.unload(error)
        self.groups = {}
        self.consumer.unload()
        self.share.unload()
        self.streams.unload()
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
        if isinstance(key, ConsumerGroupMetadataKey):
            if not isinstance(value, ConsumerGroupMetadataValue):
                return f"consumer group {key.group_id} deleted"
            consumer_group = self.consumer.groups.get(key.group_id)
            if consumer_group is None:
                return None  # a later record of the same batch ends the group
            count = len(consumer_group.members)
            return f"consumer group {key.group_id} epoch {value.epoch}: {count} members"
        if isinstance(key, ConsumerGroupRegularExpressionKey):
            if isinstance(value, ConsumerGroupRegularExpressionValue) and not value.topics:
                regex = key.regular_expression[:SHOWN_REGEX]
                return f"consumer group {key.group_id}: no topic matches {regex!r}"
            return None
        if isinstance(key, ShareGroupMetadataKey):
            return self.share.news(key.group_id, value)
        if isinstance(key, StreamsGroupMetadataKey):
            if not isinstance(value, StreamsGroupMetadataValue):
                return f"streams group {key.group_id} deleted"
            streams_group = self.streams.groups.get(key.group_id)
            if streams_group is None:
                return None
            count = len(streams_group.members)
            return f"streams group {key.group_id} epoch {value.epoch}: {count} members"
        if not isinstance(key, GroupMetadataKey):
            return None
        if not isinstance(value, GroupMetadataValue):
            is_leftover = self._has_other_type(key.group)
            return None if is_leftover else f"group {key.group} deleted"
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
        consumer_group = self.consumer.groups.get(group_id)
        former = consumer_group or self.streams.groups.get(group_id)
        if group_id in self.share.groups or (former is not None and former.members):
            if consumer_group is None or self._policy is MigrationPolicy.DISABLED:
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
                return [Reply(join.waiter, join_error(UNKNOWN_MEMBER, error))]
            return self.consumer.classic_join(consumer_group, join, now_ms)
        if join.member_id != UNKNOWN_MEMBER:
            error = ErrorCode.UNKNOWN_MEMBER_ID
            return [Reply(join.waiter, join_error(join.member_id, error))]
        if not join.protocol_type or not join.protocols:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return [Reply(join.waiter, join_error(join.member_id, error))]
        group = self._create(group_id)
        record = group_metadata_record(group_id, group.empty_value())
        effects = group.join(join, now_ms)
        records = [record]
        if former is not None:  # one batch: it is one group or the other
            is_streams = group_id in self.streams.groups
            tombstones = streams_group_tombstones if is_streams else group_tombstones
            records = [*tombstones(group_id), record]
        elif any(isinstance(effect, Append) for effect in effects):
            return effects
        return [Append(records, partial(self._on_creation_appended, group, join)), *effects]

    def sync(self, request: SyncGroupRequest, waiter: Waiter, now_ms: int) -> list[Effect]:
        """SyncGroup."""
        group = self.groups.get(request.group_id)
        if group is None:
            consumer_group = self.consumer.groups.get(request.group_id)
            if consumer_group is not None:
                return self.consumer.classic_sync(consumer_group, request, waiter, now_ms)
            error = ErrorCode.UNKNOWN_MEMBER_ID
            return [Reply(waiter, SyncGroupResponse(error_code=error))]
        return group.sync(request, waiter, now_ms)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat."""
        group = self.groups.get(request.group_id)
        if group is None:
            consumer_group = self.consumer.groups.get(request.group_id)
            if consumer_group is not None:
                return self.consumer.classic_heartbeat(consumer_group, request, now_ms)
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(request, now_ms)

    def leave_errors(
        self, group_id: str, identities: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """What `leave` would answer each identity alone."""
        group, consumer_group = self.groups.get(group_id), self.consumer.groups.get(group_id)
        if group is not None:
            return group.leave_errors(identities)
        if consumer_group is not None:
            return self.consumer.classic_leave_errors(consumer_group, identities)
        return [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)

    def leave(
        self,
        group_id: str,
        identities: Sequence[LeaveGroupRequest.MemberIdentity],
        waiter: Waiter,
        now_ms: int,
    ) -> list[Effect]:
        """LeaveGroup: one result per identity, in order."""
        group, consumer_group = self.groups.get(group_id), self.consumer.groups.get(group_id)
        effects: list[Effect] = []
        end = Removal([])
        errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
        if group is not None:
            errors, effects = group.leave(identities, now_ms)
        elif consumer_group is not None:
            errors, end = self.consumer.classic_leave(consumer_group, identities)
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
        if not end.records:
            return [*effects, Reply(waiter, response)]

        def lost(error: ErrorCode) -> Reply:
            return Reply(waiter, LeaveGroupResponse(error_code=error))

        def then(error: ErrorCode, now_ms: int) -> list[Effect]:
            return [lost(error) if error is not ErrorCode.NONE else Reply(waiter, response)]

        return [Append(end.records, then, written=end.written, lost=lost)]

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        version: int,
        places: Iterable[tuple[Uuid, int]] = (),
    ) -> ErrorCode:
        """Whether this commit is from a member of this generation (or epoch), or of one that needs
        no group. places: (topic id, partition) of what is committed.
        """
        consumer_group = self.consumer.groups.get(group_id)
        if consumer_group is not None:
            return consumer_group.check_commit(member_id, generation_id, version, places)
        if group_id in self.streams.groups:
            return self._check_streams_commit(group_id, member_id, generation_id, version, places)
        group = self.groups.get(group_id)
        if group is not None:
            return group.check_commit(member_id, instance_id, generation_id)
        if group_id in self.share.groups:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if generation_id < 0:
            return ErrorCode.NONE
        if version >= GROUP_ID_NOT_FOUND_VERSION:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def _check_streams_commit(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        version: int | None,
        places: Iterable[tuple[Uuid, int]],
    ) -> ErrorCode:
        topics = self._topics().topics_by_id
        named = [(topics[one].name, partition) for one, partition in places if one in topics]
        return self.streams.groups[group_id].check_commit(member_id, epoch, version, named)

    def check_transactional_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        places: Iterable[tuple[Uuid, int]] = (),
    ) -> ErrorCode:
        """The same for offsets that a producer commits for its consumer: it may not know of a group
        at all (KIP-98), or name the member it reads as (KIP-447).
        """
        is_nobody = member_id == UNKNOWN_MEMBER and instance_id is None
        consumer_group = self.consumer.groups.get(group_id)
        if consumer_group is not None or group_id in self.streams.groups:
            if is_nobody and generation_id == -1:
                return ErrorCode.NONE
            error = (
                consumer_group.check_commit(member_id, generation_id, None, places)
                if consumer_group is not None
                else self._check_streams_commit(group_id, member_id, generation_id, None, places)
            )
            is_stale = error is ErrorCode.STALE_MEMBER_EPOCH
            return ErrorCode.ILLEGAL_GENERATION if is_stale else error
        if group_id in self.share.groups:
            return ErrorCode.GROUP_ID_NOT_FOUND
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation_id < 0 else ErrorCode.ILLEGAL_GENERATION
        if generation_id < 0 and (is_nobody or group.state is GroupState.EMPTY):
            return ErrorCode.NONE
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether this member of this epoch may read the group's offsets; a classic group asks
        nobody.
        """
        group = self.consumer.groups.get(group_id) or self.streams.groups.get(group_id)
        return ErrorCode.NONE if group is None else group.check_fetch(member_id, member_epoch)

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A commit was accepted: the member lives."""
        group = self.groups.get(group_id)
        if group is not None:
            group.touch(member_id, now_ms)

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> Decision:
        """ConsumerGroupHeartbeat. A classic group becomes a consumer group, if it may. Raises
        KafkaError.
        """
        group_id = request.group_id
        group = self.groups.get(group_id)
        is_joining = request.member_epoch == 0 and group_id not in self.consumer.groups
        if group is not None and is_joining and not group.is_idle:
            return self._upgrade(group, request, client_id, client_host)
        end = self._end_of_classic(group_id, request.member_epoch, CONSUMER_TYPE)
        decision = self.consumer.heartbeat(request, client_id, client_host)
        decision.records[:0] = end
        return decision

    def streams_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> StreamsDecision:
        """StreamsGroupHeartbeat; as `consumer_heartbeat`."""
        group_id = request.group_id
        end = self._end_of_classic(group_id, request.member_epoch, STREAMS_TYPE)
        decision = self.streams.heartbeat(request, client_id, client_host)
        decision.records[:0] = end
        return decision

    def _end_of_classic(
        self, group_id: str, member_epoch: int, kind: str
    ) -> list[CoordinatorRecord]:
        """The end of a classic group without members, which gives way to somebody who joins a group
        of this kind. Raises KafkaError(GROUP_ID_NOT_FOUND) where a group of another kind does not.
        """
        is_streams = kind == STREAMS_TYPE
        if group_id in (self.streams.groups if is_streams else self.consumer.groups):
            return []
        group = self.groups.get(group_id)
        is_other = group_id in (self.consumer.groups if is_streams else self.streams.groups)
        is_other = is_other or group_id in self.share.groups
        if is_other or (group is not None and (member_epoch != 0 or not group.is_idle)):
            message = f"Group {group_id} is not a {kind} group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        has_record = group is not None and group_id in self.metadata
        return [group_tombstone(group_id)] if has_record else []

    # -- migration ---------------------------------------------------------------------------

    @property
    def _policy(self) -> MigrationPolicy:
        return MigrationPolicy(self._settings.group_consumer_migration_policy)

    def _upgrade(
        self,
        group: ClassicGroup,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
    ) -> Decision:
        """A member of the consumer protocol joins a classic group with members."""
        group_id = group.group_id
        max_size = self._settings.group_consumer_max_size
        records, upgraded = upgrade(group, self._topics(), policy=self._policy, max_size=max_size)
        around = self.consumer.surroundings(group_id, client_id, client_host)
        # In the middle of a rebalance what members have is not a whole assignment any more.
        unsettled = group.state is not GroupState.STABLE
        decision = heartbeat(upgraded, request, around, unsettled=unsettled)

        def written(now_ms: int) -> list[Effect]:
            self.consumer.begin(group_id, now_ms)
            return []

        return Decision(
            [*records, *decision.records],
            decision.response,
            decision.member_id,
            written,
            group.dismiss(ErrorCode.REBALANCE_IN_PROGRESS),
        )

    def _downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[str],
        replacements: Replacements,
        *,
        rebalance: bool,
    ) -> Removal | None:
        """See `consumer_groups.Downgrade`."""
        group_id, max_size = group.group_id, self._settings.group_max_size
        if not may_downgrade(group, leaving, replacements, policy=self._policy, max_size=max_size):
            return None
        classic = self._new_classic(group_id)
        topics = self._topics()
        records = downgrade(
            group,
            classic,
            leaving=leaving,
            replacements=replacements,
            topics=topics,
            rebalance=rebalance,
        )

        def written(now_ms: int) -> list[Effect]:
            self.groups[group_id] = classic
            return classic.begin(now_ms, rebalance=rebalance)

        return Removal(records, written)

    # -- administration ----------------------------------------------------------------------

    def delete_group(self, group_id: str) -> tuple[ErrorCode, list[CoordinatorRecord]]:
        """DeleteGroups: the end of an empty group and of its offsets."""
        group, consumer_group = self.groups.get(group_id), self.consumer.groups.get(group_id)
        streams_group = self.streams.groups.get(group_id)
        if consumer_group is not None:
            if consumer_group.members:
                return ErrorCode.NON_EMPTY_GROUP, []
            end = group_tombstones(group_id)
        elif streams_group is not None:
            if streams_group.members:
                return ErrorCode.NON_EMPTY_GROUP, []
            end = streams_group_tombstones(group_id)
        elif group is not None:
            if not group.is_idle:
                return ErrorCode.NON_EMPTY_GROUP, []
            end = [group_tombstone(group_id)]
        else:
            return ErrorCode.GROUP_ID_NOT_FOUND, []
        return ErrorCode.NONE, [*self.offsets.tombstones_of_group(group_id), *end]

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets the group needs; None: perhaps all. Raises
        KafkaError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP).
        """
        consumer_group = self.consumer.groups.get(group_id)
        if consumer_group is not None:
            return frozenset(consumer_group.subscribed_names())
        if group_id in self.streams.groups:
            return frozenset(self.streams.groups[group_id].subscribed_names())
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is GroupState.EMPTY:
            return frozenset()
        if group.protocol_type != "consumer":
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return group.subscribed_topics()

    # -- what tools read ---------------------------------------------------------------------

    def list_groups(
        self, states: frozenset[str], types: frozenset[str]
    ) -> Iterator[ListGroupsResponse.ListedGroup]:
        """Groups in one of these states and of one of these types, both in lower case; empty:
        any.
        """
        if not types or CONSUMER_TYPE in types:
            yield from self.consumer.listed(states)
        if not types or SHARE_TYPE in types:
            yield from self.share.listed(states)
        if not types or STREAMS_TYPE in types:
            yield from self.streams.listed(states)
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

    def describe(
        self, group_id: str, version: int
    ) -> tuple[DescribeGroupsResponse.DescribedGroup, Iterator[_DescribedMember]]:
        """One group, and its members, each of which is made when it is asked for. Subscriptions and
        assignments are shown while the group is stable.
        """
        group = self.groups.get(group_id)
        if group is None:
            response = DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, group_state=GroupState.DEAD.value
            )
            if version >= DESCRIBE_NOT_FOUND_VERSION:
                response.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                what = "is not a classic group" if self._is_known(group_id) else "not found"
                response.error_message = f"Group {group_id} {what}."
            return response, iter(())
        is_stable, protocol_name = group.state is GroupState.STABLE, group.protocol_name
        described = DescribeGroupsResponse.DescribedGroup(
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

    def describe_consumer(
        self, group_id: str
    ) -> tuple[
        ConsumerGroupDescribeResponse.DescribedGroup, Iterator[ConsumerGroupDescribeResponse.Member]
    ]:
        """One consumer group; as `describe`."""
        group = self.consumer.groups.get(group_id)
        if group is not None:
            return self.consumer.describe(group)
        what = "is not a consumer group" if self._is_known(group_id) else "not found"
        refusal = ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
        )
        return refusal, iter(())

    def describe_streams(
        self, group_id: str
    ) -> tuple[
        StreamsGroupDescribeResponse.DescribedGroup, Iterator[StreamsGroupDescribeResponse.Member]
    ]:
        """One streams group; as `describe`."""
        group = self.streams.groups.get(group_id)
        if group is not None:
            return described_streams(group)
        what = "is not a streams group" if self._is_known(group_id) else "not found"
        refusal = StreamsGroupDescribeResponse.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
        )
        return refusal, iter(())

    # -- what goes by itself -----------------------------------------------------------------

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> list[Effect]:
        """The offsets of deleted topics end."""
        return _in_batches(
            [
                *self.offsets.tombstones_of_topics(topics),
                *self.share.on_topics_deleted({topic.topic_id for topic in topics}),
            ]
        )

    def _on_expiry(self, now_ms: int) -> list[Effect]:
        """One turn of a round through all groups; the next round is an interval later."""
        retention_ms = self._settings.offsets_retention_minutes * 60_000
        expiry = OffsetExpiry(self.offsets, retention_ms, self._wall_ms())
        sweep = self._sweep
        if sweep is None:
            sweep = self._sweep = ExpirySweep(self.consumer, self.streams, self.groups)
        records = sweep.advance(expiry)
        interval_ms = 1
        if sweep.is_over:
            self._sweep = None
            interval_ms = self._settings.offsets_retention_check_interval_ms
        self._deadlines.set(self._expiry, now_ms + interval_ms)
        return _in_batches(records)

    def is_other_than_share(self, group_id: str) -> bool:
        """Whether it is a group, but no share group."""
        others = (self.groups, self.consumer.groups, self.streams.groups)
        return any(group_id in groups for groups in others)

    def _is_known(self, group_id: str) -> bool:
        return group_id in self.share.groups or self.is_other_than_share(group_id)

    def _has_other_type(self, group_id: str) -> bool:
        """Whether it is a group, but no classic group."""
        others = (self.consumer.groups, self.share.groups, self.streams.groups)
        return any(group_id in groups for groups in others)

    def _ensure_group(self, group_id: str) -> None:
        """Offsets belong to a group; one that no member has joined is classic."""
        if group_id not in self.groups and not self._has_other_type(group_id):
            self._create(group_id)

    def _on_group_ended(self, group_id: str) -> None:
        """Offsets that outlive their group, pending ones too, are again those of a classic group
        without members.
        """
        if self.offsets.has_group(group_id):
            self._ensure_group(group_id)

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = self._new_classic(group_id)
        return group

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            settings=self._settings,
            deadlines=self._deadlines,
            random=self._random,
            wall_ms=self._wall_ms,
            pending_members=self._pending_members,
            memory=self._memory,
        )

    def _on_creation_appended(
        self, group: ClassicGroup, join: Join, error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        if error is ErrorCode.NONE:
            return []
        group_id = group.group_id
        if group_id in self.consumer.groups or group_id in self.streams.groups:
            del self.groups[group_id]  # the former group has not given way
            return group.unload(error)
        return group.abandon_creation(join.waiter, error, now_ms)


def _in_batches(records: list[CoordinatorRecord]) -> list[Effect]:
    return [
        Append(records[start : start + TOMBSTONES_PER_BATCH])
        for start in range(0, len(records), TOMBSTONES_PER_BATCH)
    ]
