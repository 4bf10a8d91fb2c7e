"""Who leads the partitions of one topic, for its coordinator."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.model import TopicPartition


def of_topic(
    topic: str, on_leadership: Callable[[int, int | None], None]
) -> Callable[[TopicPartition, int | None], None]:
    """on_leadership for the partitions of one topic only."""

    def changed(topic_partition: TopicPartition, leader_epoch: int | None) -> None:
        if topic_partition.topic == topic:
            on_leadership(topic_partition.partition, leader_epoch)

    return changed
