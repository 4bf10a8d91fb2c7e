"""Logs of share states are pruned in turns of the loop, with any events in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.coordinator.runtime.records import encode_batch
from kbroker.coordinator.share_state import service, shard
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import SharePlace, StateBatch, StateWrite
from kbroker.settings.views.log_config import LogConfig
from kbroker.settings.views.share_groups import ShareGroupConfig
from tests.coordinator.share_state.test_reloads import StateMemory
from tests.coordinator.simulation import FakeTopics
from tests.replication.test_time_slices import Turns

STATES = 200
PER_TURN = 40
BATCH = 10
LOG = TopicPartition(SHARE_TOPIC, 0)


class World:
    """A coordinator of one shard with states of one topic."""

    def __init__(self) -> None:
        self.timers = Turns()
        self.topics = FakeTopics()
        self.topics.add(SHARE_TOPIC, 1)
        self.topic_id = self.topics.add("events", STATES).topic_id
        self.log = StateMemory()
        self.coordinator = ShareCoordinator(
            ShareGroupConfig(), log=self.log, timers=self.timers, topics=lambda: self.topics
        )
        self.coordinator.on_leadership(0, 1)
        self.all_turns()
        for index in range(STATES):
            self.coordinator.initialize(self.place(index), 1, 5)

    @property
    def shard(self) -> shard.ShareStateShard:
        return self.coordinator.runtime.host(0).shard

    def place(self, index: int) -> SharePlace:
        return SharePlace("g", (self.topic_id, index))

    def write(self, index: int, batches: list[StateBatch]) -> ErrorCode:
        write = StateWrite(1, 0, 5, 0, batches)
        return self.coordinator.write(self.place(index), write).value

    def all_turns(self) -> None:
        while self.timers.due:
            self.timers.turn()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(shard, "SNAPSHOTS_PER_BATCH", BATCH)
    monkeypatch.setattr(service, "TURN_SNAPSHOTS", PER_TURN)
    made = World()
    yield made
    made.coordinator.close()


def test_some_snapshots_are_written_in_each_turn(world: World) -> None:
    before = world.log.end_offset(LOG)
    world.coordinator.prune(min_records=STATES)
    assert world.shard.record_count == STATES  # no more than states: nothing to prune
    for index in range(2 * STATES):
        world.write(index % STATES, [StateBatch(5, 6, 0, 1)])
    world.coordinator.prune(min_records=1)
    former, turns = world.log.end_offset(LOG), 1
    assert former - before - 2 * STATES <= PER_TURN + BATCH
    while world.timers.due:
        world.timers.turn()
        end = world.log.end_offset(LOG)
        assert end - former <= PER_TURN + BATCH
        former, turns = end, turns + 1
    assert turns >= STATES // (PER_TURN + BATCH)
    assert world.shard.record_count == STATES


def test_states_that_change_between_two_turns(world: World) -> None:
    """A restart from the pruned log finds all states as they were."""
    for index in range(2 * STATES):
        world.write(index % STATES, [StateBatch(5, 6, 0, 1)])
    world.coordinator.prune(min_records=1)
    assert world.timers.due
    world.coordinator.delete(world.place(STATES - 1))
    world.write(0, [StateBatch(9, 9, 2, 1)])
    world.write(STATES - 2, [StateBatch(7, 8, 2, 1)])
    world.coordinator.prune(min_records=1)  # continues the pruning in progress
    world.all_turns()
    assert world.shard.record_count == STATES - 1 + 3
    found = {place: (state.start_offset, state.batches) for place, state in states(world)}
    assert len(found) == STATES - 1
    world.coordinator.on_leadership(0, None)
    world.coordinator.on_leadership(0, 2)
    world.all_turns()
    assert {place: (each.start_offset, each.batches) for place, each in states(world)} == found


def states(world: World) -> list[tuple[SharePlace, shard.ShareState]]:
    return list(world.shard.states.items())


def test_a_state_of_many_batches_has_a_turn_of_its_own(world: World) -> None:
    many = [StateBatch(5 + 2 * number, 5 + 2 * number, 0, 1) for number in range(PER_TURN)]
    for _ in range(3):
        for index in range(STATES):
            world.write(index, many)
    before = world.log.end_offset(LOG)
    world.coordinator.prune(min_records=1)
    assert world.log.end_offset(LOG) == before + 1
    world.all_turns()
    assert world.log.end_offset(LOG) == before + STATES


def test_leadership_that_is_lost_between_two_turns(world: World) -> None:
    for index in range(2 * STATES):
        world.write(index % STATES, [StateBatch(5, 6, 0, 1)])
    world.coordinator.prune(min_records=1)
    world.coordinator.on_leadership(0, None)
    end = world.log.end_offset(LOG)
    world.all_turns()
    assert world.log.end_offset(LOG) == end


def test_a_state_is_written_and_replayed_without_a_copy_of_each_batch(world: World) -> None:
    """45,000 batches fit into one record: they are encoded as they are."""
    many = [StateBatch(5 + 2 * number, 5 + 2 * number, 0, 1) for number in range(PER_TURN)]
    world.write(0, many)
    state = states(world)[0][1]
    assert all(kept is given for kept, given in zip(state.batches, many, strict=True))
    before = list(state.batches)
    for index in range(2 * STATES):
        world.write(index % STATES, [])
    world.coordinator.prune(min_records=1)
    world.all_turns()
    after = states(world)[0][1]
    assert after is not state
    assert all(kept is given for kept, given in zip(after.batches, before, strict=True))


def test_the_snapshots_of_long_group_ids_are_written_in_batches_that_are_small_enough() -> None:
    world = World()
    for index in range(STATES):
        place = SharePlace("g" * 32_000, (world.topic_id, index))
        world.coordinator.initialize(place, 1, 5)
    snapshots = list(world.shard.snapshots())
    assert sum(len(batch.records) for batch in snapshots) == 2 * STATES
    sizes = [len(encode_batch(batch.records, 0)) for batch in snapshots]
    assert max(sizes) < LogConfig().max_message_bytes
    world.coordinator.close()
