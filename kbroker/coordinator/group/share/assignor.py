"""The assignor `simple` of share groups (KIP-932), which assigns a partition to several members.

Every partition gets a member and every member a partition, as far as subscriptions allow; beyond
that, members are balanced over partitions and partitions over members, and current assignments are
kept if the balance allows. A pure function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace

from kbroker.coordinator.group.membership.assignment import Assignment, LeastLoaded, Subscriber
from kbroker.model import TopicIdPartition, Uuid


def assign_simple(
    members: Mapping[str, Subscriber], assignable: Mapping[Uuid, Iterable[int]]
) -> dict[str, Assignment]:
    """An assignment for each member. assignable: partitions by topic id."""
    ordered = sorted(members, key=lambda member_id: (members[member_id].name, member_id))
    places: list[TopicIdPartition] = [
        (topic_id, partition)
        for topic_id in sorted(assignable)
        for partition in sorted(assignable[topic_id])
    ]
    result: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in ordered}
    sharers: dict[TopicIdPartition, int] = dict.fromkeys(places, 0)
    _give_each_partition_a_member(members, ordered, places, result, sharers)
    _give_each_member_a_partition(members, ordered, places, result, sharers)
    return {member_id: _by_topic(given) for member_id, given in result.items()}


def _give_each_partition_a_member(
    members: Mapping[str, Subscriber],
    ordered: list[str],
    places: list[TopicIdPartition],
    result: dict[str, set[TopicIdPartition]],
    sharers: dict[TopicIdPartition, int],
) -> None:
    quota, longer = divmod(len(places), len(ordered)) if ordered else (0, 0)
    holders: dict[TopicIdPartition, list[str]] = {}
    for member_id in ordered:
        for place in _still_valid(members[member_id], sharers):
            holders.setdefault(place, []).append(member_id)
    left = []
    for place in places:
        keeper = min(
            holders.get(place, ()), key=lambda member_id: len(result[member_id]), default=None
        )
        load = 0 if keeper is None else len(result[keeper])
        if keeper is None or load > quota or (load == quota and not longer):
            left.append(place)
            continue
        longer -= load == quota
        result[keeper].add(place)
        sharers[place] += 1
    idlest = LeastLoaded(members, ordered, lambda member_id: len(result[member_id]))
    for place in left:
        if idlest.count(place[0]):
            member_id = idlest.of(place[0])
            result[member_id].add(place)
            idlest.changed(member_id)
            sharers[place] += 1


def _give_each_member_a_partition(
    members: Mapping[str, Subscriber],
    ordered: list[str],
    places: list[TopicIdPartition],
    result: dict[str, set[TopicIdPartition]],
    sharers: dict[TopicIdPartition, int],
) -> None:
    quota, longer = divmod(len(ordered), len(places)) if places else (0, 0)
    left = []
    for member_id in ordered:
        if result[member_id]:
            continue
        limit = quota + (longer > 0)
        kept = next(
            (
                place
                for place in _still_valid(members[member_id], sharers)
                if sharers[place] < limit
            ),
            None,
        )
        if kept is None:
            left.append(member_id)
            continue
        longer -= sharers[kept] == quota
        result[member_id].add(kept)
        sharers[kept] += 1
    emptiest: dict[frozenset[Uuid], list[tuple[int, TopicIdPartition]]] = {}
    for member_id in left:
        topics = members[member_id].topics
        heap = emptiest.get(topics)
        if heap is None:
            heap = emptiest[topics] = [
                (sharers[place], place) for place in places if place[0] in topics
            ]
            heapify(heap)
        while heap and heap[0][0] != sharers[heap[0][1]]:
            heapreplace(heap, (sharers[heap[0][1]], heap[0][1]))
        if heap:
            place = heap[0][1]
            result[member_id].add(place)
            sharers[place] += 1


def _still_valid(
    member: Subscriber, sharers: Mapping[TopicIdPartition, int]
) -> list[TopicIdPartition]:
    """The member's current partitions that it may keep: assignable and subscribed. In order."""
    return [
        place
        for topic_id in sorted(member.current)
        if topic_id in member.topics
        for partition in sorted(member.current[topic_id])
        if (place := (topic_id, partition)) in sharers
    ]


def _by_topic(places: Iterable[TopicIdPartition]) -> Assignment:
    topics: dict[Uuid, set[int]] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}
