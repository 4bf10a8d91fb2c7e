"""When the regular expressions of a group are resolved, turn by turn on a clock of the test's."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.records import group_record, regex_record
from kbroker.coordinator.group.consumer.regex_refresh import MIN_INTERVAL_MS, NAME_COST
from kbroker.coordinator.group.consumer.regex_schedule import RegexSchedule
from kbroker.coordinator.group.membership.metadata_hash import metadata_hash
from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult
from kbroker.metadata.patterns import CHARACTERS_PER_TURN
from tests.coordinator.simulation import FakeTopics

WALL_MS = 1_700_000_000_000
START_MS = 1_000


class Shard:
    """One group of a shard, its schedule and what carries out the results of turns."""

    def __init__(self, *regexes: str) -> None:
        self.topics = FakeTopics()
        for name in ("events", "other"):
            self.topics.add(name, 1)
        self.group = ConsumerGroup("g")
        for number, regex in enumerate(regexes):
            self.group.subscriptions.put(f"member{number}", (), regex)
        self.groups = {"g": self.group}
        self.deadlines = Deadlines()
        self.now_ms = START_MS
        self.schedule = RegexSchedule(
            self.groups, self.deadlines, lambda: self.topics, lambda: WALL_MS
        )
        self.written: list[CoordinatorRecord] = []

    def heartbeat(self) -> bool:
        """Whether a refresh starts."""
        before = self.deadlines.next_ms()
        self.schedule.start_if_due(self.group, self.topics, self.now_ms)
        return before is None and self.deadlines.next_ms() is not None

    def turn(self) -> list[CoordinatorRecord]:
        """One turn, its records written and replayed."""
        records: list[CoordinatorRecord] = []
        for result in self.deadlines.fire(self.now_ms):
            assert isinstance(result, CoordinatorResult)
            for record in result.records:
                self.group.replay_record(record)
            records += result.records
            if result.on_written is not None:
                assert not result.on_written(self.now_ms)
        self.written += records
        return records

    def resolve(self) -> list[CoordinatorRecord]:
        """A heartbeat that starts a refresh of one turn, and that turn."""
        assert self.heartbeat()
        return self.turn()

    def expected(self, **topics: list[str]) -> list[CoordinatorRecord]:
        """The records of these expressions, and of the group's next epoch."""
        offset = self.topics.offset
        records = [
            regex_record("g", regex, names, offset, WALL_MS) for regex, names in topics.items()
        ]
        names = {name for found in topics.values() for name in found}
        return [*records, group_record("g", self.group.epoch, metadata_hash(names, self.topics))]


def test_a_group_without_expressions_is_left_alone() -> None:
    shard = Shard()
    shard.group.subscriptions.put("member", ("events",))
    assert not shard.heartbeat()


def test_an_expression_is_resolved_in_a_turn_after_the_heartbeat() -> None:
    shard = Shard("ev.*")
    assert shard.heartbeat()
    assert not shard.group.regexes, "the heartbeat itself writes nothing"
    assert shard.turn() == shard.expected(**{"ev.*": ["events"]})
    assert shard.group.resolved == {"ev.*": frozenset({"events"})}
    assert shard.deadlines.next_ms() is None


def test_a_refresh_under_way_is_not_started_again() -> None:
    shard = Shard("ev.*")
    assert shard.heartbeat() and not shard.heartbeat()
    shard.now_ms += MIN_INTERVAL_MS + 1
    assert not shard.heartbeat()
    assert len(shard.turn()) == 2 and not shard.turn()


def test_nothing_is_resolved_again_while_topics_and_expressions_are_the_same() -> None:
    shard = Shard("ev.*", "oth.*")
    shard.resolve()
    shard.now_ms += 10 * MIN_INTERVAL_MS
    assert not shard.heartbeat()


@pytest.mark.parametrize(
    ("elapsed_ms", "is_due"),
    [(0, False), (MIN_INTERVAL_MS, False), (MIN_INTERVAL_MS + 1, True)],
)
@pytest.mark.parametrize("change", ["topics", "expressions"])
def test_the_next_refresh_is_an_interval_after_the_last(
    elapsed_ms: int, is_due: bool, change: str
) -> None:
    shard = Shard("ev.*")
    shard.resolve()
    if change == "topics":
        shard.topics.add("evening", 1)
    else:
        shard.group.subscriptions.put("another", (), "oth.*")
    shard.now_ms += elapsed_ms
    assert shard.heartbeat() == is_due
    shard.turn()
    expected = {("topics", True): ["evening", "events"], ("expressions", True): ["events"]}
    found = shard.group.resolved["ev.*"]
    assert sorted(found) == expected.get((change, is_due), ["events"])
    assert ("oth.*" in shard.group.resolved) == (is_due and change == "expressions")


def test_a_group_with_nothing_resolved_does_not_wait_for_the_interval() -> None:
    shard = Shard("ev.*")
    assert shard.heartbeat()
    shard.group.subscriptions.put("member0", (), "oth.*")
    shard.turn()
    assert not shard.group.regexes, "its member subscribes by another expression now"
    assert shard.heartbeat()
    shard.turn()
    assert shard.group.resolved == {"oth.*": frozenset({"other"})}


def test_a_refresh_without_a_change_writes_nothing() -> None:
    shard = Shard("ev.*")
    shard.resolve()
    epoch = shard.group.epoch
    shard.topics.add("quiet", 1)
    shard.now_ms += MIN_INTERVAL_MS + 1
    assert shard.resolve() == []
    assert shard.group.epoch == epoch
    shard.now_ms += MIN_INTERVAL_MS + 1
    assert not shard.heartbeat(), "these topics are matched already"


def test_topics_that_change_during_a_refresh_are_matched_by_the_next() -> None:
    shard = Shard("ev.*")
    assert shard.heartbeat()
    shard.topics.add("evening", 1)
    shard.turn()
    assert shard.group.resolved == {"ev.*": frozenset({"events"})}
    shard.now_ms += MIN_INTERVAL_MS + 1
    shard.resolve()
    assert shard.group.resolved == {"ev.*": frozenset({"evening", "events"})}


def test_many_topics_take_turns_a_millisecond_apart() -> None:
    shard = Shard(".*")
    count = CHARACTERS_PER_TURN // (NAME_COST + len("topic100"))
    for number in range(100, 100 + count):
        shard.topics.add(f"topic{number}", 1)
    assert shard.heartbeat()
    assert shard.turn() == []
    assert shard.deadlines.next_ms() == START_MS + 1
    shard.now_ms += 1
    assert len(shard.turn()) == 2
    assert len(shard.group.resolved[".*"]) == count + 2


@pytest.mark.parametrize("how", ["cancel", "clear"])
def test_a_refresh_ends_with_its_group_or_shard(how: str) -> None:
    shard = Shard("ev.*")
    shard.resolve()
    shard.group.subscriptions.put("another", (), "oth.*")
    shard.now_ms += MIN_INTERVAL_MS + 1
    assert shard.heartbeat()
    if how == "cancel":
        shard.schedule.cancel("g")
        shard.schedule.cancel("unknown")
    else:
        shard.schedule.clear()
    assert shard.deadlines.next_ms() is None and shard.turn() == []
    assert shard.heartbeat(), "of the former group's refresh nothing is known"


def test_a_group_that_ended_without_notice_gets_no_records() -> None:
    shard = Shard("ev.*")
    assert shard.heartbeat()
    del shard.groups["g"]
    assert shard.turn() == []
