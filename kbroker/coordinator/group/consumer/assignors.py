"""Server-side assignors of consumer groups (KIP-848).

Pure functions of the subscriptions, the partition counts and the current assignment. Their cost
grows with the partitions, the members and the distinct subscriptions, not with the product of
partitions and members. `uniform` balances the number of partitions and moves as few as possible;
`range` gives each member a range of every topic, so that partitions with the same number are
assigned together, and ignores the current assignment. `reconciliation` moves members from the old
to the new assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import merge
from itertools import islice
from typing import Final

from kbroker.coordinator.group.membership.assignment import (
    Assignment,
    LeastLoaded,
    Subscriber,
    subscribers_by_topic,
)
from kbroker.model import TopicIdPartition, Uuid

MAX_ROUNDS: Final = 16
"""The maximum number of rounds when members subscribe to different topics. As in Kafka."""


Assignor = Callable[[Mapping[str, Subscriber], Mapping[Uuid, int]], dict[str, Assignment]]
"""(subscribers by member id, partition counts by topic id) -> an assignment for each of them."""


def assign_range(
    members: Mapping[str, Subscriber], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Each topic is divided into ranges; the first members by name get the longer ones."""
    result: dict[str, dict[Uuid, frozenset[int]]] = {member_id: {} for member_id in members}
    ordered = sorted(members, key=lambda member_id: (members[member_id].name, member_id))
    alike = subscribers_by_topic(members, ordered)
    for topic_id, count in partition_counts.items():
        subscriber_lists = alike.get(topic_id)
        if subscriber_lists is None:
            continue
        quota, longer = divmod(count, sum(map(len, subscriber_lists)))
        start = 0
        # Members after the first `count` get no partition.
        for index, rank in enumerate(islice(merge(*subscriber_lists), count)):
            end = start + quota + (index < longer)
            result[ordered[rank]][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


def assign_uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Balance the number of partitions per member, as far as subscriptions allow."""
    if not members:
        return {}
    subscriptions = {subscriber.topics for subscriber in members.values()}
    held = _still_valid(members, partition_counts)
    if len(subscriptions) == 1:
        _level_equals(held, _places(next(iter(subscriptions)), partition_counts))
    else:
        _level_unequals(held, members, partition_counts)
    return {member_id: _by_topic(places) for member_id, places in held.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by the name in configurations and requests."""


def _places(
    topics: frozenset[Uuid], partition_counts: Mapping[Uuid, int]
) -> list[TopicIdPartition]:
    return [
        (topic_id, partition)
        for topic_id in sorted(topics)
        for partition in range(partition_counts.get(topic_id, 0))
    ]


def _by_topic(places: list[TopicIdPartition]) -> Assignment:
    topics: dict[Uuid, set[int]] = {}
    for topic_id, partition in places:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}


def _still_valid(
    members: Mapping[str, Subscriber], partition_counts: Mapping[Uuid, int]
) -> dict[str, list[TopicIdPartition]]:
    """The partitions that each member may keep: they exist, the member subscribes to their topic,
    and no other member owns them.
    """
    taken: set[TopicIdPartition] = set()
    held: dict[str, list[TopicIdPartition]] = {}
    for member_id in sorted(members):
        subscriber = members[member_id]
        mine = held[member_id] = []
        for topic_id in sorted(subscriber.current):
            if topic_id not in subscriber.topics:
                continue
            count = partition_counts.get(topic_id, 0)
            for partition in sorted(subscriber.current[topic_id]):
                place = (topic_id, partition)
                if partition < count and place not in taken:
                    taken.add(place)
                    mine.append(place)
    return held


def _level_equals(held: dict[str, list[TopicIdPartition]], places: list[TopicIdPartition]) -> None:
    """For equal subscriptions: the quota of each member is known beforehand, and only partitions
    above it are moved.
    """
    quota, extra_count = divmod(len(places), len(held))
    for member_id in sorted(held, key=lambda member_id: (-len(held[member_id]), member_id)):
        mine = held[member_id]
        if len(mine) > quota and extra_count:
            del mine[quota + 1 :]
            extra_count -= 1
        else:
            del mine[quota:]
    taken = {place for mine in held.values() for place in mine}
    free = [place for place in places if place not in taken]
    free.reverse()
    for limit in (quota, quota + 1):
        for member_id in sorted(held):
            while free and len(held[member_id]) < limit:
                if limit > quota and not extra_count:
                    break
                held[member_id].append(free.pop())
                if limit > quota:
                    extra_count -= 1


def _level_unequals(
    held: dict[str, list[TopicIdPartition]],
    members: Mapping[str, Subscriber],
    partition_counts: Mapping[Uuid, int],
) -> None:
    """For different subscriptions: assign free partitions to the least loaded subscriber, then move
    partitions from the most to the least loaded members.
    """
    places = {member_id: set(mine) for member_id, mine in held.items()}
    poorest = LeastLoaded(members, sorted(members), lambda member_id: len(places[member_id]))
    taken = {place for mine in places.values() for place in mine}
    for topic_id in sorted(
        partition_counts, key=lambda topic_id: (poorest.count(topic_id), topic_id)
    ):
        if not poorest.count(topic_id):
            continue
        for partition in range(partition_counts[topic_id]):
            if (topic_id, partition) not in taken:
                other = poorest.of(topic_id)
                places[other].add((topic_id, partition))
                poorest.changed(other)
    for _ in range(MAX_ROUNDS):
        if not _level_once(places, poorest):
            break
    for member_id, mine in places.items():
        held[member_id] = sorted(mine)


def _level_once(places: dict[str, set[TopicIdPartition]], poorest: LeastLoaded) -> bool:
    """One round of moves from more to less loaded members. Returns whether a partition was
    moved.
    """
    least = min(map(len, places.values()))  # no member's load falls below that in this round
    has_moved = False
    for member_id in sorted(places, key=lambda member_id: (-len(places[member_id]), member_id)):
        mine = places[member_id]
        if len(mine) - least <= 1:
            continue
        for place in sorted(mine, reverse=True):
            other = poorest.of(place[0])
            if len(mine) - len(places[other]) > 1:
                mine.remove(place)
                places[other].add(place)
                poorest.changed(member_id)
                poorest.changed(other)
                has_moved = True
    return has_moved
