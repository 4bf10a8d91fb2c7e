"""The assignor `simple` of share groups (KIP-932): who reads which partitions, several at one.

Every partition has a member and every member a partition, as far as subscriptions allow; beyond
that members are spread evenly over partitions and partitions over members, and stay where they are
if that is even enough. A pure function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.coordinator.assignors import Assignment, Place, Subscriber
from kbroker.model import Uuid


def assign_simple(
    members: Mapping[str, Subscriber], assignable: Mapping[Uuid, Iterable[int]]
) -> dict[str, Assignment]:
    """An assignment for each member. assignable: partitions by topic id."""
    ordered = sorted(members, key=lambda member_id: (members[member_id].name, member_id))
    places: list[Place] = [
        (topic_id, partition)
        for topic_id in sorted(assignable)
        for partition in sorted(assignable[topic_id])
    ]
    result: dict[str, set[Place]] = {member_id: set() for member_id in ordered}
    sharers: dict[Place, int] = dict.fromkeys(places, 0)
    _give_each_partition_a_member(members, ordered, places, result, sharers)
    _give_each_member_a_partition(members, ordered, places, result, sharers)
    return {member_id: _by_topic(given) for member_id, given in result.items()}


def _give_each_partition_a_member(
    members: Mapping[str, Subscriber],
    ordered: list[str],
    places: list[Place],
    result: dict[str, set[Place]],
    sharers: dict[Place, int],
) -> None:
    quota, longer = divmod(len(places), len(ordered)) if ordered else (0, 0)
    left = []
    for place in places:
        holders = [
            member_id
            for member_id in ordered
            if _has(members[member_id].current, place) and place[0] in members[member_id].topics
        ]
        keeper = min(holders, key=lambda member_id: len(result[member_id]), default=None)
        load = 0 if keeper is None else len(result[keeper])
        if keeper is None or load > quota or (load == quota and not longer):
            left.append(place)
            continue
        longer -= load == quota
        result[keeper].add(place)
        sharers[place] += 1
    for place in left:
        subscribers = [member_id for member_id in ordered if place[0] in members[member_id].topics]
        if subscribers:
            result[min(subscribers, key=lambda member_id: len(result[member_id]))].add(place)
            sharers[place] += 1


def _give_each_member_a_partition(
    members: Mapping[str, Subscriber],
    ordered: list[str],
    places: list[Place],
    result: dict[str, set[Place]],
    sharers: dict[Place, int],
) -> None:
    quota, longer = divmod(len(ordered), len(places)) if places else (0, 0)
    left = []
    for member_id in ordered:
        if result[member_id]:
            continue
        member = members[member_id]
        kept = [
            place
            for place in places
            if _has(member.current, place)
            and place[0] in member.topics
            and sharers[place] < quota + (longer > 0)
        ]
        if not kept:
            left.append(member_id)
            continue
        longer -= sharers[kept[0]] == quota
        result[member_id].add(kept[0])
        sharers[kept[0]] += 1
    for member_id in left:
        subscribed = [place for place in places if place[0] in members[member_id].topics]
        if subscribed:
            place = min(subscribed, key=lambda place: sharers[place])
            result[member_id].add(place)
            sharers[place] += 1


def _has(assignment: Assignment, place: Place) -> bool:
    return place[1] in assignment.get(place[0], ())


def _by_topic(places: Iterable[Place]) -> Assignment:
    topics: dict[Uuid, set[int]] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}
