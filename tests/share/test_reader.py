"""A ShareFetch that waits: it ends with its connection, and is charged for what it holds; and one
whose disk fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.protocol.share_partition_state import SharePlace, StateFound, StateWrite
from kbroker.replication.reads.fetch import FREE_BYTES, SHORT_WAIT_MS
from kbroker.replication.time_slices import STEP_ITEMS, FairSlices
from kbroker.server.handlers.groups.share_fetch import handle_share_fetch
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import RequestContext
from kbroker.server.session import Session
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.partitions import SharePartitions
from kbroker.share.persister import SharePersister
from kbroker.share.reader import WATCH_BYTES, ShareReader
from tests.replication.test_time_slices import Ticks, Turns
from tests.replication.world import TOPIC, TOPIC_ID, World
from tests.sim.offload import run_inline

CONNECTION = "one"
FOR_EVER_MS = 2**31 - 1


class States:
    """Every share partition begins at offset 0; reading that takes as long as the test says."""

    def __init__(self) -> None:
        self.is_slow = False
        self.asked: list[Deferred[StateFound]] = []

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        found: Deferred[StateFound] = Deferred()
        self.asked.append(found)
        if not self.is_slow:
            self.answer()
        return found

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for found in asked:
            found.resolve(StateFound(ErrorCode.NONE, 1, 0))

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        return Deferred.of(ErrorCode.NONE)


class Readers:
    """ShareFetch over real logs, as a connection calls it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.memory = MemoryPool(1 << 20)
        self.states = States()
        self.config = ShareGroupConfig()
        partitions = SharePartitions(
            world.replicas,
            cast(SharePersister, self.states),
            world.timers,
            lambda group: self.config,
        )
        self.partitions = partitions
        self.reader = ShareReader(
            world.replicas,
            partitions,
            world.timers,
            lambda group: self.config,
            offload=run_inline,
            max_sessions=100,
            memory=self.memory,
        )

    def fetch(self, epoch: int = 0, places: int = 1, max_wait_ms: int = FOR_EVER_MS) -> Any:
        wanted = [ShareFetchRequest.FetchPartition(partition_index=i) for i in range(places)]
        topic = ShareFetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=wanted)
        request = ShareFetchRequest(
            group_id="group",
            member_id="member",
            share_session_epoch=epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[topic] if epoch == 0 else [],
        )
        services: Any = SimpleNamespace(share_reader=self.reader, config=self.world.config)
        context = RequestContext(ApiKey.SHARE_FETCH, 1, session=Session(CONNECTION))
        return handle_share_fetch(services, context, request)

    def waiting(self) -> int:
        """Fetches that partitions would wake."""
        return sum(len(found.waiting) for found in self.partitions._open.values())


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    world = World(tmp_path, partitions=40)
    yield Readers(world)
    world.close()


def test_a_share_fetch_stops_waiting_when_its_connection_goes(readers: Readers) -> None:
    outcomes = [readers.fetch(epoch) for epoch in range(3)]
    assert not any(outcome.done for outcome in outcomes)
    assert (readers.world.replicas.purgatory.waiting, readers.waiting()) == (3, 3)
    for outcome in outcomes:  # as the connection does when it is lost
        outcome.cancel()
    readers.reader.disconnected(CONNECTION)
    assert (readers.world.replicas.purgatory.waiting, readers.waiting()) == (0, 0)
    readers.world.append()
    readers.world.timers.advance(1000)
    assert not any(outcome.done for outcome in outcomes)


def test_a_share_fetch_does_not_begin_to_wait_for_a_closed_connection(
    readers: Readers,
) -> None:
    readers.states.is_slow = True
    outcome = readers.fetch()
    assert len(readers.states.asked) == 1
    outcome.cancel()
    readers.states.answer()
    assert readers.world.replicas.purgatory.waiting == 0
    assert not outcome.done


def follow(world: World, index: int) -> None:
    """Another broker leads the partition from now on."""
    world.host(index, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2))


def lose_disk(world: World, index: int) -> None:
    partition = world.replicas.partition(TopicPartition(TOPIC, index))
    assert partition is not None
    world.replicas.hosting.read_failed(partition, OSError(5, "Input/output error"))


LOSSES = [
    pytest.param(follow, ErrorCode.NOT_LEADER_OR_FOLLOWER, id="leadership"),
    pytest.param(lose_disk, ErrorCode.KAFKA_STORAGE_ERROR, id="disk"),
]


def errors_of(response: ShareFetchResponse) -> dict[int, int]:
    return {
        data.partition_index: data.error_code
        for topic in response.responses
        for data in topic.partitions
    }


@pytest.mark.parametrize(("lose", "error"), LOSSES)
def test_a_waiting_share_fetch_fails_when_a_partition_is_lost(
    readers: Readers, lose: Callable[[World, int], None], error: ErrorCode
) -> None:
    outcome = readers.fetch(places=2)
    assert readers.waiting() == 2
    lose(readers.world, 1)
    readers.world.timers.advance(0)
    assert outcome.done
    assert errors_of(outcome.value) == {0: 0, 1: error}
    assert (readers.world.replicas.purgatory.waiting, readers.waiting()) == (0, 0)
    again = readers.fetch(1)
    assert errors_of(again.value)[1] == error, "the next request of the session too"


@pytest.mark.parametrize(("lose", "error"), LOSSES)
def test_a_share_fetch_fails_when_a_partition_is_lost_while_its_state_is_read(
    readers: Readers, lose: Callable[[World, int], None], error: ErrorCode
) -> None:
    readers.states.is_slow = True
    outcome = readers.fetch()
    lose(readers.world, 0)
    readers.states.answer()
    assert errors_of(outcome.value) == {0: error}
    assert readers.world.replicas.purgatory.waiting == 0


def test_a_share_fetch_of_many_partitions_is_charged_while_it_waits(readers: Readers) -> None:
    readers.fetch(places=40, max_wait_ms=0)
    kept = readers.memory.used
    outcomes = [readers.fetch(epoch) for epoch in (1, 2)]
    held = 40 * WATCH_BYTES
    assert held > FREE_BYTES
    assert readers.memory.used == kept + 2 * held
    outcomes[0].cancel()
    assert readers.memory.used == kept + held
    readers.world.append(3)
    readers.world.timers.advance(0)
    response = outcomes[1].value
    assert isinstance(response, ShareFetchResponse)
    assert response.responses[0].partitions[0].acquired_records
    assert readers.memory.used == kept


def test_a_share_fetch_does_not_wait_where_memory_is_used_up(readers: Readers) -> None:
    readers.fetch(places=40, max_wait_ms=0)
    readers.memory.charge(readers.memory.limit - readers.memory.used)
    outcome = readers.fetch(1)
    readers.world.timers.advance(0)  # a slice may end after 32 of them
    assert outcome.done
    assert readers.memory.used == readers.memory.limit


def test_charged_share_fetches_are_answered_soon_when_memory_is_short(readers: Readers) -> None:
    readers.memory.on_pressure = readers.reader.give_back_memory
    readers.fetch(places=40, max_wait_ms=0)
    waits = readers.fetch(1)
    readers.memory.charge(readers.memory.limit // 2)
    ticket = readers.memory.wait_turn(lambda: None)
    begins = readers.fetch(2)
    readers.world.timers.advance(SHORT_WAIT_MS - 1)
    assert not (waits.done or begins.done)
    readers.world.timers.advance(1)
    assert waits.done and begins.done
    readers.memory.withdraw(ticket)


def test_a_session_of_many_partitions_is_looked_at_in_slices(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have their turn meanwhile, and what was found before a pause is found afresh."""
    readers.world.append(0)
    turns = Turns()
    slices = FairSlices(turns, seconds=0.001, clock=Ticks())
    monkeypatch.setattr(readers.world.replicas, "fair_slices", slices)
    outcome = readers.fetch(places=300, max_wait_ms=0)
    count = 0
    while not outcome.done:
        assert turns.due
        turns.turn()
        count += 1
    assert count >= 300 // STEP_ITEMS
    (topic,) = outcome.value.responses
    found = {partition.partition_index: partition for partition in topic.partitions}
    assert sorted(found) == list(range(300))
    assert [index for index in found if found[index].acquired_records] == [0]
    assert found[299].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_share_fetch_that_is_cancelled_between_slices_looks_no_further(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns()
    slices = FairSlices(turns, seconds=0.001, clock=Ticks())
    monkeypatch.setattr(readers.world.replicas, "fair_slices", slices)
    outcome = readers.fetch(places=300)
    turns.turn()
    outcome.cancel()
    while turns.due:
        turns.turn()
    assert not outcome.done
    assert (readers.world.replicas.purgatory.waiting, readers.waiting()) == (0, 0)


Patch = pytest.MonkeyPatch


def lose_cached_reads(patch: Patch, log: PartitionLog) -> None:
    def read_cached(file: LogFile, position: int, count: int) -> bytes | None:
        if Path(file.path).parent == log.directory:
            raise LogDirectoryError(file.path, "read", OSError(5, "EIO"))
        return file.read_at(position, count)

    patch.setattr(LogFile, "read_cached", read_cached)


def lose_reads(patch: Patch, log: PartitionLog) -> None:
    read_at = LogFile.read_at

    def read(file: LogFile, position: int, count: int) -> bytes:
        if Path(file.path).parent == log.directory:
            raise LogDirectoryError(file.path, "read", OSError(5, "EIO"))
        return read_at(file, position, count)

    patch.setattr(LogFile, "read_cached", lambda file, position, count: None)
    patch.setattr(LogFile, "read_at", read)


def lose_transaction_index(patch: Patch, log: PartitionLog) -> None:
    def aborted_transactions(self: PartitionLog, *_: int) -> list[Any]:
        if self is log:
            raise LogDirectoryError(log.directory / "0.txnindex", "read", OSError(5, "EIO"))
        return []

    patch.setattr(PartitionLog, "aborted_transactions", aborted_transactions)


@pytest.mark.parametrize("lose", [lose_cached_reads, lose_reads, lose_transaction_index])
def test_a_disk_that_fails_while_records_are_acquired(
    readers: Readers, monkeypatch: Patch, lose: Callable[[Patch, PartitionLog], None]
) -> None:
    """An error of that partition; its directory is offline. What another partition had acquired is
    delivered.
    """
    world = readers.world
    readers.config = replace(readers.config, reads_committed=True)
    for index in range(2):
        world.append(index)
    failing = world.replicas.partition(TopicPartition(TOPIC, 1))
    assert failing is not None and world.logs.online()
    lose(monkeypatch, cast(PartitionLog, failing.log))
    outcome = readers.fetch(places=2)
    assert outcome.done
    assert errors_of(outcome.value) == {0: 0, 1: ErrorCode.KAFKA_STORAGE_ERROR}
    partitions = {data.partition_index: data for data in outcome.value.responses[0].partitions}
    assert partitions[0].acquired_records and partitions[0].records
    assert not partitions[1].acquired_records and partitions[1].records == b""
    assert not world.logs.online(), "the directory is offline"
    assert failing.check_leader() is ErrorCode.KAFKA_STORAGE_ERROR
