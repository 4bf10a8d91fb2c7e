"""Share partitions and their states under random readers, crashes, locks that end, writes that fail
and reloads, by seed: every record ends acknowledged, rejected or archived, none is lost, none is
done with twice, none is delivered to two at once or more often than it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kbroker.coordinator.share_state.persister import RetryingSharePersister
from kbroker.coordinator.share_state.service import ShareCoordinator
from kbroker.coordinator.share_state.shard import ShareStateShard
from kbroker.coordinator.share_state.topic import SHARE_TOPIC
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.reads.offsets import ListedOffset
from kbroker.replication.time_slices import FairSlices
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.acknowledgement import ACCEPT, REJECT, RELEASE, RENEW, Acknowledgement
from kbroker.share.acquisition import AcquireLimits
from kbroker.share.open_partitions import OpenSharePartition
from kbroker.share.partitions import AcknowledgeOutcome, SharePartitions
from tests.coordinator.simulation import FakeTopics, MemoryLog
from tests.sim.timers import SimTimers

SEEDS = range(40)
STEPS = 250
END = 300
KEY_GROUP = "g"
STATES = TopicPartition(SHARE_TOPIC, 0)


class StateMemory(MemoryLog):
    """That forgets its beginning when it is told to."""

    def end_offset(self, topic_partition: TopicPartition) -> int:
        stored = self.batches.get(topic_partition)
        return read_batch_header(stored[-1]).next_offset if stored else 0

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        stored = self.batches[topic_partition]
        kept = [batch for batch in stored if read_batch_header(batch).last_offset >= offset]
        assert kept, "nothing would be left"
        self.batches[topic_partition] = kept


@dataclass
class FakeLog:
    log_start_offset: int = 0


@dataclass
class FakeReplica:
    topic_partition: TopicPartition
    leader_epoch: int = 0
    log: FakeLog = field(default_factory=FakeLog)

    def check_leader(self) -> ErrorCode:
        return ErrorCode.NONE


class FakeReplicas:
    """One partition, led here, from offset 0. Slices end with the work: only the seed counts."""

    def __init__(self, timers: SimTimers) -> None:
        self.fair_slices = FairSlices(timers, clock=lambda: 0.0)
        self.replica = FakeReplica(TopicPartition("events", 0))
        self.callbacks: list[Callable[[TopicPartition, int | None], None]] = []

    def find(self, topic_id: bytes, index: int) -> FakeReplica:
        return self.replica

    def offset_of(self, partition: TopicPartition, timestamp: int) -> Deferred[ListedOffset]:
        return Deferred.of(ListedOffset(offset=0))

    def on_leadership(self, callback: Callable[[TopicPartition, int | None], None]) -> None:
        self.callbacks.append(callback)

    def new_leadership(self) -> None:
        self.replica.leader_epoch += 1
        for callback in self.callbacks:
            callback(self.replica.topic_partition, self.replica.leader_epoch)


@dataclass
class Delivery:
    member: str
    first: int
    last: int


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.config = replace(
            ShareGroupConfig(),
            group_share_record_lock_duration_ms=random.choice([1_000, 5_000]),
            group_share_delivery_count_limit=random.choice([2, 5]),
            group_share_partition_max_record_locks=random.choice([100, 200]),
            share_coordinator_snapshot_update_records_per_snapshot=random.choice([0, 3, 50]),
        )
        self.timers = SimTimers()
        self.log = StateMemory()
        self.topics = FakeTopics()
        self.topics.add(SHARE_TOPIC, 1)
        topic_id = self.topics.add("events", 1).topic_id
        self.key = SharePlace(KEY_GROUP, (topic_id, 0))
        self.coordinator = ShareCoordinator(
            self.config, log=self.log, timers=self.timers, topics=lambda: self.topics
        )
        self.epoch = 0
        self.lead()
        persister = RetryingSharePersister(
            self.coordinator, self.timers, lambda: Deferred.of(ErrorCode.NONE)
        )
        self.replicas = FakeReplicas(self.timers)
        self.partitions = SharePartitions(
            cast(ReplicaManager, self.replicas), persister, self.timers, lambda group: self.config
        )
        self.coordinator.initialize(self.key, 1, 0)
        self.deliveries: list[Delivery] = []
        self.owners: dict[int, str] = {}
        """Who was last given a record, unless it has ended for all to know."""
        self.counts: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        """Records whose end was told to the member that reported it."""
        self.asked_to_end: set[int] = set()
        """Those too of which it was not told: the write may be in the log all the same."""

    # -- the world ---------------------------------------------------------------------------

    def lead(self) -> None:
        self.epoch += 1
        self.coordinator.on_leadership(0, self.epoch)
        self.timers.advance(0)

    def opened(self) -> OpenSharePartition | None:
        found = self.partitions.open(self.key)
        for _ in range(40):
            if found.done:
                break
            self.log.commit()
            self.timers.advance(100)
        assert found.done, "a share partition does not open"
        return None if isinstance(found.value, ErrorCode) else found.value

    def replayed(self) -> ShareStateShard:
        shard = ShareStateShard(self.config, self.timers.now_ms, lambda: self.topics)
        for batch in self.log.batches.get(STATES, []):
            for position, header in iter_batches(batch):
                for record in iter_records(batch[position:], header):
                    decoded = shard.decode(record.key, record.value)
                    assert decoded is not None
                    shard.replay(decoded)
        return shard

    # -- what happens ------------------------------------------------------------------------

    def run(self) -> None:
        steps: Mapping[Callable[[], Any], int] = {
            self.fetch: 30,
            self.acknowledge: 40,
            self.pass_time: 10,
            self.leave: 4,
            self.reload_states: 2,
            self.move_partition: 2,
            self.slow_log: 3,
            self.failing_log: 2,
            self.prune: 2,
        }
        for _ in range(STEPS):
            self.random.choices(list(steps), list(steps.values()))[0]()
            self.check()
        self.log.delayed = False
        self.log.errors.clear()
        self.log.commit()
        self.drain()

    def fetch(self, member: str | None = None) -> None:
        found = self.opened()
        if found is None:
            return
        member = member or self.random.choice("abcd")
        limit = self.config.group_share_partition_max_record_locks
        offset = found.core.next_fetch_offset(limit)
        if offset is None or offset >= END:
            return
        asked = AcquireLimits(
            max_records=self.random.choice([1, 5, 50]),
            batch_size=self.random.choice([1, 10]),
            is_strict=self.random.random() < 0.5,
            max_locks=limit,
            delivery_limit=self.config.group_share_delivery_count_limit,
            lock_ms=self.config.group_share_record_lock_duration_ms,
        )
        batches = [(first, min(first + 9, END - 1)) for first in range(offset, END, 10)]
        for piece in self.partitions.acquire(found, member, batches, asked):
            self.deliveries.append(Delivery(member, piece.first, piece.last))
            assert 1 <= piece.deliveries <= self.config.group_share_delivery_count_limit
            for record in range(piece.first, piece.last + 1):
                assert record not in self.ended, f"{record} is delivered after its end"
                self.owners[record] = member
                self.counts[record] = piece.deliveries

    def acknowledge(self) -> None:
        if not self.deliveries:
            return
        delivery = self.random.choice(self.deliveries[-8:])
        kind = self.random.choice([ACCEPT, ACCEPT, ACCEPT, REJECT, RELEASE, RENEW])
        first = self.random.randrange(delivery.first, delivery.last + 1)
        self.say(delivery.member, first, self.random.randrange(first, delivery.last + 1), kind)

    def say(self, member: str, first: int, last: int, kind: int) -> None:
        item = Acknowledgement(first, last, [kind])

        def told(outcome: AcknowledgeOutcome) -> None:
            if outcome.error is not ErrorCode.NONE or kind not in (ACCEPT, REJECT):
                return
            for record in range(max(first, start), last + 1):
                assert record not in self.ended, f"{record} ends twice"
                assert record in owned, f"{record} is ended by who has it not"
                self.ended[record] = kind

        found = self.partitions.find(self.key)
        start = 0 if found is None else found.core.start_offset
        owned = {n for n in range(first, last + 1) if self.owners.get(n) == member}
        if found is not None:
            if kind in (ACCEPT, REJECT):
                self.asked_to_end |= owned
            steps = self.partitions.acknowledge(self.key, member, [item], may_renew=True)
            at_once(steps).on_done(told)

    def pass_time(self) -> None:
        self.timers.advance(self.random.choice([10, 300, 2_000]))

    def leave(self) -> None:
        self.partitions.release(KEY_GROUP, self.random.choice("abcd"))

    def reload_states(self) -> None:
        """The share coordinator is loaded again from its log."""
        self.log.commit()
        self.coordinator.on_leadership(0, None)
        self.lead()

    def move_partition(self) -> None:
        """The partition has a new leader (here again), which knows only what was kept."""
        self.log.commit()
        self.replicas.new_leadership()
        self.owners.clear()
        self.deliveries.clear()

    def slow_log(self) -> None:
        if self.log.delayed:
            self.log.delayed = False
            self.log.commit()
        else:
            self.log.delayed = True

    def failing_log(self) -> None:
        self.log.errors.append(
            self.random.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
        )

    def prune(self) -> None:
        self.coordinator.prune(min_records=10)

    def drain(self) -> None:
        """Consumers read on until no record is left."""
        for _ in range(2_000):
            self.timers.advance(self.config.group_share_record_lock_duration_ms + 1_000)
            found = self.opened()
            assert found is not None
            if found.core.start_offset >= END:
                break
            self.fetch("z")
            for delivery in [one for one in self.deliveries if one.member == "z"]:
                self.say("z", delivery.first, delivery.last, ACCEPT)
            self.deliveries.clear()
        else:
            raise AssertionError("records are left")
        self.check()
        for record in range(END):
            worn_out = self.counts.get(record) == self.config.group_share_delivery_count_limit
            assert record in self.asked_to_end or worn_out, f"{record} is lost"

    # -- what holds --------------------------------------------------------------------------

    def check(self) -> None:
        found = self.partitions.find(self.key)
        if found is None:
            return
        core = found.core
        window = core.end_offset - core.start_offset
        assert window <= self.config.group_share_partition_max_record_locks + 10
        if self.random.random() < 0.1:
            self.check_replay()

    def check_replay(self) -> None:
        try:
            live = self.coordinator.runtime.host(0).shard
        except Exception:  # noqa: BLE001  # being loaded
            return
        replayed = self.replayed()
        assert replayed.states.keys() == live.states.keys()
        for key, state in live.states.items():
            for name in ShareStateShardFields:
                assert getattr(replayed.states[key], name) == getattr(state, name), name


ShareStateShardFields = (
    "batches",
    "delivery_complete_count",
    "leader_epoch",
    "snapshot_epoch",
    "start_offset",
    "state_epoch",
    "update_count",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_share_partition(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_simulated_share_partitions(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
