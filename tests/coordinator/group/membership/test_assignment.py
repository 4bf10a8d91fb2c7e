"""The search for the least loaded subscriber of a topic, against trying them all."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.membership.assignment import (
    LeastLoaded,
    Subscriber,
    subscribers_by_topic,
)
from kbroker.model import Uuid

TOPICS = [bytes([number]) * 16 for number in range(4)]


def subscriber(name: str, *topics: Uuid) -> Subscriber:
    return Subscriber(name, frozenset(topics), {})


def test_one_list_for_all_that_subscribe_alike() -> None:
    a, b = TOPICS[:2]
    members = {
        "x": subscriber("x", a, b),
        "y": subscriber("y", a),
        "z": subscriber("z", a, b),
    }
    found = subscribers_by_topic(members, ["z", "y", "x"])
    assert found[a] == [[0, 2], [1]] and found[b] == [[0, 2]]
    assert found[a][0] is found[b][0]


def test_of_several_the_first_in_order() -> None:
    members = {name: subscriber(name, TOPICS[0]) for name in "abc"}
    assert LeastLoaded(members, ["c", "a", "b"], lambda _: 3).of(TOPICS[0]) == "c"


def test_how_many_subscribe() -> None:
    members = {"a": subscriber("a", *TOPICS[:2]), "b": subscriber("b", TOPICS[1])}
    least = LeastLoaded(members, ["a", "b"], lambda _: 0)
    assert [least.count(topic) for topic in TOPICS[:3]] == [1, 2, 0]


def test_a_member_that_subscribes_to_nothing_may_change() -> None:
    members = {"a": subscriber("a", TOPICS[0]), "b": subscriber("b")}
    least = LeastLoaded(members, ["a", "b"], lambda _: 0)
    least.changed("b")
    assert least.of(TOPICS[0]) == "a"


@pytest.mark.parametrize("seed", range(30))
def test_the_least_loaded_one_by_seed(seed: int) -> None:
    """Loads go up and down between searches, as when partitions are moved."""
    random = Random(seed)
    ordered = [f"m{number}" for number in range(random.randrange(1, 9))]
    random.shuffle(ordered)
    members = {name: subscriber(name, *random.sample(TOPICS, 2)) for name in ordered}
    loads = {name: random.randrange(4) for name in ordered}
    least = LeastLoaded(members, ordered, loads.__getitem__)
    for _ in range(100):
        topic = random.choice(TOPICS)
        subscribed = [name for name in ordered if topic in members[name].topics]
        assert least.count(topic) == len(subscribed)
        if subscribed:
            assert least.of(topic) == min(subscribed, key=loads.__getitem__)
        name = random.choice(ordered)
        loads[name] = max(0, loads[name] + random.choice((-1, 1, 2)))
        least.changed(name)
