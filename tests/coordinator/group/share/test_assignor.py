"""The assignor of share groups over random groups: what must hold for every assignment."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from kbroker.coordinator.group.membership.assignment import Assignment, Subscriber
from kbroker.coordinator.group.share.assignor import assign_simple
from kbroker.model import TopicIdPartition, Uuid

TOPICS: tuple[Uuid, ...] = (b"a" * 16, b"b" * 16)


@pytest.mark.parametrize("seed", range(50))
def test_assignor(seed: int) -> None:
    """Each partition has a reader, each reader a partition; where all read all it is even; who has
    something keeps it if nothing changes.
    """
    random = Random(seed)
    same = random.random() < 0.5
    counts = {topic_id: random.randrange(1, 6) for topic_id in TOPICS}
    assignable = {topic_id: frozenset(range(count)) for topic_id, count in counts.items()}
    members: dict[str, Subscriber] = {}
    given: Mapping[str, Assignment] = {}
    for number in range(random.randrange(1, 9)):
        topics = frozenset(TOPICS if same else random.sample(TOPICS, random.randrange(1, 3)))
        members[f"m{number}"] = Subscriber(f"m{number}", topics, {})
        members = {
            name: Subscriber(name, member.topics, given.get(name, {}))
            for name, member in members.items()
        }
        given = assign_simple(members, assignable)
        check_assignment(members, assignable, given, is_even=same)
    kept = {name: Subscriber(name, member.topics, given[name]) for name, member in members.items()}
    assert assign_simple(kept, assignable) == given


def check_assignment(
    members: Mapping[str, Subscriber],
    assignable: Mapping[Uuid, frozenset[int]],
    given: Mapping[str, Assignment],
    *,
    is_even: bool,
) -> None:
    readers: dict[TopicIdPartition, int] = {}
    loads = []
    for name, member in members.items():
        assert given[name].keys() <= member.topics
        loads.append(sum(len(partitions) for partitions in given[name].values()))
        for topic_id, partitions in given[name].items():
            assert partitions <= assignable[topic_id]
            for partition in partitions:
                readers[topic_id, partition] = readers.get((topic_id, partition), 0) + 1
    assert min(loads) >= 1
    wanted = {topic_id for member in members.values() for topic_id in member.topics}
    assert readers.keys() == {
        (topic_id, partition) for topic_id in wanted for partition in assignable[topic_id]
    }
    if is_even:
        assert max(loads) - min(loads) <= 1
        assert max(readers.values()) - min(readers.values()) <= 1


def test_nobody_and_nothing() -> None:
    assert assign_simple({}, {TOPICS[0]: [0]}) == {}
    nothing = {"m": Subscriber("m", frozenset(TOPICS), {})}
    assert assign_simple(nothing, {}) == {"m": {}}


def test_a_partition_that_is_not_assignable_any_more_is_not_kept() -> None:
    member = Subscriber("m", frozenset(TOPICS[:1]), {TOPICS[0]: frozenset({0, 9})})
    assert assign_simple({"m": member}, {TOPICS[0]: [0, 1]}) == {"m": {TOPICS[0]: {0, 1}}}
