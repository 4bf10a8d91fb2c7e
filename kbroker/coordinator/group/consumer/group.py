"""The replayed state of one consumer group (KIP-848): members, epochs, target and current
assignments. Only replay changes it; `membership` makes the decisions.

    Empty -> Assigning -> Reconciling -> Stable

The group epoch rises with every change of members, subscriptions or topics. The target assignment
is computed for a group epoch; a member's epoch is that of the target it has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kbroker.coordinator.group.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    places_of,
)
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupKey,
    MemberMetadata,
    current_of,
    target_of,
)
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.membership.epochs import (
    FIRST_EPOCH,
    MEMBER_EPOCH_VERSION,
    STATIC_LEAVE_EPOCH,
)
from kbroker.coordinator.group.membership.subscriptions import Subscriptions, all_topics
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import CoordinatorValue
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

NO_ASSIGNMENT: Final = CurrentAssignment()


class ConsumerGroup:
    """One group. owners: the member that owns a partition, in `assigned` or still in `revoking`."""

    __slots__ = (
        "currents",
        "epoch",
        "group_id",
        "is_hash_current",
        "matched_topics",
        "members",
        "metadata_hash",
        "owners",
        "regexes",
        "resolved",
        "seen_topics",
        "static_members",
        "subscriptions",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.is_hash_current = False
        """Whether `metadata_hash` is that of the current subscriptions, over `seen_topics`."""
        self.members: dict[str, MemberMetadata] = {}
        self.subscriptions = Subscriptions()
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.targets: dict[str, Assignment] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.owners: dict[tuple[Uuid, int], str] = {}
        self.regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}
        self.resolved: dict[str, frozenset[str]] = {}
        """The topics that each of `regexes` matches."""
        self.seen_topics: object = None
        """The map of topics with which `metadata_hash` was last compared."""
        self.matched_topics: object = None
        """The map of topics against which `regexes` were last resolved."""

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: ConsumerGroupKey, value: CoordinatorValue | None) -> None:
        """Apply one record; the tombstone of the whole group is handled by `groups`."""
        match key:
            case ConsumerGroupMetadataKey():
                if isinstance(value, ConsumerGroupMetadataValue):
                    self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                    self.is_hash_current = True
            case ConsumerGroupMemberMetadataKey():
                self._replay_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                    self.target_epoch = value.assignment_epoch
                    self.target_timestamp_ms = value.assignment_timestamp
            case ConsumerGroupTargetAssignmentMemberKey():
                if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
                    self.targets[key.member_id] = target_of(value)
                else:
                    self.targets.pop(key.member_id, None)
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._replay_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                self._replay_regex(key.regular_expression, value)
            case _:
                pass  # type 4, of older Kafkas

    def replay_record(self, record: CoordinatorRecord) -> None:
        """As `replay`, for a record of this group."""
        if isinstance(record.key, ConsumerGroupKey):
            self.replay(record.key, record.value)

    def _replay_member(self, member_id: str, value: CoordinatorValue | None) -> None:
        former = self.members.pop(member_id, None)
        if isinstance(value, MemberMetadata):
            has_changed = self.subscriptions.put(
                member_id, value.subscribed_topic_names, value.subscribed_topic_regex or ""
            )
        else:
            has_changed = self.subscriptions.remove(member_id)
        if has_changed:
            self.is_hash_current = False
        if isinstance(value, MemberMetadata):
            self.members[member_id] = value
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id
        elif former is not None and self.static_members.get(former.instance_id or "") == member_id:
            del self.static_members[former.instance_id or ""]

    def _replay_regex(self, regex: str, value: CoordinatorValue | None) -> None:
        self.is_hash_current = False
        if isinstance(value, ConsumerGroupRegularExpressionValue):
            self.regexes[regex] = value
            self.resolved[regex] = frozenset(value.topics)
        else:
            self.regexes.pop(regex, None)
            self.resolved.pop(regex, None)

    def _replay_current(self, member_id: str, value: CoordinatorValue | None) -> None:
        former = self.currents.pop(member_id, None)
        if former is not None:
            for place in places_of(former.assigned) | places_of(former.revoking):
                if self.owners.get(place) == member_id:
                    del self.owners[place]
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            current = self.currents[member_id] = current_of(value)
            for place in places_of(current.assigned) | places_of(current.revoking):
                self.owners[place] = member_id

    # -- queries -----------------------------------------------------------------------------

    def current(self, member_id: str) -> CurrentAssignment:
        """A member's current assignment; empty for an unknown member."""
        return self.currents.get(member_id, NO_ASSIGNMENT)

    def state(self) -> str:
        """The state under the name clients see."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(self.current(member_id).is_at(self.target_epoch) for member_id in self.members):
            return "Stable"
        return "Reconciling"

    def is_free_for(self, member_id: str) -> Callable[[Uuid, int], bool]:
        """Whether no other member owns a partition."""
        owners = self.owners
        return lambda topic_id, partition: owners.get((topic_id, partition), member_id) == member_id

    def subscribed_names(self) -> set[str]:
        """All topics that a member subscribes to, by name or by a regular expression as last
        resolved.
        """
        return all_topics(self.subscriptions.distinct(), self.resolved)

    def check_commit(
        self, member_id: str, epoch: int, version: int | None, places: Iterable[tuple[Uuid, int]]
    ) -> ErrorCode:
        """Whether a member of this epoch may commit these (topic id, partition). KIP-1251: an older
        epoch is accepted for partitions that were assigned in it and still are. version: that of
        OffsetCommit; None for offsets in a transaction.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_classic = self.is_classic(member_id)
        if version is not None and version < MEMBER_EPOCH_VERSION and not is_classic:
            return ErrorCode.UNSUPPORTED_VERSION
        stale = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        current = self.current(member_id)
        if epoch == current.member_epoch:
            return ErrorCode.NONE
        if epoch > current.member_epoch:
            return stale
        for topic_id, partition in places:
            since = current.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = current.revoking.get(topic_id, {}).get(partition)
            if since is None or since > epoch:
                return stale
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
            if self.is_classic(member_id or ""):
                return ErrorCode.ILLEGAL_GENERATION
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def is_classic(self, member_id: str) -> bool:
        """Whether the member uses the classic protocol."""
        metadata = self.members.get(member_id)
        return metadata is not None and metadata.classic_member_metadata is not None

    def is_unrevoked(self, member_id: str) -> bool:
        """Whether the member was told to revoke partitions and has not confirmed it."""
        return self.current(member_id).state is MemberState.UNREVOKED_PARTITIONS

    def is_away(self, member_id: str) -> bool:
        """Whether the member is static and has left temporarily."""
        return self.current(member_id).member_epoch == STATIC_LEAVE_EPOCH
