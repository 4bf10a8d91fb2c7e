"""The replayed state of one share group (KIP-932): members, epochs, assignments, and which
partitions have a state. Only replay changes it; `membership` makes the decisions.

Members of a share group share partitions, so nothing has to be revoked first: a member gets its
target assignment with its next heartbeat.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.membership.epochs import FIRST_EPOCH
from kbroker.coordinator.group.membership.subscriptions import Subscriptions, all_topics
from kbroker.coordinator.group.share.records import (
    ShareCurrent,
    ShareGroupKey,
    ShareMember,
    StatePartitions,
    share_current_of,
    share_target_of,
    state_partitions_of,
)
from kbroker.protocol.codecs.schema import CoordinatorValue
from kbroker.protocol.messages.stored.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

NO_ASSIGNMENT: Final = ShareCurrent()


class ShareGroup:
    """One group. seen_topics: the map of topics with which `metadata_hash` was last compared.
    quiet_on: the map of topics with which no partition was left to assign or initialize, until a
    record of the group or of another member changes that.
    """

    __slots__ = (
        "currents",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "quiet_on",
        "seen_topics",
        "states",
        "subscriptions",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.members: dict[str, ShareMember] = {}
        self.subscriptions = Subscriptions()
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.targets: dict[str, Assignment] = {}
        self.currents: dict[str, ShareCurrent] = {}
        self.states = StatePartitions()
        self.seen_topics: object = None
        self.quiet_on: object = None

    def replay(self, key: ShareGroupKey, value: CoordinatorValue | None) -> None:
        """Apply one record; the tombstone of the whole group is handled by `groups`."""
        if not isinstance(key, ShareGroupCurrentMemberAssignmentKey):
            self.quiet_on = None
        match key:
            case ShareGroupMetadataKey():
                if isinstance(value, ShareGroupMetadataValue):
                    self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupMemberMetadataKey():
                if isinstance(value, ShareMember):
                    self.members[key.member_id] = value
                    self.subscriptions.put(key.member_id, value.subscribed_topic_names)
                else:
                    self.members.pop(key.member_id, None)
                    self.subscriptions.remove(key.member_id)
            case ShareGroupTargetAssignmentMetadataKey():
                if isinstance(value, ShareGroupTargetAssignmentMetadataValue):
                    self.target_epoch = value.assignment_epoch
                    self.target_timestamp_ms = value.assignment_timestamp
            case ShareGroupTargetAssignmentMemberKey():
                if isinstance(value, ShareGroupTargetAssignmentMemberValue):
                    self.targets[key.member_id] = share_target_of(value)
                else:
                    self.targets.pop(key.member_id, None)
            case ShareGroupCurrentMemberAssignmentKey():
                if isinstance(value, ShareGroupCurrentMemberAssignmentValue):
                    self.currents[key.member_id] = share_current_of(value)
                else:
                    self.currents.pop(key.member_id, None)
            case ShareGroupStatePartitionMetadataKey():
                self.states = StatePartitions()
                if isinstance(value, ShareGroupStatePartitionMetadataValue):
                    self.states = state_partitions_of(value)

    def current(self, member_id: str) -> ShareCurrent:
        """A member's current assignment; empty for an unknown member."""
        return self.currents.get(member_id, NO_ASSIGNMENT)

    def state(self) -> str:
        """The state under the name clients see."""
        return "Stable" if self.members else "Empty"

    def subscribed_names(self) -> set[str]:
        """All topics to which members subscribe."""
        return all_topics(self.subscriptions.distinct())
