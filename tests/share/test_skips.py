"""A ShareFetch whose records are skipped: it reads on, or waits when nothing is left; many are
skipped in slices, and what may happen meanwhile. That a fetch that waits ends with its connection
is in test_reader.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from msgspec.structs import replace

from kbroker.log.time_search import HEADERS_PER_STEP
from kbroker.model import TopicPartition
from kbroker.ports import Chained, Deferred, at_once
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_groups import ShareFetchResponse
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateWrite
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.purgatory import Purgatory, Watcher
from kbroker.replication.time_slices import FairSlices
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.acquisition import AcquireLimits
from kbroker.share.delivery import ReadLimits
from kbroker.share.open_partitions import OpenSharePartition
from kbroker.share.partitions import SharePartitions
from kbroker.share.persister import SharePersister
from kbroker.share.reader import ShareReader
from tests.replication.test_time_slices import Ticks, Turns
from tests.sim.offload import run_inline
from tests.sim.timers import SimTimers

PLACE = (bytes(15) + b"t", 0)
ABORTED_PRODUCER, OTHER_PRODUCER = 7, 8


class Aborted(NamedTuple):
    first_offset: int
    producer_id: int


@dataclass
class FakeLog:
    log_start_offset: int = 0
    aborted: list[Aborted] = field(default_factory=list)

    def aborted_transactions(self, fetch_offset: int, upper_offset: int) -> list[Aborted]:
        return [one for one in self.aborted if one.first_offset < upper_offset]


class Read(NamedTuple):
    records: bytes
    end_offset: int


class FakeReplica:
    """A partition of batches with one record each."""

    topic_partition = TopicPartition("events", 0)
    leader_epoch = 0

    def __init__(self, batches: list[bytes]) -> None:
        self.batches = batches
        self.log = FakeLog()
        self.high_watermark = self.last_stable_offset = len(batches)
        self.watchers: list[Watcher] = []

    def check_leader(self) -> ErrorCode:
        return ErrorCode.NONE

    def watch(self, watcher: Watcher) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.remove(watcher)


class FakeReplicas:
    """One partition; `reads` has the offset of each read."""

    def __init__(self, replica: FakeReplica, timers: SimTimers) -> None:
        self.replica = replica
        self.purgatory = Purgatory(timers)
        self.fair_slices = FairSlices(timers)
        self.reads: list[int] = []

    def find(self, topic_id: bytes, index: int) -> FakeReplica:
        return self.replica

    def on_leadership(self, callback: object) -> None:
        pass

    def read_records(
        self,
        replica: FakeReplica,
        offset: int,
        *,
        max_bytes: int,
        upper_offset: int,
        min_one_batch: bool,
    ) -> Read:
        self.reads.append(offset)
        end = offset + 1
        while end < upper_offset and sum(map(len, replica.batches[offset : end + 1])) <= max_bytes:
            end += 1
        return Read(b"".join(replica.batches[offset:end]), end)


class FakePersister:
    """No state yet, and writes that succeed."""

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        return Deferred.of(StateFound(ErrorCode.NONE, start_offset=0, state_epoch=1, batches=[]))

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        return Deferred.of(ErrorCode.NONE)


def batch(offset: int, producer_id: int) -> bytes:
    return bytes(
        build_batch(
            [(1_000, None, b"value", ())],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=offset,
            is_transactional=True,
        )
    )


class Fetching:
    """A session that reads a partition; its first aborted_count records are of an aborted
    transaction, the others are not.
    """

    def __init__(
        self, aborted_count: int, committed_count: int, timers: SimTimers | None = None
    ) -> None:
        self.timers = timers or SimTimers()
        producers = [ABORTED_PRODUCER] * aborted_count + [OTHER_PRODUCER] * committed_count
        replica = FakeReplica([batch(offset, one) for offset, one in enumerate(producers)])
        replica.log.aborted = [Aborted(0, ABORTED_PRODUCER)]
        self.replicas = FakeReplicas(replica, self.timers)
        config = replace(ShareGroupConfig(), reads_committed=True)
        replicas = cast(ReplicaManager, self.replicas)
        partitions = SharePartitions(
            replicas, cast(SharePersister, FakePersister()), self.timers, lambda _: config
        )
        self.partitions = partitions
        self.reader = ShareReader(
            replicas,
            partitions,
            self.timers,
            lambda _: config,
            offload=run_inline,
            max_sessions=1,
        )
        self.session = self.reader.session(("g", "member"), 0, "connection")
        at_once(self.reader.update(self.session, [PLACE], []))
        self.batch_bytes = len(replica.batches[0])

    def fetch(
        self, *, max_wait_ms: int = 500, batches: int = 2
    ) -> Deferred[Mapping[tuple[bytes, int], ShareFetchResponse.PartitionData]]:
        """Reads so many batches at most."""
        limits = ReadLimits(max_wait_ms, 1, batches * self.batch_bytes, 500, 500, False)
        return self.reader.fetch(self.session, limits)


def test_a_fetch_whose_records_are_all_skipped_reads_on() -> None:
    fetching = Fetching(aborted_count=5, committed_count=2)
    answer = fetching.fetch()
    assert fetching.replicas.reads == [0]  # the others are in turns of their own
    fetching.timers.advance(0)
    assert fetching.replicas.reads == [0, 2, 4]
    assert answer.done
    acquired = answer.value[PLACE].acquired_records
    assert [(one.first_offset, one.last_offset) for one in acquired] == [(5, 5)]


def test_a_fetch_waits_when_all_there_is_was_skipped() -> None:
    fetching = Fetching(aborted_count=5, committed_count=0)
    answer = fetching.fetch(max_wait_ms=500)
    fetching.timers.advance(499)
    assert fetching.replicas.reads == [0, 2, 4]
    assert not answer.done
    fetching.timers.advance(1)
    assert answer.done
    assert answer.value == {}
    assert fetching.replicas.replica.watchers == []


def test_a_fetch_that_reads_on_can_be_cancelled() -> None:
    fetching = Fetching(aborted_count=50, committed_count=0)
    answer = fetching.fetch()
    assert isinstance(answer, Chained)
    answer.cancel()
    fetching.timers.advance(1_000)
    assert not answer.done
    assert fetching.replicas.reads == [0]


def test_a_fetch_reads_no_further_once_its_session_has_ended() -> None:
    fetching = Fetching(aborted_count=50, committed_count=0)
    answer = fetching.fetch()
    fetching.reader.disconnected("connection")
    fetching.timers.advance(0)
    assert answer.done
    assert answer.value == {}
    assert fetching.replicas.reads == [0]


SKIPPED = 5 * HEADERS_PER_STEP
COMMITTED = 4


class Slices(Fetching):
    """A fetch of very many skipped records, then a few others: a step for each slice."""

    def __init__(self) -> None:
        self.turns = Turns()
        super().__init__(SKIPPED, COMMITTED, self.turns)
        self.replicas.fair_slices = FairSlices(self.turns, seconds=0.001, clock=Ticks())
        self.answer = self.fetch(batches=SKIPPED + COMMITTED)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.turns.due and not self.answer.done
            self.turns.turn()

    def finish(self) -> list[tuple[int, int]]:
        """The offsets that are acquired at the end."""
        while self.turns.due:
            self.turns.turn()
        assert self.answer.done
        return [
            (one.first_offset, one.last_offset)
            for data in self.answer.value.values()
            for one in data.acquired_records
        ]

    @property
    def open_partition(self) -> OpenSharePartition:
        found = self.partitions.find(SharePlace("g", PLACE))
        assert found is not None
        return found

    def acquire(self, member_id: str, first: int, last: int) -> None:
        config = ShareGroupConfig()
        limits = AcquireLimits(500, 500, True, config.group_share_partition_max_record_locks, 5, 1)
        self.open_partition.core.acquire(member_id, [(first, last)], limits, 0)


def test_many_records_are_skipped_in_slices_and_read_once() -> None:
    fetching = Slices()
    fetching.turn(SKIPPED // HEADERS_PER_STEP - 1)
    assert fetching.finish() == [(SKIPPED, SKIPPED + COMMITTED - 1)]
    assert fetching.replicas.reads == [0]


def test_a_session_that_ends_during_a_pause_acquires_nothing() -> None:
    fetching = Slices()
    fetching.turn(2)
    open_partition = fetching.open_partition
    fetching.reader.disconnected("connection")
    assert fetching.finish() == []
    assert open_partition.is_at_rest, "no record is locked"


def test_a_fetch_that_is_cancelled_during_a_pause_acquires_nothing() -> None:
    fetching = Slices()
    fetching.turn(2)
    assert isinstance(fetching.answer, Chained)
    fetching.answer.cancel()
    while fetching.turns.due:
        fetching.turns.turn()
    assert not fetching.answer.done
    assert fetching.open_partition.is_at_rest


def test_another_member_acquires_some_of_the_records_during_a_pause() -> None:
    fetching = Slices()
    fetching.turn(2)
    fetching.acquire("other", 0, SKIPPED + 1)
    assert fetching.finish() == [(SKIPPED + 2, SKIPPED + COMMITTED - 1)]


def test_another_member_acquires_all_of_the_records_during_a_pause() -> None:
    """The fetch looks again, finds nothing and waits."""
    fetching = Slices()
    fetching.turn(2)
    fetching.acquire("other", 0, SKIPPED + COMMITTED - 1)
    while fetching.turns.due:
        fetching.turns.turn()
    assert not fetching.answer.done
    assert fetching.replicas.reads == [0]
    assert len(fetching.replicas.replica.watchers) == 1


def test_a_share_partition_that_is_opened_anew_during_a_pause() -> None:
    """As after its state was initialized again: the fetch reads again, by the new state."""
    fetching = Slices()
    fetching.turn(2)
    former = fetching.open_partition
    fetching.partitions.forget(former.key)
    assert fetching.finish() == [(SKIPPED, SKIPPED + COMMITTED - 1)]
    assert fetching.replicas.reads == [0, 0]
    assert former.is_at_rest and not fetching.open_partition.is_at_rest
