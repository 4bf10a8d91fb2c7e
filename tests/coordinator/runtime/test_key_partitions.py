"""The number of partitions that coordinate keys does not change while a broker runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.coordinator.runtime.key_partitions import KeyPartitions
from kbroker.coordinator.topics import ClusterTopic
from kbroker.model import Uuid


@dataclass
class Topic:
    topic_id: Uuid
    partitions: dict[int, object]
    name: str = "__keys"


@dataclass
class Topics:
    topics: dict[str, ClusterTopic] = field(default_factory=dict)

    def create(self, topic_id: Uuid, count: int) -> None:
        self.topics["__keys"] = Topic(topic_id, dict.fromkeys(range(count)))


def test_the_configured_number_holds_until_the_topic_is_there() -> None:
    topics = Topics()
    partitions = KeyPartitions("__keys", lambda: topics, 50)
    assert partitions.count() == 50
    topics.create(b"1" * 16, 3)
    assert partitions.count() == 3


def test_partitions_that_are_added_coordinate_nothing() -> None:
    topics = Topics()
    partitions = KeyPartitions("__keys", lambda: topics, 50)
    topics.create(b"1" * 16, 3)
    assert partitions.count() == 3
    topics.create(b"1" * 16, 7)
    assert partitions.count() == 3
    started_later = KeyPartitions("__keys", lambda: topics, 50)
    assert started_later.count() == 7


def test_a_topic_that_is_created_anew_is_counted_anew() -> None:
    topics = Topics()
    partitions = KeyPartitions("__keys", lambda: topics, 50)
    topics.create(b"1" * 16, 3)
    assert partitions.count() == 3
    del topics.topics["__keys"]
    assert partitions.count() == 50
    topics.create(b"2" * 16, 4)
    assert partitions.count() == 4
