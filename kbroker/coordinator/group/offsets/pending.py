"""Offsets committed in transactions that have not ended (KIP-98, KIP-447). `store` has the
committed offsets.

A commit marker turns them into committed offsets, except those that a later record of the log
replaced: an ordinary commit, or the offset of another transaction that ended first. So the order of
the records decides, not that of the markers, and compaction, which keeps the last record of a key,
does not change the result (Kafka compares `OffsetAndMetadata.recordOffset`). A tombstone also
removes pending offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue


class OffsetPlace(NamedTuple):
    """The group, topic and partition of an offset."""

    group_id: str
    topic: str
    partition: int

    @classmethod
    def of(cls, key: OffsetCommitKey) -> OffsetPlace:
        """The place of a record's key."""
        return cls(key.group, key.topic, key.partition)


class PendingOffsets:
    """The pending offsets of one shard. Changed by replay only."""

    __slots__ = ("_by_group", "_by_producer", "groups")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetPlace, OffsetCommitValue | None]] = {}
        """None: a later record replaced the offset; it stays unstable until the marker."""
        self._by_group: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """By group id, then (topic, partition): producer ids, in the order of their last records.
        """
        self.groups: Collection[str] = self._by_group.keys()
        """The ids of groups with pending offsets."""

    def add(self, producer_id: int, place: OffsetPlace, value: OffsetCommitValue) -> None:
        """Apply a record of a transactional batch."""
        self._by_producer.setdefault(producer_id, {})[place] = value
        places = self._by_group.setdefault(place.group_id, {})
        producers = places.setdefault((place.topic, place.partition), {})
        producers.pop(producer_id, None)
        producers[producer_id] = None

    def supersede(self, place: OffsetPlace) -> None:
        """Apply an ordinary commit, which replaces all pending offsets of this place."""
        for producer_id in self._producers(place):
            self._by_producer[producer_id][place] = None

    def remove(self, place: OffsetPlace) -> None:
        """Apply a tombstone."""
        for producer_id in self._producers(place):
            offsets = self._by_producer[producer_id]
            del offsets[place]
            if not offsets:
                del self._by_producer[producer_id]
        self._forget(place)

    def end(self, producer_id: int, *, commit: bool) -> list[tuple[OffsetPlace, OffsetCommitValue]]:
        """Apply a marker. Returns the offsets that it commits."""
        committed: list[tuple[OffsetPlace, OffsetCommitValue]] = []
        for place, value in self._by_producer.pop(producer_id, {}).items():
            producers = self._producers(place)
            if commit and value is not None:
                for other in producers:
                    if other == producer_id:
                        break
                    self._by_producer[other][place] = None
                committed.append((place, value))
            del producers[producer_id]
            if not producers:
                self._forget(place)
        return committed

    def in_group(self, group_id: str) -> Collection[tuple[str, int]]:
        """(topic, partition) of a group's pending offsets."""
        return self._by_group.get(group_id, {}).keys()

    def values(self, place: OffsetPlace) -> list[OffsetCommitValue]:
        """The pending offsets of this place that were not replaced, in the order of their
        records.
        """
        found = (self._by_producer[producer_id][place] for producer_id in self._producers(place))
        return [value for value in found if value is not None]

    def _producers(self, place: OffsetPlace) -> dict[int, None]:
        return self._by_group.get(place.group_id, {}).get((place.topic, place.partition), {})

    def _forget(self, place: OffsetPlace) -> None:
        places = self._by_group.get(place.group_id)
        if places is None:
            return
        places.pop((place.topic, place.partition), None)
        if not places:
            del self._by_group[place.group_id]
