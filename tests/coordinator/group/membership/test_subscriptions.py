"""Distinct subscriptions: what `put` and `remove` say of them, and a model by seed."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.membership.subscriptions import (
    Subscription,
    Subscriptions,
    all_topics,
)


def names(*topics: str) -> frozenset[str]:
    return frozenset(topics)


def test_topics_of_a_subscription() -> None:
    resolved = {"a.*": names("a1", "a2")}
    both = Subscription(names("t"), "a.*")
    assert both.topics() == {"t"}, "an expression that is not resolved matches nothing"
    assert both.topics(resolved) == {"t", "a1", "a2"}
    assert Subscription(names(), "a.*").topics(resolved) == {"a1", "a2"}
    assert Subscription(names("t"), "").topics({"": names("wrong")}) >= {"t"}
    assert both.has("t") and not both.has("a1")
    assert both.has("a1", resolved) and not both.has("b", resolved)


def test_members_that_subscribe_alike_share_one_object() -> None:
    subscriptions = Subscriptions()
    assert subscriptions.put("a", ["t", "u"])
    assert not subscriptions.put("b", ["u", "t", "u"]), "no distinct one is new"
    assert subscriptions.of("a") is subscriptions.of("b")
    assert len(subscriptions.distinct()) == 1
    assert subscriptions.find(["t", "u"]) is subscriptions.of("a")
    assert subscriptions.put("c", ["t", "u"], "x"), "an expression makes it another one"


def test_what_changes_the_distinct_subscriptions() -> None:
    subscriptions = Subscriptions()
    subscriptions.put("a", ["t"])
    subscriptions.put("b", ["t"])
    assert not subscriptions.put("a", ["t"])
    assert subscriptions.put("a", ["u"]), "one is new"
    assert subscriptions.put("a", ["t"]), "one has no member any more"
    assert not subscriptions.remove("a")
    assert subscriptions.remove("b")
    assert not subscriptions.remove("b")
    assert list(subscriptions.distinct()) == []


def test_a_subscription_is_replaced_where_both_are_in_use() -> None:
    subscriptions = Subscriptions()
    for member, topic in (("a", "t"), ("b", "t"), ("c", "u"), ("d", "u")):
        subscriptions.put(member, [topic])
    assert not subscriptions.put("a", ["u"])


def test_looking_for_a_subscription_does_not_add_it() -> None:
    subscriptions = Subscriptions()
    assert subscriptions.find(["t"]) is not subscriptions.find(["t"])
    assert list(subscriptions.distinct()) == []


def test_regular_expressions_in_use() -> None:
    subscriptions = Subscriptions()
    subscriptions.put("a", [], "x")
    subscriptions.put("b", ["t"], "x")
    subscriptions.put("c", [], "y")
    assert sorted(subscriptions.regexes) == ["x", "y"]
    subscriptions.remove("a")
    assert sorted(subscriptions.regexes) == ["x", "y"]
    subscriptions.put("b", ["t"])
    assert sorted(subscriptions.regexes) == ["y"]


def test_all_topics_of_several() -> None:
    both = [Subscription(names("t"), "a.*"), Subscription(names("u"), "")]
    assert all_topics(both) == {"t", "u"}
    assert all_topics(both, {"a.*": names("a1")}) == {"t", "u", "a1"}
    assert all_topics([]) == set()


@pytest.mark.parametrize("seed", range(20))
def test_against_a_dictionary_of_members(seed: int) -> None:
    random = Random(seed)
    subscriptions = Subscriptions()
    members: dict[str, tuple[frozenset[str], str]] = {}

    def distinct() -> set[tuple[frozenset[str], str]]:
        return {(one.names, one.regex) for one in subscriptions.distinct()}

    for _ in range(150):
        member, before = random.choice("abcdef"), distinct()
        if random.random() < 0.3:
            changed = subscriptions.remove(member)
            members.pop(member, None)
        else:
            said = (
                names(*random.sample("tuv", random.randrange(3))),
                random.choice(["", "x", "y"]),
            )
            changed = subscriptions.put(member, *said)
            members[member] = said
        assert distinct() == set(members.values())
        assert changed == (distinct() != before)
        assert set(subscriptions.regexes) == {regex for _, regex in members.values() if regex}
        leaving = random.sample("abcdef", 2)
        rest = {said for name, said in members.items() if name not in leaving}
        assert {(one.names, one.regex) for one in subscriptions.without(leaving)} == rest
