"""The number of partitions of an internal topic that coordinate keys.

It is the partition count of the topic when this broker first reads it: partitions added by
CreatePartitions coordinate nothing until the broker restarts, as in Kafka, which counts them at its
start. With another number a key would be coordinated by another partition, which does not have its
state.
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
    """The partition count of one internal topic. configured: the number with which the topic will
    be created.
    """

    __slots__ = ("_configured", "_count", "_name", "_topic_id", "_topics")

    def __init__(self, name: str, topics: Callable[[], NamedTopics], configured: int) -> None:
        self._name = name
        self._topics = topics
        self._configured = configured
        self._topic_id: Uuid | None = None
        self._count = 0

    def count(self) -> int:
        """The number of partitions; a topic that was deleted and created again is counted again."""
        topic = self._topics().topics.get(self._name)
        if topic is None:
            return self._configured
        if topic.topic_id != self._topic_id:
            self._topic_id, self._count = topic.topic_id, len(topic.partitions)
        return self._count
