"""One partition of `__consumer_offsets` as state: the groups whose ids hash to it, and their
offsets.

An id belongs to one group, of one `GroupKind`, to which the shard delegates; a member of another
type may replace an idle group. Records are replayed by the kind that registered their keys;
committed offsets are in `offsets`. This is a core: its caller (`runtime`) has time, randomness and
the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from random import Random
from typing import Final, Protocol, TypeVar

from kbroker.coordinator.group.classic.groups import ClassicGroups, ClassicSettings
from kbroker.coordinator.group.classic.memory import MemberMemory
from kbroker.coordinator.group.consumer.classic_clients import ClassicClients
from kbroker.coordinator.group.consumer.context import ConsumerSettings
from kbroker.coordinator.group.consumer.groups import ConsumerGroups
from kbroker.coordinator.group.kind import ClassicProtocol, GroupKind, GroupType, OffsetCommitter
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join, join_error
from kbroker.coordinator.group.membership.leave import leave_response
from kbroker.coordinator.group.membership.overrides import NO_OVERRIDES, GroupOverrides
from kbroker.coordinator.group.migration import Migration
from kbroker.coordinator.group.offsets.expiry import ExpirySweep, OffsetExpiry
from kbroker.coordinator.group.offsets.store import OffsetStore
from kbroker.coordinator.group.records import decode_record, group_tombstone
from kbroker.coordinator.group.share.groups import ShareGroups
from kbroker.coordinator.group.share.membership import ShareHeartbeat, ShareSettings
from kbroker.coordinator.group.streams.context import StreamsSettings
from kbroker.coordinator.group.streams.groups import StreamsGroups
from kbroker.coordinator.group.streams.membership import StreamsHeartbeat
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import (
    CoordinatorResult,
    Result,
    Results,
    in_batches,
)
from kbroker.coordinator.topics import ClusterTopics, DeletedTopic
from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import CoordinatorKey, Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue

GROUP_ID_NOT_FOUND_VERSION: Final = 9
"""From this OffsetCommit version on a member of an unknown group gets GROUP_ID_NOT_FOUND; before,
ILLEGAL_GENERATION.
"""
TOMBSTONES_PER_BATCH: Final = 1000
MOST_KNOWN_KEYS: Final = 50_000

D = TypeVar("D")


class ShardSettings(ClassicSettings, ConsumerSettings, ShareSettings, StreamsSettings, Protocol):
    """The part of the broker's configuration that a shard reads."""

    @property
    def offsets_retention_ms(self) -> int: ...
    @property
    def offsets_retention_check_interval_ms(self) -> int: ...
    @property
    def kbroker_group_members_max_bytes(self) -> int: ...


class GroupShard:
    """The groups of one partition.

    wall_ms: the wall clock, for stored timestamps and their age. The now_ms of requests and
    deadlines is monotonic: a jump of the wall clock expires no member. memory: that of classic
    groups, shared by the shards of a coordinator.
    """

    __slots__ = (
        "_classic_protocols",
        "_deadlines",
        "_expiry",
        "_kind_by_key",
        "_known_keys",
        "_migration",
        "_settings",
        "_sweep",
        "_wall_ms",
        "classic",
        "consumer",
        "deleted_topics",
        "kinds",
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
        self.offsets = OffsetStore()
        self.deleted_topics: list[DeletedTopic] = []
        """Topics that were deleted while the log was loaded."""
        self._known_keys: dict[bytes, CoordinatorKey] = {}
        """A cache of decoded keys while the log is loaded: a partition has many commits of few
        keys.
        """
        self._settings = settings
        self._wall_ms = wall_ms
        self._deadlines = deadlines = Deadlines()
        self._expiry = Deadline(self._on_expiry)
        self._sweep: ExpirySweep | None = None
        self.classic = ClassicGroups(
            settings,
            deadlines=deadlines,
            random=random,
            wall_ms=wall_ms,
            memory=memory or MemberMemory(settings.kbroker_group_members_max_bytes),
            is_other_type=self._is_not_classic,
        )
        self._migration = Migration(settings, self.classic, topics)
        self.consumer = ConsumerGroups(
            settings,
            topics=topics,
            deadlines=deadlines,
            random=random,
            wall_ms=wall_ms,
            overrides=overrides,
            downgrade=self._migration.downgrade,
        )
        self.streams = StreamsGroups(
            settings, topics=topics, deadlines=deadlines, wall_ms=wall_ms, overrides=overrides
        )
        self.share = ShareGroups(
            settings, topics=topics, deadlines=deadlines, wall_ms=wall_ms, overrides=overrides
        )
        self.kinds: tuple[GroupKind[object], ...] = (
            self.classic,
            self.consumer,
            self.share,
            self.streams,
        )
        self._kind_by_key: dict[type[CoordinatorKey], GroupKind[object]] = {
            key: kind for kind in self.kinds for key in kind.replays
        }
        clients = ClassicClients(
            self.consumer, self._migration.downgrade, lambda: self._migration.policy, topics
        )
        self._classic_protocols: dict[GroupType, ClassicProtocol] = {
            GroupType.CLASSIC: self.classic,
            GroupType.CONSUMER: clients,
        }

    # -- the kinds of groups -----------------------------------------------------------------

    def kind_of(self, group_id: str) -> GroupKind[object] | None:
        """The kind of the group; None if there is no such group."""
        for kind in self.kinds:
            if group_id in kind:
                return kind
        return None

    def _is_not_classic(self, group_id: str) -> bool:
        return any(group_id in kind for kind in self.kinds[1:])

    def take_over(
        self, kind: GroupKind[object], group_id: str, member_epoch: int
    ) -> list[CoordinatorRecord]:
        """The tombstones of an idle group of another type, which a member of this kind replaces.
        Raises KafkaError(GROUP_ID_NOT_FOUND) if the other group cannot be replaced.
        """
        other = None if group_id in kind else self.kind_of(group_id)
        if other is None:
            return []
        if member_epoch != 0 or not self._gives_way(other, group_id, kind.group_type):
            message = f"Group {group_id} is not a {kind.group_type.value} group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        return other.end(group_id) if other.has_record(group_id) else []

    @staticmethod
    def _gives_way(kind: GroupKind[object], group_id: str, to: GroupType) -> bool:
        return to in kind.gives_way_to and kind.is_idle(group_id)

    # -- replay ------------------------------------------------------------------------------

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """See `records.decode_record`."""
        if len(self._known_keys) > MOST_KNOWN_KEYS:
            self._known_keys.clear()
        return decode_record(key, value, self._known_keys)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of the log."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            offset = value if isinstance(value, OffsetCommitValue) else None
            self.offsets.replay(key, offset)
            if offset is not None:
                self.classic.ensure(key.group)
            return
        kind = self._kind_by_key.get(type(key))
        if kind is None:
            return
        change = kind.replay(key, value)
        if change is None:
            return
        if change.is_created:
            self.classic.give_way(change.group_id)
        elif self.offsets.has_group(change.group_id):
            # Offsets without a group, including pending ones, belong to a classic group again.
            self.classic.ensure(change.group_id)

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        """Apply a record of a transaction that has not ended."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            offset = value if isinstance(value, OffsetCommitValue) else None
            self.offsets.replay_pending(producer_id, key, offset)
            if offset is not None:
                self.classic.ensure(key.group)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker that ends a transaction."""
        self.offsets.end_transaction(producer_id, commit=commit)

    def on_loaded(self, now_ms: int) -> list[Result]:
        """All records were replayed: start sessions and deadlines of the groups."""
        self._known_keys.clear()
        results: list[Result] = [*in_batches(list(self._leftovers()), TOMBSTONES_PER_BATCH)]
        looked_at = self.offsets.tombstones_of_topics(self.deleted_topics)
        gone = [record for record in looked_at if record is not None]
        results += in_batches(gone, TOMBSTONES_PER_BATCH)
        results += self.on_topics_deleted(self.deleted_topics)
        self.deleted_topics = []
        for kind in self.kinds:
            results += kind.on_loaded(now_ms)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._deadlines.set(self._expiry, now_ms + interval_ms)
        return results

    def _leftovers(self) -> Iterator[CoordinatorRecord]:
        """Tombstones for records that an earlier version could write: offsets whose group cannot
        have offsets, and a classic group whose id belongs to a group of another type.
        """
        for kind in self.kinds:
            if not kind.keeps_offsets:
                for group_id in kind:
                    yield from self.offsets.tombstones_of_group(group_id)
        for group_id in self.classic.superseded():
            yield group_tombstone(group_id)

    def unload(self, error: ErrorCode) -> list[Result]:
        """This broker no longer coordinates these groups: answer every waiting request."""
        return [result for kind in self.kinds for result in kind.unload(error)]

    def next_deadline_ms(self) -> int | None:
        """When to call `on_deadline`; possibly earlier than necessary."""
        return self._deadlines.next_ms()

    def on_deadline(self, now_ms: int) -> Results:
        """Run the deadlines that are due."""
        return self._deadlines.fire(now_ms)

    def changes(self, record: CoordinatorRecord) -> str | None:
        """The log line for a record that was just written; None for committed offsets."""
        kind = self._kind_by_key.get(type(record.key))
        return None if kind is None else kind.changes(record.key, record.value)

    # -- the classic protocol ----------------------------------------------------------------

    def _classic_protocol(self, group_id: str) -> ClassicProtocol | None:
        """The kind that serves clients of the classic protocol in that group; None if none does."""
        kind = self.kind_of(group_id)
        return None if kind is None else self._classic_protocols.get(kind.group_type)

    def join(self, group_id: str, join: Join, now_ms: int) -> CoordinatorResult[Message]:
        """JoinGroup. The first JoinGroup without a member id creates the group."""
        kind = self.kind_of(group_id)
        if kind is not None and not self._gives_way(kind, group_id, GroupType.CLASSIC):
            protocol = self._classic_protocols.get(kind.group_type)
            if protocol is None:
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
                return _refused_join(join, UNKNOWN_MEMBER, error)
            return protocol.join(group_id, join, now_ms)
        if join.member_id != UNKNOWN_MEMBER:
            return _refused_join(join, join.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if not join.protocol_type or not join.protocols:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return _refused_join(join, join.member_id, error)
        former = [] if kind is None else kind.end(group_id)
        return self.classic.create_by_join(group_id, join, former, now_ms)

    def sync(self, request: SyncGroupRequest, now_ms: int) -> CoordinatorResult[Message]:
        """SyncGroup."""
        protocol = self._classic_protocol(request.group_id)
        if protocol is None:
            refusal = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            return CoordinatorResult((), Deferred.of(refusal))
        return protocol.sync(request, now_ms)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat."""
        protocol = self._classic_protocol(request.group_id)
        if protocol is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return protocol.heartbeat(request, now_ms)

    def leave_errors(
        self, group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """The error that `leave` would return for each identity separately."""
        protocol = self._classic_protocol(group_id)
        if protocol is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        return protocol.leave_errors(group_id, leaving)

    def leave(
        self,
        group_id: str,
        leaving: Sequence[LeaveGroupRequest.MemberIdentity],
        now_ms: int,
    ) -> CoordinatorResult[Message]:
        """LeaveGroup: one result per identity, in order."""
        protocol = self._classic_protocol(group_id)
        if protocol is None:
            errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
            return CoordinatorResult((), Deferred.of(leave_response(leaving, errors)))
        return protocol.leave(group_id, leaving, now_ms)

    # -- the protocols with member epochs ----------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat. A classic group is converted to a consumer group if that is
        allowed. Raises KafkaError.
        """
        group_id, consumer = request.group_id, self.consumer
        is_joining = request.member_epoch == 0 and group_id not in consumer
        if is_joining and group_id in self.classic and not self.classic.is_idle(group_id):
            return self._migration.upgrade(consumer, request, client_id, client_host)
        end = self.take_over(consumer, group_id, request.member_epoch)
        return consumer.heartbeat(request, client_id, client_host).after(end)

    def streams_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> CoordinatorResult[StreamsHeartbeat]:
        """StreamsGroupHeartbeat. Raises KafkaError."""
        end = self.take_over(self.streams, request.group_id, request.member_epoch)
        return self.streams.heartbeat(request, client_id, client_host).after(end)

    def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str, now_ms: int
    ) -> CoordinatorResult[ShareHeartbeat]:
        """ShareGroupHeartbeat. Raises KafkaError."""
        end = self.take_over(self.share, request.group_id, request.member_epoch)
        return self.share.heartbeat(request, client_id, client_host, now_ms).after(end)

    # -- offsets -----------------------------------------------------------------------------

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        version: int,
        partitions: Collection[TopicIdPartition] = (),
    ) -> ErrorCode:
        """Whether the sender of this commit is a member of this generation or epoch, or a client
        that needs no group.
        """
        kind = self.kind_of(group_id)
        if kind is not None:
            committer = OffsetCommitter(member_id, instance_id, generation_id, version, partitions)
            return kind.check_commit(group_id, committer)
        if generation_id < 0:
            return ErrorCode.NONE
        if version >= GROUP_ID_NOT_FOUND_VERSION:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def check_transactional_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        partitions: Collection[TopicIdPartition] = (),
    ) -> ErrorCode:
        """As `check_commit`, for offsets that a producer commits for its consumer."""
        kind = self.kind_of(group_id)
        if kind is not None:
            committer = OffsetCommitter(member_id, instance_id, generation_id, 0, partitions)
            return kind.check_transactional_commit(group_id, committer)
        return ErrorCode.NONE if generation_id < 0 else ErrorCode.ILLEGAL_GENERATION

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether this member of this epoch may read the group's offsets."""
        kind = self.kind_of(group_id)
        if kind is None:
            return ErrorCode.NONE
        return kind.check_fetch(group_id, member_id, member_epoch)

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A commit was accepted: renew the session of a classic member."""
        self.classic.touch(group_id, member_id, now_ms)

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets the group needs; None: possibly all. Raises
        KafkaError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP).
        """
        kind = self.kind_of(group_id)
        if kind is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return kind.subscribed_topics(group_id)

    # -- administration ----------------------------------------------------------------------

    def delete_group(self, group_id: str) -> tuple[ErrorCode, list[CoordinatorRecord]]:
        """DeleteGroups: the tombstones of an idle group and of its offsets."""
        kind = self.kind_of(group_id)
        if kind is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, []
        if not kind.is_idle(group_id):
            return ErrorCode.NON_EMPTY_GROUP, []
        return ErrorCode.NONE, [*self.offsets.tombstones_of_group(group_id), *kind.end(group_id)]

    def list_groups(
        self, states: Set[str], types: Set[str]
    ) -> Iterator[ListGroupsResponse.ListedGroup]:
        """Groups in one of these states and of one of these types, both in lower case; empty: no
        filter. Classic groups come last.
        """
        classic, *others = self.kinds
        for kind in (*others, classic):
            if not types or kind.group_type.value in types:
                yield from kind.listed(states)

    def describe(self, kind: GroupKind[D], group_id: str, version: int = 0) -> D:
        """One group of a kind. version: that of the request."""
        if group_id in kind:
            return kind.describe(group_id)
        is_other = self.kind_of(group_id) is not None
        what = f"is not a {kind.group_type.value} group" if is_other else "not found"
        return kind.describe_missing(group_id, f"Group {group_id} {what}.", version)

    # -- deleted topics and expired offsets --------------------------------------------------

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> list[Result]:
        """Delete the data of groups about deleted topics. `OffsetDeletions` deletes the offsets."""
        records: list[CoordinatorRecord] = []
        topic_ids = {topic.topic_id for topic in topics}
        for kind in self.kinds:
            records += kind.on_topics_deleted(topic_ids)
        return [*in_batches(records, TOMBSTONES_PER_BATCH)]

    def _on_expiry(self, now_ms: int) -> list[Result]:
        """One turn of a pass over all groups; the next pass starts an interval later."""
        expiry = OffsetExpiry(self.offsets, self._settings.offsets_retention_ms, self._wall_ms())
        sweep = self._sweep
        if sweep is None:
            sweep = self._sweep = ExpirySweep(self._expiring(), self.kind_of)
        records = sweep.advance(expiry)
        interval_ms = 1
        if sweep.is_over:
            self._sweep = None
            interval_ms = self._settings.offsets_retention_check_interval_ms
        self._deadlines.set(self._expiry, now_ms + interval_ms)
        return [*in_batches(records, TOMBSTONES_PER_BATCH)]

    def _expiring(self) -> Iterator[str]:
        """All groups with offsets. The sweep visits them from the last to the first."""
        classic, *others = self.kinds
        for kind in (classic, *reversed(others)):
            if kind.keeps_offsets:
                yield from kind


def _refused_join(join: Join, member_id: str, error: ErrorCode) -> CoordinatorResult[Message]:
    return CoordinatorResult((), Deferred.of(join_error(member_id, error)))
