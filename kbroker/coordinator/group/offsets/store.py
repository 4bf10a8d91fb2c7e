"""The committed offsets of one shard.

Offsets committed inside a transaction are in `pending` until its marker. The topic's id is stored
with each offset which distinguishes the topic from one of the same name that was created later
(KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kbroker.coordinator.group.offsets.pending import OffsetPlace, PendingOffsets
from kbroker.coordinator.group.records import offset_tombstone
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import DeletedTopic
from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue

GroupOffsets = dict[str, dict[int, OffsetCommitValue]]
"""The offsets of one group: topic, partition, committed offset."""


class OffsetStore:
    """The committed and the pending offsets of one shard. Changed by replay only."""

    __slots__ = ("_offsets", "pending")

    def __init__(self) -> None:
        self._offsets: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply one record. A tombstone removes pending offsets too."""
        if value is not None:
            if self.pending.groups:
                self.pending.supersede(OffsetPlace.of(key))
            group_id, topic = key.group, key.topic
            topics = self._offsets.get(group_id)
            if topics is not None and topic in topics:
                topics[topic][key.partition] = value
            else:
                self._put(group_id, topic, key.partition, value)
            return
        if self.pending.groups:
            self.pending.remove(OffsetPlace.of(key))
        topics = self._offsets.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is not None and not partitions:
            del topics[key.topic]
            if not topics:
                del self._offsets[key.group]

    def _put(self, group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> None:
        topics = self._offsets.get(group_id)
        if topics is None:
            topics = self._offsets[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = value

    def replay_pending(
        self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue | None
    ) -> None:
        """Apply one record of a transactional batch: the offset is pending until the marker. A
        tombstone is applied at once, as in Kafka.
        """
        if value is None:
            self.replay(key, None)
        else:
            self.pending.add(producer_id, OffsetPlace.of(key), value)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker."""
        for place, value in self.pending.end(producer_id, commit=commit):
            self._put(*place, value)

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """Topic, partition, offset of one group."""
        return self._offsets.get(group_id, {})

    def walk(self) -> Iterator[tuple[str, str, int, OffsetCommitValue]]:
        """Group, topic, partition and offset of all committed offsets. The store may change between
        two steps: offsets that were added meanwhile may be missing.
        """
        for group_id in tuple(self._offsets):
            for topic, partitions in tuple(self._offsets.get(group_id, {}).items()):
                for partition, value in tuple(partitions.items()):
                    yield group_id, topic, partition, value

    def groups(self) -> list[str]:
        """Groups with at least one committed offset."""
        return sorted(self._offsets)

    def has_group(self, group_id: str) -> bool:
        """Whether the group has an offset, committed or pending."""
        return group_id in self._offsets or bool(self.pending.in_group(group_id))

    def has(self, place: OffsetPlace) -> bool:
        """Whether there is a committed or pending offset."""
        group_id, topic, partition = place
        if partition in self.of_group(group_id).get(topic, {}):
            return True
        return (topic, partition) in self.pending.in_group(group_id)

    def tombstones_of_group(self, group_id: str) -> Iterator[CoordinatorRecord]:
        """The tombstones of all offsets of a group, pending ones included."""
        offsets = self.of_group(group_id)
        for topic, partitions in offsets.items():
            for partition in partitions:
                yield offset_tombstone(group_id, topic, partition)
        for topic, partition in sorted(self.pending.in_group(group_id)):
            if partition not in offsets.get(topic, {}):
                yield offset_tombstone(group_id, topic, partition)

    def tombstones_of_topics(
        self, topics: Iterable[DeletedTopic]
    ) -> Iterator[CoordinatorRecord | None]:
        """The tombstones of all offsets of deleted topics, pending ones included, and None for each
        group and for each other offset that was looked at. The store may change between two steps:
        an offset of a topic of the same name that was created meanwhile stays.
        """
        deleted: dict[str, list[DeletedTopic]] = {}
        for topic in topics:
            deleted.setdefault(topic.name, []).append(topic)
        if not deleted:
            return
        for group_id in dict.fromkeys((*self._offsets, *self.pending.groups)):
            yield None
            for name in sorted(self.of_group(group_id).keys() & deleted.keys()):
                for partition in tuple(self.of_group(group_id).get(name, ())):
                    yield self._tombstone(OffsetPlace(group_id, name, partition), deleted[name])
            for name, partition in tuple(self.pending.in_group(group_id)):
                is_committed = partition in self.of_group(group_id).get(name, {})
                gone = () if is_committed else deleted.get(name, ())
                yield self._tombstone(OffsetPlace(group_id, name, partition), gone)

    def _tombstone(
        self, place: OffsetPlace, gone: Iterable[DeletedTopic]
    ) -> CoordinatorRecord | None:
        """The tombstone of an offset, committed or pending, that belongs to one of these topics."""
        group_id, name, partition = place
        values = self.pending.values(place)
        committed = self.of_group(group_id).get(name, {}).get(partition)
        if committed is not None:
            values.append(committed)
        is_gone = any(topic.has(value) for topic in gone for value in values)
        return offset_tombstone(*place) if is_gone else None
