"""The common data of partition assignors for all group types: assignments, subscribers, and the
search for the subscriber with the fewest partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from kbroker.model import Uuid

Assignment = Mapping[Uuid, frozenset[int]]
"""Partitions by topic id; topics without partitions are left out."""


class Subscriber(msgspec.Struct, frozen=True):
    """A member as an assignor sees it. name: its instance id, else its member id. current: its
    current target.
    """

    name: str
    topics: frozenset[Uuid]
    current: Assignment


def subscribers_by_topic(
    members: Mapping[str, Subscriber], ordered: Sequence[str]
) -> dict[Uuid, list[list[int]]]:
    """For each topic the members that subscribe to it, as lists of ascending indexes into ordered:
    one list per distinct subscription, shared by its topics.
    """
    alike: dict[frozenset[Uuid], list[int]] = {}
    for rank, member_id in enumerate(ordered):
        alike.setdefault(members[member_id].topics, []).append(rank)
    result: dict[Uuid, list[list[int]]] = {}
    for topics, ranks in alike.items():
        for topic_id in topics:
            result.setdefault(topic_id, []).append(ranks)
    return result


class LeastLoaded:
    """Finds the subscriber of a topic with the lowest load, the first in ordered if several have
    it.

    There is one heap per distinct subscription, so that a search visits one entry per distinct
    subscription, not per member. load: the current load of a member.
    """

    def __init__(
        self,
        members: Mapping[str, Subscriber],
        ordered: Sequence[str],
        load: Callable[[str], int],
    ) -> None:
        self._load = load
        self._ordered = ordered
        self._heaps: dict[str, list[tuple[int, int]]] = {}
        """For the subscription of each member: (load, rank), some entries with an outdated load."""
        self._ranks = {member_id: rank for rank, member_id in enumerate(ordered)}
        self._of_topic: dict[Uuid, list[list[tuple[int, int]]]] = {}
        self._counts: dict[Uuid, int] = {}
        heaps: dict[int, list[tuple[int, int]]] = {}
        for topic_id, lists in subscribers_by_topic(members, ordered).items():
            self._counts[topic_id] = sum(map(len, lists))
            for ranks in lists:
                heap = heaps.get(id(ranks))
                if heap is None:
                    heap = heaps[id(ranks)] = [(load(ordered[rank]), rank) for rank in ranks]
                    heapify(heap)
                    self._heaps.update(dict.fromkeys((ordered[rank] for rank in ranks), heap))
                self._of_topic.setdefault(topic_id, []).append(heap)

    def count(self, topic_id: Uuid) -> int:
        """How many members subscribe to that topic."""
        return self._counts.get(topic_id, 0)

    def of(self, topic_id: Uuid) -> str:
        """The subscriber of that topic with the lowest load; the topic must have one."""
        return self._ordered[min(map(self._first, self._of_topic[topic_id]))[1]]

    def changed(self, member_id: str) -> None:
        """The load of a member has changed."""
        heap = self._heaps.get(member_id)
        if heap is not None:
            heappush(heap, (self._load(member_id), self._ranks[member_id]))

    def _first(self, heap: list[tuple[int, int]]) -> tuple[int, int]:
        while heap[0][0] != self._load(self._ordered[heap[0][1]]):
            heappop(heap)
        return heap[0]
