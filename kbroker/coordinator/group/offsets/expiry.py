"""Which committed offsets have been kept long enough (`offsets.retention.minutes`, KIP-211)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.consumer.groups import ConsumerGroups
from kbroker.coordinator.group.consumer.records import group_tombstones
from kbroker.coordinator.group.offsets.store import OffsetStore
from kbroker.coordinator.group.records import NO_EXPIRY, group_tombstone, offset_tombstone
from kbroker.coordinator.group.streams.groups import StreamsGroups
from kbroker.coordinator.group.streams.records import streams_group_tombstones
from kbroker.coordinator.runtime.records import CoordinatorRecord

OFFSETS_PER_TURN: Final = 5_000
"""Committed offsets whose age is looked at in one turn of the loop; those of one group are in one
turn.
"""


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


class ExpirySweep:
    """One round through all groups of a shard, in turns."""

    __slots__ = ("_classic", "_consumer", "_left", "_streams")

    def __init__(
        self,
        consumer: ConsumerGroups,
        streams: StreamsGroups,
        classic: Mapping[str, ClassicGroup],
    ) -> None:
        self._consumer = consumer
        self._streams = streams
        self._classic = classic
        self._left = [*classic, *streams.groups, *consumer.groups]

    @property
    def is_over(self) -> bool:
        """Whether all groups were visited."""
        return not self._left

    def advance(self, expiry: OffsetExpiry) -> list[CoordinatorRecord]:
        """The records of one turn: the end of offsets whose time is over, and of groups that have
        no others left and no members.
        """
        records: list[CoordinatorRecord] = []
        visited = 0
        while self._left and visited < OFFSETS_PER_TURN:
            group_id = self._left.pop()
            visited += 1 + sum(map(len, expiry.offsets.of_group(group_id).values()))
            records += self._expired(group_id, expiry)
        return records

    def _expired(self, group_id: str, expiry: OffsetExpiry) -> list[CoordinatorRecord]:
        consumer_group = self._consumer.groups.get(group_id)
        modern = consumer_group or self._streams.groups.get(group_id)
        if modern is not None:
            ends, is_bare = expiry.of_group(group_id, modern.subscribed_names())
            if not is_bare or modern.members:
                return ends
            is_consumer = consumer_group is not None
            tombstones = group_tombstones if is_consumer else streams_group_tombstones
            return [*ends, *tombstones(group_id)]
        group = self._classic.get(group_id)
        if group is None:
            return []
        ends, is_bare = expiry.of_classic(group)
        return [*ends, group_tombstone(group_id)] if is_bare and group.is_idle else ends
