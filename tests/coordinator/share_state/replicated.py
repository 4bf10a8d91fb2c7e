"""Share coordinators on three brokers, and leaders of share partitions that write and read them."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.coordinator.share_state.shard import ShareStateShard
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.stored.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateSummary, StateWrite
from kbroker.settings.views.share_groups import ShareGroupConfig
from tests.coordinator.replicated import BrokerLog, LieError, ReplicatedCluster, Step
from tests.coordinator.simulation import FakeTopics

E = ErrorCode


class ShareStates(ReplicatedCluster):
    """States of a few share partitions, each with another start offset. told_written, seen: what
    leaders of the partitions were told.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.topics = FakeTopics()
        self.topics.add(SHARE_TOPIC, 1)
        self.topic_id = self.topics.add("events", 3).topic_id
        self.count = 0
        self.told_written: set[tuple[SharePlace, int]] = set()
        self.seen: set[tuple[SharePlace, int]] = set()
        self.coordinate(self.make)

    def make(self, log: BrokerLog) -> ShareCoordinator:
        return ShareCoordinator(
            ShareGroupConfig(), log=log, timers=self.timers, topics=lambda: self.topics
        )

    def steps(self) -> Iterable[tuple[Step, int]]:
        return [(self.initialize, 5), (self.write, 25), (self.read, 25), (self.summarize, 10)]

    def coordinator(self) -> ShareCoordinator:
        found: ShareCoordinator = self.coordinators[self.coordinating()]
        return found

    def any_place(self) -> SharePlace:
        return SharePlace("g", (self.topic_id, self.random.randrange(2)))

    def initialize(self) -> None:
        self.count += 1
        place, start = self.any_place(), self.count
        initialized = self.coordinator().initialize(place, start, start)
        initialized.on_done(lambda error: self.written(place, start, error))

    def write(self) -> None:
        self.count += 1
        place, start = self.any_place(), self.count
        write = StateWrite(-1, -1, start, 0, ())
        self.coordinator().write(place, write).on_done(
            lambda error: self.written(place, start, error)
        )

    def written(self, place: SharePlace, start: int, error: ErrorCode) -> None:
        if error is E.NONE:
            self.told_written.add((place, start))

    def read(self) -> None:
        place = self.any_place()

        def answered(found: StateFound) -> None:
            if found.error is E.NONE:
                self.seen.add((place, found.start_offset))

        self.coordinator().read(place, -1).on_done(answered)

    def summarize(self) -> None:
        place = self.any_place()

        def answered(found: StateSummary) -> None:
            if found.error is E.NONE and found.start_offset >= 0:
                self.seen.add((place, found.start_offset))

        self.coordinator().summarize(place).on_done(answered)

    def check(self) -> None:
        committed: set[tuple[SharePlace, int]] = set()
        shard = ShareStateShard(ShareGroupConfig(), self.timers.now_ms, lambda: self.topics)
        for record in self.records():
            decoded = shard.decode(record.key, record.value)
            assert decoded is not None
            key, value = decoded.key, decoded.value
            assert isinstance(key, ShareSnapshotKey | ShareUpdateKey)
            if isinstance(value, ShareSnapshotValue | ShareUpdateValue):
                place = SharePlace(key.group_id, (key.topic_id, key.partition))
                committed.add((place, value.start_offset))
        for told in (self.told_written, self.seen):
            if lost := told - committed:
                raise LieError(f"told, and lost: {sorted(lost)}")
