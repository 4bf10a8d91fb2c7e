"""The leadership changes of one topic."""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.node.broker.topic_leadership import of_topic


def test_callbacks_of_one_topic() -> None:
    seen: list[tuple[int, int | None]] = []
    changed = of_topic("orders", lambda partition, epoch: seen.append((partition, epoch)))
    changed(TopicPartition("orders", 1), 5)
    changed(TopicPartition("others", 2), 5)
    assert seen == [(1, 5)]
