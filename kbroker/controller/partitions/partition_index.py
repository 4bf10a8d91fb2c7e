"""The partitions of a broker or of a log directory, so that a decision about it costs what these
partitions cost, however many others the cluster has.

The indexes follow from the image alone: they are made of it, and `follow` takes over what a replay
changed. Each is made at its first use, so that a node pays only for what its decisions ask. Kafka:
BrokersToIsrs, BrokersToElrs, and the sets in ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Generic, TypeVar

from kbroker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from kbroker.model import TopicIdPartition, Uuid, is_reserved_uuid

PARTITIONS_PER_STEP: Final = 1000
TOPICS_PER_STEP: Final = 100

K = TypeVar("K", int, Uuid)


class _Index(Generic[K]):
    """Partitions by key. keys: the keys a partition stands under.

    The partitions of a topic are the bits of one integer: a topic with a single partition, as most
    have, costs an entry in a dict, and one with 10,000 costs 1.3 KB per key.
    """

    __slots__ = ("_bits", "_keys")

    def __init__(self, keys: Callable[[PartitionImage], Collection[K]]) -> None:
        self._keys: Callable[[PartitionImage], Collection[K]] = keys
        self._bits: dict[K, dict[Uuid, int]] = {}

    def follow(
        self,
        topic_id: Uuid,
        old: Mapping[int, PartitionImage],
        new: Mapping[int, PartitionImage],
    ) -> Iterator[None]:
        """Steps that take over the change of a topic's partitions, {} standing for no topic."""
        keys = self._keys
        added: dict[K, list[int]] = {}
        removed: dict[K, list[int]] = {}
        for count, index in enumerate(new if len(new) >= len(old) else old, 1):
            before, after = old.get(index), new.get(index)
            if before is not after:
                old_keys: Collection[K] = () if before is None else keys(before)
                new_keys: Collection[K] = () if after is None else keys(after)
                for key in old_keys:
                    if key not in new_keys:
                        removed.setdefault(key, []).append(index)
                for key in new_keys:
                    if key not in old_keys:
                        added.setdefault(key, []).append(index)
            if count % PARTITIONS_PER_STEP == 0:
                yield
        for key, indexes in removed.items():
            topics = self._bits[key]
            bits = topics[topic_id] & ~_bits(indexes)
            if bits:
                topics[topic_id] = bits
            else:
                del topics[topic_id]
                if not topics:
                    del self._bits[key]
        for key, indexes in added.items():
            topics = self._bits.setdefault(key, {})
            topics[topic_id] = topics.get(topic_id, 0) | _bits(indexes)

    def partitions(self, key: K) -> list[TopicIdPartition]:
        """The partitions under that key, those of a topic in order."""
        return [
            (topic_id, index)
            for topic_id, bits in self._bits.get(key, {}).items()
            for index in _indexes(bits)
        ]

    def __contains__(self, key: K) -> bool:
        return key in self._bits


def _bits(indexes: list[int]) -> int:
    """The integer that has these bits set."""
    flags = bytearray(max(indexes) // 8 + 1)
    for index in indexes:
        flags[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(flags, "little")


def _indexes(bits: int) -> Iterator[int]:
    """The bits that are set, in order."""
    text = bin(bits)[:1:-1]
    index = text.find("1")
    while index >= 0:
        yield index
        index = text.find("1", index + 1)


def _leader(partition: PartitionImage) -> tuple[int, ...]:
    return (partition.leader,) if partition.leader in partition.isr else ()


def _leaderless(partition: PartitionImage) -> tuple[int, ...]:
    return () if partition.has_leader else (NO_LEADER,)


_ALL: Final = 0
"""The one key of an index that is a set."""


def _imbalanced(partition: PartitionImage) -> tuple[int, ...]:
    return () if partition.has_preferred_leader else (_ALL,)


def _reassigning(partition: PartitionImage) -> tuple[int, ...]:
    return (_ALL,) if partition.is_reassigning else ()


def _directories(partition: PartitionImage) -> set[Uuid]:
    return {each for each in partition.directories if not is_reserved_uuid(each)}


class PartitionIndex:
    """All indexes over one image, the controller's newest."""

    __slots__ = ("_by_broker", "_by_directory", "_image")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._by_broker: dict[Callable[[PartitionImage], Collection[int]], _Index[int]] = {}
        self._by_directory: _Index[Uuid] | None = None

    def in_isr(self, broker_id: int) -> list[TopicIdPartition]:
        """Partitions that have the broker in their ISR."""
        return self._index(_isr).partitions(broker_id)

    def in_elr(self, broker_id: int) -> list[TopicIdPartition]:
        """Partitions that have the broker among their eligible leader replicas (KIP-966)."""
        return self._index(_elr).partitions(broker_id)

    def has_leaderships(self, broker_id: int) -> bool:
        """Whether the broker leads a partition."""
        return broker_id in self._index(_leader)

    def leaderless(self) -> list[TopicIdPartition]:
        """Partitions without a leader."""
        return self._index(_leaderless).partitions(NO_LEADER)

    def imbalanced(self) -> list[TopicIdPartition]:
        """Partitions that are not led by their first replica."""
        return self._index(_imbalanced).partitions(_ALL)

    def reassigning(self) -> list[TopicIdPartition]:
        """Partitions with a reassignment under way."""
        return self._index(_reassigning).partitions(_ALL)

    def in_directory(self, directory_id: Uuid) -> list[TopicIdPartition]:
        """Partitions with a replica in that log directory."""
        if self._by_directory is None:
            self._by_directory = self._made(_Index(_directories))
        return self._by_directory.partitions(directory_id)

    def follow(self, image: MetadataImage) -> Iterator[None]:
        """Steps to the next image, which is the present one with records replayed. Until the last
        one is taken the indexes are of neither.
        """
        old, self._image = self._image, image
        indexes: list[_Index[int] | _Index[Uuid]] = [*self._by_broker.values()]
        if self._by_directory is not None:
            indexes.append(self._by_directory)
        if not indexes:
            return
        for count, topic_id in enumerate(image.topics_by_id.changed_keys(old.topics_by_id), 1):
            if count % TOPICS_PER_STEP == 0:
                yield
            before, after = old.topics_by_id.get(topic_id), image.topics_by_id.get(topic_id)
            for index in indexes:
                yield from index.follow(
                    topic_id,
                    {} if before is None else before.partitions,
                    {} if after is None else after.partitions,
                )

    def adopt(self, image: MetadataImage) -> None:
        """Use another image that has equal partitions."""
        self._image = image

    def _index(self, keys: Callable[[PartitionImage], Collection[int]]) -> _Index[int]:
        index = self._by_broker.get(keys)
        if index is None:
            index = self._by_broker[keys] = self._made(_Index(keys))
        return index

    def _made(self, index: _Index[K]) -> _Index[K]:
        for topic_id, topic in self._image.topics_by_id.items():
            for _ in index.follow(topic_id, {}, topic.partitions):
                pass
        return index


def _isr(partition: PartitionImage) -> tuple[int, ...]:
    return partition.isr


def _elr(partition: PartitionImage) -> tuple[int, ...]:
    return partition.elr
