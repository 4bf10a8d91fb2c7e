"""Expiry of committed offsets (`offsets.retention.minutes`, KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, Protocol

import msgspec

from kbroker.coordinator.group.offsets.store import OffsetStore
from kbroker.coordinator.group.records import NO_EXPIRY, offset_tombstone
from kbroker.coordinator.runtime.records import CoordinatorRecord

OFFSETS_PER_TURN: Final = 5_000
"""How many committed offsets are checked in one turn of the loop; those of one group are checked in
the same turn.
"""


class Retention(NamedTuple):
    """Which offsets of a group may expire. subscribed: topics whose offsets are kept.
    since_empty_ms: the start of the retention time of offsets that were committed before.
    """

    subscribed: Collection[str]
    since_empty_ms: int = 0


class ExpiringGroups(Protocol):
    """The groups of one type; implemented by a GroupKind."""

    def retention(self, group_id: str) -> Retention | None: ...
    def is_idle(self, group_id: str) -> bool: ...
    def end(self, group_id: str) -> list[CoordinatorRecord]: ...


class OffsetExpiry(msgspec.Struct, frozen=True):
    """One check of the offsets of a shard. wall_ms: the current time."""

    offsets: OffsetStore
    retention_ms: int
    wall_ms: int

    def of_group(self, group_id: str, retention: Retention) -> tuple[list[CoordinatorRecord], bool]:
        """The tombstones of expired offsets, and whether the group has no other offset, committed
        or pending.
        """
        subscribed, since_empty_ms = retention
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
    """One pass over all groups of a shard, in turns. group_ids: visited from the last to the first;
    kind_of: returns the current kind of a group, None if it was deleted.
    """

    __slots__ = ("_kind_of", "_left")

    def __init__(
        self, group_ids: Iterable[str], kind_of: Callable[[str], ExpiringGroups | None]
    ) -> None:
        self._left = list(group_ids)
        self._kind_of = kind_of

    @property
    def is_over(self) -> bool:
        """Whether all groups were visited."""
        return not self._left

    def advance(self, expiry: OffsetExpiry) -> list[CoordinatorRecord]:
        """The records of one turn: the tombstones of expired offsets, and of groups that have
        neither other offsets nor members.
        """
        records: list[CoordinatorRecord] = []
        visited = 0
        while self._left and visited < OFFSETS_PER_TURN:
            group_id = self._left.pop()
            visited += 1 + sum(map(len, expiry.offsets.of_group(group_id).values()))
            records += self._expired(group_id, expiry)
        return records

    def _expired(self, group_id: str, expiry: OffsetExpiry) -> list[CoordinatorRecord]:
        kind = self._kind_of(group_id)
        retention = None if kind is None else kind.retention(group_id)
        if kind is None or retention is None:
            return []
        ends, is_bare = expiry.of_group(group_id, retention)
        return [*ends, *kind.end(group_id)] if is_bare and kind.is_idle(group_id) else ends
