"""After any sequence of requests a share coordinator that loads the log of states has the same
state as the one that wrote it, also if the log was pruned meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.coordinator.share_state.shard import ShareState
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import SharePlace, StateBatch, StateWrite
from kbroker.settings.views.share_groups import ShareGroupConfig
from tests.coordinator.simulation import FakeTopics, MemoryLog
from tests.sim.timers import SimTimers

LOG = TopicPartition(SHARE_TOPIC, 0)
SEEDS = range(20)
STEPS = 150
GROUPS = ("g", "h")
FAULTS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)


class StateMemory(MemoryLog):
    """A log whose beginning can be deleted."""

    def end_offset(self, topic_partition: TopicPartition) -> int:
        stored = self.batches.get(topic_partition)
        return read_batch_header(stored[-1]).next_offset if stored else 0

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        stored = self.batches.get(topic_partition, [])
        # the last batch stays, so that offsets continue after it
        kept = [batch for batch in stored if read_batch_header(batch).last_offset >= offset]
        self.batches[topic_partition] = kept or stored[-1:]


class Life:
    """One share coordinator that leads the only partition of its topic."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.config = ShareGroupConfig(share_coordinator_snapshot_update_records_per_snapshot=3)
        self.timers = SimTimers()
        self.topics = FakeTopics()
        self.topics.add(SHARE_TOPIC, 1)
        self.topics.add("events", 2)
        self.topics.add("new", 1)
        self.log = StateMemory()
        self.coordinator = self.build(self.log)

    def build(self, log: StateMemory) -> ShareCoordinator:
        coordinator = ShareCoordinator(
            self.config, log=log, timers=self.timers, topics=lambda: self.topics
        )
        coordinator.on_leadership(0, 1)
        self.timers.advance(0)
        return coordinator

    def run(self) -> None:
        actions: list[tuple[Callable[[], object], int]] = [
            (self.initialize, 10),
            (self.write, 40),
            (self.read, 8),
            (self.delete, 3),
            (self.prune, 3),
            (self.change_topics, 2),
            (self.fault, 3),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.timers.advance(10)
            self.random.choices(steps, weights)[0]()
            if step % 5 == 0:
                self.check()
        self.check()

    def any_place(self) -> SharePlace:
        topics = sorted(name for name in self.topics.topics if name != SHARE_TOPIC)
        topic_id = self.topics.topics[self.random.choice(topics)].topic_id
        return SharePlace(self.random.choice(GROUPS), (topic_id, self.random.randrange(2)))

    def initialize(self) -> None:
        start = self.random.choice([-1, 5])
        self.coordinator.initialize(self.any_place(), self.random.randrange(3), start)

    def write(self) -> None:
        first = self.random.randrange(40)
        batches = [
            StateBatch(first + n, first + n + self.random.randrange(3), n, 1) for n in (0, 2)
        ]
        self.coordinator.write(
            self.any_place(),
            StateWrite(
                state_epoch=self.random.randrange(3),
                leader_epoch=self.random.randrange(3),
                start_offset=self.random.choice([-1, first]),
                delivery_complete_count=self.random.randrange(3),
                batches=batches,
            ),
        )

    def read(self) -> None:
        self.coordinator.read(self.any_place(), self.random.randrange(4))

    def delete(self) -> None:
        self.coordinator.delete(self.any_place())

    def prune(self) -> None:
        self.coordinator.prune(min_records=1)

    def change_topics(self) -> None:
        if "new" in self.topics.topics:
            self.topics.remove("new")
            self.coordinator.on_topics_deleted()
        else:
            self.topics.add("new", 1)

    def fault(self) -> None:
        self.log.errors = [self.random.choice(FAULTS)]

    def check(self) -> None:
        self.log.errors = []
        self.timers.advance(0)
        log = StateMemory()
        log.batches[LOG] = list(self.log.batches.get(LOG, []))
        again = self.build(log)
        assert states(again) == states(self.coordinator)
        again.close()


def test_states_of_a_topic_that_is_deleted_while_they_are_loaded() -> None:
    life = Life(1)
    life.coordinator.initialize(life.any_place(), 1, 5)
    life.coordinator.on_leadership(0, None)
    life.coordinator.on_leadership(0, 2)
    for name in ("events", "new"):
        life.topics.remove(name)
    life.coordinator.on_topics_deleted()
    life.timers.advance(0)
    assert states(life.coordinator) == {}
    life.check()


def states(coordinator: ShareCoordinator) -> dict[SharePlace, dict[str, Any]]:
    """All that is known of each share partition."""
    return {
        place: {name: getattr(state, name) for name in ShareState.__slots__}
        for place, state in coordinator.runtime.host(0).shard.states.items()
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_loads_the_log_knows_the_same(seed: int) -> None:
    Life(seed).run()
