"""The states of deleted topics are deleted in several turns of the loop, with any events in
between.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.coordinator.share_state import service, shard
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.model import Uuid
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.settings.views.log_config import LogConfig
from kbroker.settings.views.share_groups import ShareGroupConfig
from tests.coordinator.simulation import FakeTopics, MemoryLog
from tests.replication.test_time_slices import Turns

DELETED = 1000
KEPT = 300
SHARDS = 5
BATCH = 20
PER_TURN = 60


class Log(MemoryLog):
    def end_offset(self, topic_partition: object) -> int:
        raise AssertionError("not pruned here")

    def delete_before(self, topic_partition: object, offset: int) -> None:
        raise AssertionError("not pruned here")


class World:
    """A coordinator of five shards with states of two topics."""

    def __init__(self) -> None:
        self.timers = Turns()
        self.topics = FakeTopics()
        self.topics.add(SHARE_TOPIC, SHARDS)
        self.deleted = self.topics.add("deleted", DELETED).topic_id
        self.kept = self.topics.add("kept", KEPT).topic_id
        self.log = Log()
        self.coordinator = ShareCoordinator(
            ShareGroupConfig(), log=self.log, timers=self.timers, topics=lambda: self.topics
        )
        for partition in range(SHARDS):
            self.coordinator.on_leadership(partition, 1)
        self.all_turns()
        for topic_id, count in ((self.deleted, DELETED), (self.kept, KEPT)):
            for index in range(count):
                self.coordinator.initialize(SharePlace("g", (topic_id, index)), 1, 5)

    def all_turns(self) -> None:
        while self.timers.due:
            self.timers.turn()

    def left(self, topic_id: Uuid) -> int:
        return sum(
            key.place[0] == topic_id
            for host in self.coordinator.runtime.hosts()
            for key in host.shard.states
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(shard, "TOMBSTONES_PER_BATCH", BATCH)
    monkeypatch.setattr(service, "TURN_TOMBSTONES", PER_TURN)
    monkeypatch.setattr(service, "BATCH_TOMBSTONES", 0)
    made = World()
    yield made
    made.coordinator.close()


def test_some_states_end_in_each_turn(world: World) -> None:
    world.topics.remove("deleted")
    former, turns = DELETED, 0
    world.coordinator.on_topics_deleted()
    while left := world.left(world.deleted):
        assert 0 < former - left < PER_TURN + BATCH
        former, turns = left, turns + 1
        world.timers.turn()
    assert turns >= DELETED // (PER_TURN + BATCH)
    assert world.left(world.kept) == KEPT


def test_few_states_end_at_once(world: World) -> None:
    world.topics.remove("kept")
    world.coordinator.on_topics_deleted()
    for _ in range(KEPT // PER_TURN):
        world.timers.turn()
    assert world.left(world.kept) == 0
    few = world.topics.add("few", 1).topic_id
    world.coordinator.initialize(SharePlace("g", (few, 0)), 1, 5)
    world.topics.remove("few")
    world.coordinator.on_topics_deleted()
    assert world.left(few) == 0


def test_only_the_states_of_deleted_topics_are_looked_at(world: World) -> None:
    batches = world.coordinator.runtime.host(0).shard.tombstones_of_deleted_topics()
    assert list(batches) == []
    world.topics.remove("deleted")
    states = world.coordinator.runtime.host(0).shard.states
    batches = world.coordinator.runtime.host(0).shard.tombstones_of_deleted_topics()
    sizes = [len(batch) for batch in batches]
    assert sum(sizes) == sum(key.place[0] == world.deleted for key in states)
    assert set(sizes[:-1]) == {BATCH}


def test_shards_that_are_loaded_again_between_two_turns(world: World) -> None:
    """Their new hosts continue, whether they are loading or are loaded in the next turn."""
    world.topics.remove("deleted")
    world.coordinator.on_topics_deleted()
    for partition in range(SHARDS):
        world.coordinator.on_leadership(partition, None)
        world.coordinator.on_leadership(partition, 2)
    world.all_turns()
    assert world.left(world.deleted) == 0
    assert world.left(world.kept) == KEPT


def test_a_shard_that_moves_to_another_broker_is_left_alone(world: World) -> None:
    world.topics.remove("deleted")
    world.coordinator.on_topics_deleted()
    for partition in range(SHARDS - 1):
        world.coordinator.on_leadership(partition, None)
    world.all_turns()
    assert world.left(world.deleted) == 0


def test_the_tombstones_of_long_group_ids_are_written_in_batches_that_are_small_enough(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "TOMBSTONES_PER_BATCH", 200)
    long = world.topics.add("long", 200).topic_id
    for index in range(200):
        world.coordinator.initialize(SharePlace("g" * 32_000, (long, index)), 1, 5)
    world.topics.remove("long")
    world.coordinator.on_topics_deleted()
    world.all_turns()
    assert world.left(long) == 0
    sizes = [len(batch) for batches in world.log.batches.values() for batch in batches]
    assert max(sizes) < LogConfig().max_message_bytes


def test_nothing_is_written_once_the_coordinator_is_closed(world: World) -> None:
    world.topics.remove("deleted")
    world.coordinator.on_topics_deleted()
    world.coordinator.close()
    written = {place: len(batches) for place, batches in world.log.batches.items()}
    world.all_turns()
    assert {place: len(batches) for place, batches in world.log.batches.items()} == written
