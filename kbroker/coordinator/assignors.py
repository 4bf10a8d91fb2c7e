"""Server-side assignors of consumer groups (KIP-848): who shall get which partitions.

Pure functions of the subscriptions, of how many partitions there are, and of the assignment so far.
`uniform` evens out the number of partitions and moves as few as it can; `range` gives each member a
piece of every topic, so that partitions of the same number meet, and takes no heed of the past. How
members get from the old to the new assignment is in `reconciliation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.model import Uuid

Assignment = Mapping[Uuid, frozenset[int]]
"""Partitions by topic id; no topic without partitions."""
Place = tuple[Uuid, int]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it. name: its instance id, else its member id. current: what it
    was to have so far.
    """

    name: str
    topics: frozenset[Uuid]
    current: Assignment


Assignor = Callable[[Mapping[str, Subscriber], Mapping[Uuid, int]], dict[str, Assignment]]
"""(subscribers by member id, partition counts by topic id) -> an assignment for each of them."""


def assign_range(
    members: Mapping[str, Subscriber], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Each topic in pieces of neighbours; the first members by name get the longer ones."""
    result: dict[str, dict[Uuid, frozenset[int]]] = {member_id: {} for member_id in members}
    ordered = sorted(members, key=lambda member_id: (members[member_id].name, member_id))
    for topic_id, count in partition_counts.items():
        subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topics]
        if not subscribers:
            continue
        quota, longer = divmod(count, len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + quota + (index < longer)
            if end > start:
                result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


def assign_uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """As many partitions for each as for the others, as far as subscriptions allow."""
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
"""By the name that configurations and clients use."""


def _places(topics: frozenset[Uuid], partition_counts: Mapping[Uuid, int]) -> list[Place]:
    return [
        (topic_id, partition)
        for topic_id in sorted(topics)
        for partition in range(partition_counts.get(topic_id, 0))
    ]


def _by_topic(places: list[Place]) -> Assignment:
    topics: dict[Uuid, set[int]] = {}
    for topic_id, partition in places:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}


def _still_valid(
    members: Mapping[str, Subscriber], partition_counts: Mapping[Uuid, int]
) -> dict[str, list[Place]]:
    """What each may keep: it exists, is subscribed to, and nobody else has it."""
    taken: set[Place] = set()
    held: dict[str, list[Place]] = {}
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


def _level_equals(held: dict[str, list[Place]], places: list[Place]) -> None:
    """All may have everything: quotas are known beforehand, and only what is above them moves."""
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
    held: dict[str, list[Place]],
    members: Mapping[str, Subscriber],
    partition_counts: Mapping[Uuid, int],
) -> None:
    """Give what is free to the poorest who may have it, then let the rich give to the poor."""
    subscribers = {
        topic_id: [
            member_id for member_id in sorted(members) if topic_id in members[member_id].topics
        ]
        for topic_id in sorted(partition_counts)
    }
    taken = {place for mine in held.values() for place in mine}

    def poorest(topic_id: Uuid) -> str:
        return min(subscribers[topic_id], key=lambda member_id: (len(held[member_id]), member_id))

    for topic_id in sorted(
        subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id)
    ):
        if not subscribers[topic_id]:
            continue
        for partition in range(partition_counts[topic_id]):
            if (topic_id, partition) not in taken:
                held[poorest(topic_id)].append((topic_id, partition))
    moved = True
    while moved:  # each move makes the sum of squares smaller, so there is an end
        moved = False
        for member_id in sorted(held, key=lambda member_id: (-len(held[member_id]), member_id)):
            for place in sorted(held[member_id], reverse=True):
                other = poorest(place[0])
                if len(held[member_id]) - len(held[other]) > 1:
                    held[member_id].remove(place)
                    held[other].append(place)
                    moved = True
