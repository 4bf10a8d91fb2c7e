"""Decodes the data that classic consumers send in JoinGroup and SyncGroup (KIP-429, KIP-792,
KIP-881): int16 version and body. A newer version than ours is decoded as our newest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from kbroker.model import Uuid
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.messages.coordinators.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

PROTOCOL_TYPE: Final = "consumer"
NEWEST_VERSION: Final = 3

_INT16: Final = struct.Struct(">h")


class NamedTopic(Protocol):
    """A topic of the cluster."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> Uuid: ...


def version_of(data: bytes) -> int:
    """Raises MalformedRequest."""
    if len(data) < 2:
        raise MalformedRequest(f"{len(data)} bytes, at least 2 expected")
    version = int(_INT16.unpack_from(data)[0])
    if version < 0:
        raise MalformedRequest(f"there is no version {version}")
    return min(version, NEWEST_VERSION)


def subscription_of(data: bytes) -> ConsumerProtocolSubscription:
    """Raises MalformedRequest."""
    subscription, _ = decode(ConsumerProtocolSubscription, data, version_of(data), 2)
    return subscription


def assignment_of(data: bytes) -> ConsumerProtocolAssignment:
    """Raises MalformedRequest."""
    assignment, _ = decode(ConsumerProtocolAssignment, data, version_of(data), 2)
    return assignment


def assignment_bytes(
    partitions: Mapping[Uuid, Iterable[int]], topics: Mapping[Uuid, NamedTopic], version: int
) -> bytes:
    """Encode an assignment for its member; deleted topics are left out."""
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic.name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (topic := topics.get(topic_id)) is not None
        ]
    )
    return _INT16.pack(version) + encode(assignment, version)


def partitions_by_id(
    partitions: Iterable[
        ConsumerProtocolAssignment.TopicPartition | ConsumerProtocolSubscription.TopicPartition
    ],
    topics: Mapping[str, NamedTopic],
) -> dict[Uuid, frozenset[int]]:
    """Partitions by topic id; deleted topics are left out."""
    found: dict[Uuid, frozenset[int]] = {}
    for entry in partitions:
        topic = topics.get(entry.topic)
        if topic is not None and entry.partitions:
            known = found.get(topic.topic_id, frozenset())
            found[topic.topic_id] = known.union(entry.partitions)
    return found
