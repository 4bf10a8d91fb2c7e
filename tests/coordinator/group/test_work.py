"""What requests of large groups cost, in operations: topics looked up, characters matched, members
and partitions visited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.coordinator.group.consumer import regex_refresh
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.regex_refresh import NAME_COST
from kbroker.coordinator.group.offsets import expiry as offset_expiry
from kbroker.coordinator.group.records import offset_commit_record
from kbroker.metadata.patterns import CHARACTERS_PER_TURN
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.consumers import Consumer, ask
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.simulation import FakeTopic, World

MEMBERS, TOPICS = 200, 2_000
LONGEST = NAME_COST + len(f"topic-{TOPICS}|other")


class CountingTopics(dict[str, Any]):
    """Topics by name that count how often one is looked up."""

    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


def world_of_many_topics() -> World:
    world = World()
    topics = CountingTopics(world.topics.topics)
    for number in range(TOPICS):
        topic = FakeTopic(f"topic-{number}", bytes(8) + (number + 1_000).to_bytes(8, "big"), {0: 0})
        topics[topic.name] = topic
        world.topics.topics_by_id[topic.topic_id] = topic
    world.topics.topics = topics
    world.topics.offset += TOPICS
    return world


def lookups(world: World, action: Callable[[], None]) -> int:
    topics = world.topics.topics
    assert isinstance(topics, CountingTopics)
    before = topics.lookups
    action()
    return topics.lookups - before


def count_matches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters matched with regular expressions, per turn of a refresh."""
    turns: list[int] = []
    compiled, advance = regex_refresh.matcher, regex_refresh.RegexRefresh.advance

    def matcher(regex: str) -> Callable[[str], bool]:
        matches = compiled(regex)

        def counted(name: str) -> bool:
            turns[-1] += len(name) + NAME_COST
            return matches(name)

        return counted

    def turn(refresh: regex_refresh.RegexRefresh) -> bool:
        turns.append(0)
        return advance(refresh)

    monkeypatch.setattr(regex_refresh, "matcher", matcher)
    monkeypatch.setattr(regex_refresh.RegexRefresh, "advance", turn)
    return turns


class Untouched(dict[Any, Any]):
    """The data that a request may look up, but not iterate over."""

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("all entries are visited")

    __iter__ = items = values = keys = _refuse


@pytest.mark.parametrize("by_regex", [False, True], ids=["names", "regex"])
def test_a_target_assignment_looks_up_each_topic_once_per_distinct_subscription(
    monkeypatch: pytest.MonkeyPatch, by_regex: bool
) -> None:
    world = world_of_many_topics()
    turns = count_matches(monkeypatch)
    names = sorted(world.topics.topics)
    fields: dict[str, object] = {"subscribed_topic_names": names}
    if by_regex:
        fields = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
    members = [Consumer(world, f"m{number}", **fields) for number in range(MEMBERS)]

    def join() -> None:
        for member in members:
            member.poll()
            world.timers.advance(1)

    joined = lookups(world, join)
    world.timers.advance(1_000)
    assert lookups(world, members[0].poll) <= 3 * TOPICS
    assert joined <= 12 * TOPICS
    group = world.shard().consumer.groups["c"]
    assert (len(group.targets), group.epoch) == (MEMBERS, group.target_epoch)
    assert sum(turns) == by_regex * sum(len(name) + NAME_COST for name in names)
    assert max(turns, default=0) < CHARACTERS_PER_TURN + LONGEST


def test_many_regular_expressions_are_resolved_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of_many_topics()
    turns = count_matches(monkeypatch)
    for number in range(4):
        fields: dict[str, object] = {"subscribed_topic_regex": f"topic-{number}|other"}
        Consumer(world, f"m{number}", subscribed_topic_names=None, **fields).poll()
    assert turns == []  # a heartbeat matches nothing
    for _ in range(4):
        world.timers.advance(10_001)
        answer = ask(world, member_id="m0", member_epoch=1)
        assert answer.member_epoch in (0, 1, 2)
    world.timers.advance(100)
    assert CHARACTERS_PER_TURN - 2 * LONGEST < max(turns) < CHARACTERS_PER_TURN + LONGEST
    group = world.shard().consumer.groups["c"]
    assert group.resolved.keys() == {f"topic-{number}|other" for number in range(4)}
    assert group.resolved["topic-3|other"] == {"topic-3", "other"}
    # The first alone, since none was resolved, and 10 s later all four.
    assert sum(turns) == 5 * sum(len(name) + NAME_COST for name in world.topics.topics)


def test_a_heartbeat_that_changes_nothing_visits_no_topic_and_no_member() -> None:
    world = world_of_many_topics()
    fields: dict[str, object] = {"subscribed_topic_names": ["topic-1", "topic-2"]}
    members = [Consumer(world, f"m{number}", **fields) for number in range(3)]
    for _ in range(4):
        world.timers.advance(1_000)
        for member in members:
            member.poll()
    group: ConsumerGroup = world.shard().consumer.groups["c"]
    assert group.state() == "Stable"
    group.members = Untouched(group.members)
    group.targets = Untouched(group.targets)
    assert lookups(world, members[0].poll) == 1  # of __consumer_offsets, for the coordinator


def test_a_share_heartbeat_that_changes_nothing_visits_no_topic_and_no_member() -> None:
    shares = Shares()
    shares.take(world_of_many_topics())
    world = shares.world
    epochs = dict.fromkeys("abc", 0)
    for _ in range(4):
        for member_id, epoch in epochs.items():
            names = ["topic-1", "topic-2"] if epoch == 0 else None
            answer = shares.ask(
                member_id=member_id, member_epoch=epoch, subscribed_topic_names=names
            )
            epochs[member_id] = answer.member_epoch
        world.timers.advance(1_000)
    group = shares.group()
    assert group.target_epoch == group.epoch
    group.members = Untouched(group.members)
    group.targets = Untouched(group.targets)
    assert lookups(world, lambda: shares.ask(member_id="a", member_epoch=epochs["a"])) == 1
    world.topics.add("another", 1)
    with pytest.raises(AssertionError, match="visited"):
        shares.ask(member_id="a", member_epoch=epochs["a"])


class CountedId(str):
    """A group id that counts how often it is compared."""

    comparisons = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedId.comparisons += 1
        return str.__eq__(self, other)


def test_the_expiry_of_offsets_does_not_search_all_pending_ones_for_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups, pending = 50, 2_000
    world = World(config=GroupCoordinatorConfig(offsets_retention_check_interval_ms=1_000))
    shard = world.shard()
    value = OffsetCommitValue(offset=1, commit_timestamp=world.timers.now_ms())
    for number in range(groups):
        shard.replay(offset_commit_record(f"g{number}", "events", 0, value))
    for number in range(pending):
        group_id = CountedId(f"t{number % groups}")
        record = offset_commit_record(group_id, "events", number, value)
        shard.replay_transactional(number % 7, record)
    monkeypatch.setattr(CountedId, "comparisons", 0)
    world.timers.advance(1_000)
    assert CountedId.comparisons <= 10 * groups
    assert len(shard.classic.groups) == 2 * groups


def test_the_expiry_of_many_offsets_is_done_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_expiry, "OFFSETS_PER_TURN", 10)
    config = GroupCoordinatorConfig(
        offsets_retention_check_interval_ms=1_000, offsets_retention_minutes=1
    )
    world = World(config=config)
    shard = world.shard()
    value = OffsetCommitValue(offset=1, commit_timestamp=world.timers.now_ms() - 59_500)
    for number in range(20):
        shard.replay(offset_commit_record(f"g{number}", "events", 0, value))
    world.timers.advance(1_000)
    assert len(shard.classic.groups) == 15
    world.timers.advance(3)
    assert len(shard.classic.groups) == 0
    late = OffsetCommitValue(offset=1, commit_timestamp=world.timers.now_ms() - 59_900)
    shard.replay(offset_commit_record("late", "events", 0, late))
    world.timers.advance(990)
    assert len(shard.classic.groups) == 1
    world.timers.advance(20)
    assert len(shard.classic.groups) == 0


def test_members_that_leave_alike_ones_behind_look_up_no_topic() -> None:
    world = world_of_many_topics()
    names = sorted(world.topics.topics)
    members = [Consumer(world, f"m{n}", subscribed_topic_names=names) for n in range(3)]
    for member in members:
        member.poll()
    assert lookups(world, members[0].leave) == 1
    assert lookups(world, members[1].leave) == 1
    assert lookups(world, members[2].leave) == 1  # none is left: no topic
