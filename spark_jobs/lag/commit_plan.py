"""Which offsets of a query a group gets: a group never goes back. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.client.cluster import TopicPartition

from ..checkpoint import Offsets


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """offsets: to be committed. ahead: partitions whose committed offset is higher than the query's
    and stays. replaced: partitions whose committed offset is behind the end of the log, so that it
    belongs to an earlier topic of the name.
    """

    offsets: Offsets
    ahead: tuple[TopicPartition, ...] = ()
    replaced: tuple[TopicPartition, ...] = ()


def ahead_of(ends: Offsets, committed: Offsets) -> list[TopicPartition]:
    """The partitions whose committed offset is higher than the query's, sorted."""
    return sorted(
        TopicPartition(topic, partition)
        for topic, offsets in ends.items()
        for partition, offset in offsets.items()
        if committed.get(topic, {}).get(partition, offset) > offset
    )


def plan_commit(
    ends: Offsets, committed: Offsets, log_ends: dict[TopicPartition, int]
) -> CommitPlan:
    """The plan for a query that has read up to `ends` (exclusive). log_ends: of the partitions that
    `ahead_of` gives.

    Partitions whose offset has not changed are committed again: Kafka expires the offset of each
    partition of a group without members by itself.
    """
    ahead = ahead_of(ends, committed)
    replaced = [
        place for place in ahead if committed[place.topic][place.partition] > log_ends[place]
    ]
    kept = set(ahead) - set(replaced)
    offsets = {
        topic: {
            partition: offset
            for partition, offset in partitions.items()
            if TopicPartition(topic, partition) not in kept
        }
        for topic, partitions in ends.items()
    }
    return CommitPlan(
        {topic: partitions for topic, partitions in offsets.items() if partitions},
        tuple(sorted(kept)),
        tuple(replaced),
    )
