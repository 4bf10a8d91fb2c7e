"""How many partitions of an internal topic coordinate keys.

As many as the topic has when this broker first looks: CreatePartitions adds partitions that
coordinate nothing until the broker starts again, as in Kafka, which counts them at its start. With
another number a key would be coordinated by another partition, which does not have its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kbroker.coordinator.topics import ClusterTopic
from kbroker.model import Uuid


class NamedTopics(Protocol):
    """Topics by name; metadata's MetadataImage has them."""

    @property
    def topics(self) -> Mapping[str, ClusterTopic]: ...


class KeyPartitions:
    """Of one internal topic. configured: the number that the topic will be created with."""

    __slots__ = ("_configured", "_count", "_name", "_topic_id", "_topics")

    def __init__(self, name: str, topics: Callable[[], NamedTopics], configured: int) -> None:
        self._name = name
        self._topics = topics
        self._configured = configured
        self._topic_id: Uuid | None = None
        self._count = 0

    def count(self) -> int:
        """The number of partitions; a topic that was deleted and created anew is counted again."""
        topic = self._topics().topics.get(self._name)
        if topic is None:
            return self._configured
        if topic.topic_id != self._topic_id:
            self._topic_id, self._count = topic.topic_id, len(topic.partitions)
        return self._count
