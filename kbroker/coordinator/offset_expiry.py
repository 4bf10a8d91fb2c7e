"""Which committed offsets have been kept long enough (`offsets.retention.minutes`, KIP-211)."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.group_state import GroupState
from kbroker.coordinator.offsets import OffsetStore
from kbroker.coordinator.records import NO_EXPIRY, CoordinatorRecord, offset_tombstone


@dataclass(frozen=True, slots=True)
class OffsetExpiry:
    """One look at the offsets of a shard. wall_ms: now."""

    offsets: OffsetStore
    retention_ms: int
    wall_ms: int

    def of_classic(self, group: ClassicGroup) -> tuple[list[CoordinatorRecord], bool]:
        """As `of_group`. Time runs from when the group became empty, for a simple consumer from the
        commit; offsets of a group at work end only where nobody subscribes to their topic any more.
        """
        if group.protocol_type is None:
            return self.of_group(group.group_id, frozenset())
        if group.state is GroupState.EMPTY:
            return self.of_group(group.group_id, frozenset(), group.state_since_ms)
        subscribed = group.subscribed_topics() if group.state is GroupState.STABLE else None
        if subscribed is None:
            return [], False
        return self.of_group(group.group_id, subscribed)

    def of_group(
        self, group_id: str, subscribed: frozenset[str] | set[str], since_empty_ms: int = 0
    ) -> tuple[list[CoordinatorRecord], bool]:
        """The end of offsets whose time is over, and whether no other is left, or under way in a
        transaction.
        """
        tombstones: list[CoordinatorRecord] = []
        unstable = self.offsets.pending.in_group(group_id)
        is_bare = not unstable
        for topic, partitions in self.offsets.of_group(group_id).items():
            for partition, value in partitions.items():
                until = value.expire_timestamp
                if until == NO_EXPIRY:
                    until = max(value.commit_timestamp, since_empty_ms) + self.retention_ms
                if (
                    self.wall_ms >= until
                    and topic not in subscribed
                    and (topic, partition) not in unstable
                ):
                    tombstones.append(offset_tombstone(group_id, topic, partition))
                else:
                    is_bare = False
        return tombstones, is_bare
