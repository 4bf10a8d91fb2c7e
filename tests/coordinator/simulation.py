"""An in-memory log of real batches, for coordinators that run in one thread on simulated timers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import NamedTuple, TypeVar

from kbroker.coordinator.group.kind import GroupType
from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator, GroupDeletion
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.runtime.coordinator_log import AppendOutcome, is_written
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import DeletedTopic
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import (
    check_crc,
    iter_batches,
    read_batch_header,
)
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.batch_offsets import assign_offsets
from tests.sim.timers import SimTimers

LOG_ERRORS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""The errors of an append: nothing was written; unknown; everything was written, but may not be
committed.
"""


@dataclass(slots=True)
class Outcome:
    error: ErrorCode


class MemoryLog:
    """Batches per partition, as bytes. delayed: appends wait for `commit`, above the high watermark
    until then; errors: of the next appends, which are not stored, except with REQUEST_TIMED_OUT.
    """

    def __init__(self) -> None:
        self.batches: dict[TopicPartition, list[bytes]] = {}
        self.delayed = False
        self.errors: list[ErrorCode] = []
        self.waiting: list[tuple[TopicPartition, Deferred[AppendOutcome]]] = []
        """Of each batch that is not committed."""
        self.tails: list[Deferred[ErrorCode]] = []

    def append(
        self,
        topic_partition: TopicPartition,
        batch: bytearray,
        *,
        leader_epoch: int = -1,
        transaction_version: int = 0,
    ) -> Deferred[AppendOutcome]:
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            return Deferred.of(Outcome(error))
        stored = self.batches.setdefault(topic_partition, [])
        end = read_batch_header(stored[-1]).next_offset if stored else 0
        assign_offsets(batch, end, 0)
        assert check_crc(batch, 0, read_batch_header(batch))
        stored.append(bytes(batch))
        if not self.delayed or error is not ErrorCode.NONE:
            return Deferred.of(Outcome(error))
        deferred: Deferred[AppendOutcome] = Deferred()
        self.waiting.append((topic_partition, deferred))
        return deferred

    def commit(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Everything written is committed now, and is said to be (or to have failed with error)."""
        waiting, self.waiting = self.waiting, []
        tails, self.tails = self.tails, []
        for _, deferred in waiting:
            deferred.resolve(Outcome(error))
        for tail in tails:
            tail.resolve(ErrorCode.NONE if is_written(error) else error)

    def when_committed(self, topic_partition: TopicPartition) -> Deferred[ErrorCode]:
        if all(waiting != topic_partition for waiting, _ in self.waiting):
            return Deferred.of(ErrorCode.NONE)
        tail: Deferred[ErrorCode] = Deferred()
        self.tails.append(tail)
        return tail

    def lose_tail(self, kept: int) -> None:
        """Of the uncommitted batches only the first `kept` reached the next leader, and are
        committed there. The requests that waited have failed with NOT_COORDINATOR.
        """
        lost, self.waiting = self.waiting[kept:], []
        self.tails = []
        for topic_partition, _ in reversed(lost):
            self.batches[topic_partition].pop()

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        data = bytearray()
        for batch in self.batches.get(topic_partition, []):
            if read_batch_header(batch).last_offset < offset:
                continue
            if data and len(data) + len(batch) > max_bytes:
                break
            data += batch
        return bytes(data)


@dataclass(slots=True)
class FakeTopic:
    name: str
    topic_id: Uuid
    partitions: dict[int, object]


@dataclass(slots=True)
class FakeTopics:
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    topics_by_id: dict[Uuid, FakeTopic] = field(default_factory=dict)
    offset: int = 0

    def partition_racks(self, name: str) -> tuple[tuple[str, ...], ...]:
        return ()

    def add(self, name: str, partition_count: int) -> FakeTopic:
        topic_id = bytes(8) + (self.offset + 100).to_bytes(8, "big")
        topic = FakeTopic(name, topic_id, dict.fromkeys(range(partition_count)))
        self.topics = {**self.topics, name: topic}
        self.topics_by_id = {**self.topics_by_id, topic_id: topic}
        self.offset += 1
        return topic

    def remove(self, name: str) -> DeletedTopic:
        self.topics = dict(self.topics)
        topic_id = self.topics.pop(name).topic_id
        del self.topics_by_id[topic_id]
        self.offset += 1
        return DeletedTopic(name, topic_id)


@dataclass(slots=True)
class Context:
    api_version: int
    client_id: str | None = "client"
    client_host: str = "10.0.0.1"


class GroupSettings:
    """What groups have set themselves, by (group id, name)."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], int] = {}

    def get_int(self, group_id: str, name: str) -> int | None:
        return self.values.get((group_id, name))


Answer = TypeVar("Answer")


class World:
    """A group coordinator that leads every partition of `__consumer_offsets`, on a virtual
    clock.
    """

    def __init__(
        self,
        *,
        partition_count: int = 1,
        seed: int = 1,
        config: GroupCoordinatorConfig | None = None,
    ) -> None:
        self.config = config or GroupCoordinatorConfig()
        self.timers = SimTimers()
        self.log = MemoryLog()
        self.topics = FakeTopics()
        self.topics.add(GROUP_TOPIC, partition_count)
        self.topics.add("events", 12)
        self.topics.add("other", 3)
        self.epoch = 0
        self.overrides = GroupSettings()
        self.delete_share_group: GroupDeletion
        """`ShareGroupCoordinator.delete_group`, set by a test that has one."""
        self.coordinator = GroupCoordinator(
            self.config,
            log=self.log,
            timers=self.timers,
            random=Random(seed),
            topics=lambda: self.topics,
            overrides=self.overrides,
            deletions={GroupType.SHARE: lambda group_id: self.delete_share_group(group_id)},
        )
        self.lead()

    def lead(self) -> None:
        """Become leader of every partition, in a new epoch."""
        self.epoch += 1
        for partition in self.topics.topics[GROUP_TOPIC].partitions:
            self.coordinator.on_leadership(partition, self.epoch)
        self.timers.advance(0)

    def answer(
        self, steps: Generator[Deferred[ErrorCode] | None, None, Answer]
    ) -> Answer | Deferred[Answer]:
        """Take all steps of a request, none later than what it waits for."""
        answer: Deferred[Answer] = Deferred()

        def proceed(_: object = None) -> None:
            try:
                while (waits_for := next(steps)) is None or waits_for.done:
                    pass
            except StopIteration as end:
                answer.resolve(end.value)
            else:
                waits_for.on_done(proceed)

        proceed()
        return answer.value if answer.done else answer

    def resign(self) -> None:
        """Lead nothing."""
        for partition in self.topics.topics[GROUP_TOPIC].partitions:
            self.coordinator.on_leadership(partition, None)

    def fail_over(self, random: Random) -> None:
        """Another broker becomes leader: it has a part of the uncommitted records, truncated at a
        random record.
        """
        self.resign()
        self.log.lose_tail(random.randint(0, len(self.log.waiting)))
        self.log.delayed = False
        self.lead()

    def log_length(self, partition: int = 0) -> int:
        """How many batches there are."""
        return len(self.log.batches.get(TopicPartition(GROUP_TOPIC, partition), []))

    def cut(self, end: int) -> World:
        """A world whose log ends after so many batches of this one's: the cluster's topics and
        clock are the same.
        """
        return self.with_log({key: batches[:end] for key, batches in self.log.batches.items()})

    def with_log(self, batches: dict[TopicPartition, list[bytes]]) -> World:
        """A world that loads these batches; the cluster's topics and clock are the same."""
        world = World(config=self.config)
        world.resign()
        world.topics = replace(self.topics)
        world.timers.time_ms, world.timers.wall_jump_ms = (
            self.timers.time_ms,
            self.timers.wall_jump_ms,
        )
        world.log.batches.update({key: list(value) for key, value in batches.items()})
        world.lead()
        return world

    def stored(self, partition: int = 0) -> Iterator[tuple[StoredRecord, ...]]:
        """The records of the log, batch by batch."""
        batches = self.log.batches.get(TopicPartition(GROUP_TOPIC, partition), [])
        return map(_records_of, batches)

    def growing(self, partition: int = 0) -> Iterator[GroupShard]:
        """A shard that replays the log, after each of its batches."""
        shard = self._empty_shard()
        for batch in self.stored(partition):
            for record in batch:
                if record.decoded is not None:
                    shard.replay(record.decoded)
            yield shard

    def _empty_shard(self) -> GroupShard:
        return GroupShard(self.config, Random(0), self.timers.now_ms, lambda: self.topics)

    def shard(self, partition: int = 0) -> GroupShard:
        return self.coordinator.runtime.host(partition).shard

    def replayed(self, partition: int = 0, *, compacted: bool = False) -> GroupShard:
        """A fresh shard, made from the log alone. compacted: from the last record of each key."""
        shard = self._empty_shard()
        records = [record for batch in self.stored(partition) for record in batch]
        if compacted:
            last = {record.key: number for number, record in enumerate(records)}
            records = [
                record
                for number, record in enumerate(records)
                if last[record.key] == number and record.value is not None
            ]
        for record in records:
            if record.decoded is not None:
                shard.replay(record.decoded)
        shard.on_loaded(self.timers.now_ms())
        return shard


class StoredRecord(NamedTuple):
    """A record of the log. decoded: None if it is none of a coordinator's."""

    key: bytes | None
    value: bytes | None
    decoded: CoordinatorRecord | None


@lru_cache(maxsize=1_000)
def _records_of(batch: bytes) -> tuple[StoredRecord, ...]:
    """Kept, because a log is looked at again and again while it grows."""
    return tuple(
        StoredRecord(record.key, record.value, decode_record(record.key, record.value))
        for position, header in iter_batches(batch)
        for record in iter_records(batch[position:], header)
    )
