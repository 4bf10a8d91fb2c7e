"""Server-side assignors: tables for each, and what must hold for all, over random groups."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.consumer.assignors import ASSIGNORS
from kbroker.coordinator.group.membership.assignment import Assignment, LeastLoaded, Subscriber
from kbroker.coordinator.group.share.assignor import assign_simple
from kbroker.model import Uuid

A, B = b"a" * 16, b"b" * 16


def members(
    *names: str, topics: tuple[Uuid, ...] = (A, B), current: dict[str, Assignment] | None = None
) -> dict[str, Subscriber]:
    return {
        name: Subscriber(name, frozenset(topics), (current or {}).get(name, {})) for name in names
    }


def parts(*partitions: int) -> frozenset[int]:
    return frozenset(partitions)


@pytest.mark.parametrize(
    ("name", "group", "counts", "wanted"),
    [
        pytest.param("range", {}, {A: 3}, {}, id="range-nobody"),
        pytest.param("uniform", {}, {A: 3}, {}, id="uniform-nobody"),
        pytest.param(
            "range",
            members("x", "y"),
            {A: 3, B: 3},
            {"x": {A: parts(0, 1), B: parts(0, 1)}, "y": {A: parts(2), B: parts(2)}},
            id="range-same-numbers-meet",
        ),
        pytest.param(
            "range",
            members("x", "y", "z"),
            {A: 2},
            {"x": {A: parts(0)}, "y": {A: parts(1)}, "z": {}},
            id="range-too-many",
        ),
        pytest.param(
            "uniform",
            members("x", "y"),
            {A: 3, B: 3},
            {"x": {A: parts(0, 1, 2)}, "y": {B: parts(0, 1, 2)}},
            id="uniform-fresh",
        ),
        pytest.param(
            "uniform",
            members("x", "y", topics=(A,), current={"x": {A: parts(0, 1, 2, 3, 4)}}),
            {A: 5},
            {"x": {A: parts(0, 1, 2)}, "y": {A: parts(3, 4)}},
            id="uniform-keeps-what-it-can",
        ),
        pytest.param(
            "uniform",
            members("x", topics=(A,), current={"x": {A: parts(0, 7), B: parts(0)}}),
            {A: 2},
            {"x": {A: parts(0, 1)}},
            id="uniform-drops-what-is-gone",
        ),
        pytest.param(
            "uniform",
            {**members("x", topics=(A,)), **members("y", topics=(A, B))},
            {A: 2, B: 2},
            {"x": {A: parts(0, 1)}, "y": {B: parts(0, 1)}},
            id="uniform-unequal",
        ),
    ],
)
def test_table(
    name: str,
    group: dict[str, Subscriber],
    counts: dict[Uuid, int],
    wanted: dict[str, Assignment],
) -> None:
    assert ASSIGNORS[name](group, counts) == wanted


def count(assignment: Assignment) -> int:
    return sum(len(partitions) for partitions in assignment.values())


@pytest.mark.parametrize("name", list(ASSIGNORS))
@pytest.mark.parametrize("seed", range(20))
def test_every_partition_has_one_subscriber(name: str, seed: int) -> None:
    random = Random(seed)
    topics = [bytes([number]) * 16 for number in range(random.randrange(1, 5))]
    counts = {topic: random.randrange(1, 9) for topic in topics}
    current: dict[str, Assignment] = {}
    equal = random.random() < 0.5
    for _ in range(6):
        group = {
            f"m{number}": Subscriber(
                f"m{number}",
                frozenset(
                    topics if equal else random.sample(topics, random.randint(1, len(topics)))
                ),
                current.get(f"m{number}", {}),
            )
            for number in random.sample(range(10), random.randrange(1, 8))
        }
        current = ASSIGNORS[name](group, counts)
        assert current.keys() == group.keys()
        given = [
            (topic, partition)
            for assignment in current.values()
            for topic, partitions in assignment.items()
            for partition in partitions
        ]
        subscribed = set().union(*(subscriber.topics for subscriber in group.values()))
        wanted = [(topic, n) for topic in sorted(subscribed) for n in range(counts[topic])]
        assert sorted(given) == wanted
        for member_id, assignment in current.items():
            assert assignment.keys() <= group[member_id].topics
        if name == "uniform" and equal:
            sizes = [count(assignment) for assignment in current.values()]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_uniform_moves_no_more_than_it_must(seed: int) -> None:
    """One member more or less moves only its own share."""
    random = Random(seed)
    size, counts = random.randrange(2, 8), {A: random.randrange(1, 30), B: random.randrange(1, 30)}
    total = sum(counts.values())
    names = [f"m{number}" for number in range(size)]
    before = ASSIGNORS["uniform"](members(*names), counts)
    again = ASSIGNORS["uniform"](members(*names, current=before), counts)
    assert again == before
    more = ASSIGNORS["uniform"](members(*names, "new", current=before), counts)
    assert sum(_kept(before[name], more[name]) for name in names) == total - count(more["new"])
    fewer = ASSIGNORS["uniform"](members(*names[1:], current=before), counts)
    assert all(_kept(before[name], fewer[name]) == count(before[name]) for name in names[1:])


def _kept(before: Assignment, after: Assignment) -> int:
    return sum(len(before[topic] & after.get(topic, frozenset())) for topic in before)


class CountingTopics(frozenset[Uuid]):
    """A subscription that counts how often a topic is looked for in it."""

    lookups = 0

    def __contains__(self, topic_id: object) -> bool:
        CountingTopics.lookups += 1
        return super().__contains__(topic_id)

    __hash__ = frozenset.__hash__


@pytest.mark.parametrize("name", [*ASSIGNORS, "simple"])
def test_the_work_is_no_product_of_partitions_and_members(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """200 members with two subscriptions to 2,000 topics, then one member fewer."""
    visits = 0
    first = LeastLoaded._first

    def counted(self: LeastLoaded, heap: list[tuple[int, int]]) -> tuple[int, int]:
        nonlocal visits
        visits += 1
        return first(self, heap)

    monkeypatch.setattr(LeastLoaded, "_first", counted)
    monkeypatch.setattr(CountingTopics, "lookups", 0)
    ids = [number.to_bytes(16, "big") for number in range(2_000)]
    every, half = CountingTopics(ids), CountingTopics(ids[:1_000])
    current: dict[str, Assignment] = {}
    for count_of_members in (200, 199):
        group = {
            f"m{number}": Subscriber(
                f"m{number}", half if number % 2 else every, current.get(f"m{number}", {})
            )
            for number in range(count_of_members)
        }
        if name == "simple":
            current = assign_simple(group, {topic_id: range(1) for topic_id in ids})
        else:
            current = ASSIGNORS[name](group, dict.fromkeys(ids, 1))
        assert sum(map(count, current.values())) == len(ids)
    assert CountingTopics.lookups <= 4 * (len(ids) + 200)
    assert visits <= 16 * len(ids)
