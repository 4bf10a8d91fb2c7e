"""The hash of a group's topics, which changes when a topic is created or deleted, gets partitions,
or moves to other racks. It equals Kafka's, so that a Kafka that takes over a group detects no
change.

XXH3 over each topic (a version byte, id, name, partitions, the racks of their replicas in order),
then over the hashes of all topics by name; integers are little-endian, strings are UTF-16, followed
by their length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from kbroker.coordinator.topics import ClusterTopics, PartitionRacks
from kbroker.model import Uuid
from kbroker.protocol.xxh3 import xxh3_64

NO_TOPICS: Final = 0
_VERSION: Final = b"\0"
_I32: Final = struct.Struct("<i")


def metadata_hash(names: Iterable[str], cluster: ClusterTopics) -> int:
    """The hash of these topics, as an int64; NO_TOPICS if none of them exists."""
    hashes = []
    for name in sorted(names):
        topic = cluster.topics.get(name)
        if topic is not None:
            racks = cluster.partition_racks(name)
            hashes.append(_topic_hash(name, topic.topic_id, len(topic.partitions), racks))
    if not hashes:
        return NO_TOPICS
    value = _group_hash(b"".join(hashes))
    return value - (1 << 64) if value >> 63 else value


@lru_cache(maxsize=32)  # members that join one by one mostly have the same
def _group_hash(hashes: bytes) -> int:
    return xxh3_64(hashes)


@lru_cache(maxsize=10_000)
def _topic_hash(name: str, topic_id: Uuid, count: int, racks: PartitionRacks) -> bytes:
    parts = [_VERSION, topic_id[7::-1], topic_id[:7:-1], _string(name), _I32.pack(count)]
    for partition in range(count):
        parts.append(_I32.pack(partition))
        if racks:
            for rack in sorted(racks[partition]):
                parts += [_I32.pack(_length(rack)), _string(rack)]
    return xxh3_64(b"".join(parts)).to_bytes(8, "little")


def _length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _string(text: str) -> bytes:
    return text.encode("utf-16-le") + _I32.pack(_length(text))
