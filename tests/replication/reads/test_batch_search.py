"""Searches by time in logs whose batches claim times that no record has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.log.time_search import LOOKED_AT_BYTES, Candidate
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.reads.batch_search import BatchSearcher, Look
from kbroker.replication.reads.offsets import MAX_TIMESTAMP, ListedOffset
from kbroker.server.network.memory_pool import MemoryPool
from tests.replication.world import NOW_MS, TOPIC, World, batch
from tests.server.garbage import found_by_collector
from tests.sim.offload import HeldOffload

KEY = TopicPartition(TOPIC, 0)
CLAIMED_MS = NOW_MS + 60_000
LYING = 12
UNPACKED_BYTES = 50_000


class LyingWorld(World):
    """Of one partition: offset 0 is honest, then come batches of one record each that claim a time
    of a minute later, then an honest batch of two minutes later.
    """

    def __init__(self, folder: Path, **properties: str) -> None:
        self.worker = HeldOffload()
        self.pool = MemoryPool()
        super().__init__(folder, memory=self.pool, **properties)
        self.append(batches=batch())
        for _ in range(LYING):
            self.append(batches=lying())
        self.append(batches=batch(timestamp=NOW_MS + 120_000))

    def open(self, offload: Any = None) -> None:
        super().open(self.worker)

    def ask(self, timestamp: int) -> Deferred[ListedOffset]:
        return self.replicas.offset_of(KEY, timestamp)

    def work(self, answer: Deferred[ListedOffset]) -> ListedOffset:
        """The answer, once the worker has done what it is given."""
        while not answer.done:
            if self.worker.held:
                self.worker.run_one()
            self.timers.advance(0)
        return answer.value


def lying(size: int = UNPACKED_BYTES, compression: Compression = Compression.ZSTD) -> bytearray:
    return batch(size=size, compression=compression, max_timestamp=CLAIMED_MS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LyingWorld]:
    made = LyingWorld(tmp_path)
    yield made
    made.close()


def test_batches_are_looked_into_in_a_thread_one_at_a_time(world: LyingWorld) -> None:
    """A request of 163 bytes made the loop unpack every one of them: 17 s."""
    answer = world.ask(CLAIMED_MS)
    assert not answer.done
    assert len(world.worker.held) == 1
    found = world.work(answer)
    assert (found.error, found.offset, found.timestamp) == (
        ErrorCode.NONE,
        LYING + 1,
        NOW_MS + 120_000,
    )
    assert world.worker.done == LYING
    assert world.pool.used == 0


def test_the_batch_in_the_thread_is_charged(world: LyingWorld) -> None:
    first, second = world.ask(CLAIMED_MS), world.ask(CLAIMED_MS)
    assert LOOKED_AT_BYTES < world.pool.used < LOOKED_AT_BYTES + 100_000
    assert len(world.worker.held) == 1
    world.work(first)
    world.work(second)
    assert world.pool.used == 0


def test_searches_take_turns(world: LyingWorld) -> None:
    world.append(batches=batch(timestamp=NOW_MS + 180_000, size=20_000))
    long = world.ask(CLAIMED_MS)
    short = world.ask(NOW_MS + 180_000)
    for _ in range(3):
        world.worker.run_one()
        world.timers.advance(0)
    assert short.done
    assert not long.done
    world.work(long)


def test_after_the_bound_a_header_is_believed(tmp_path: Path) -> None:
    """The offset may be too early then, never too late."""
    world = LyingWorld(tmp_path, kbroker_list_offsets_max_bytes=str(3 * UNPACKED_BYTES))
    found = world.work(world.ask(CLAIMED_MS))
    assert (found.offset, found.timestamp) == (3, CLAIMED_MS)
    assert world.worker.done == 3
    world.close()


def test_the_largest_timestamp_is_looked_for_in_the_same_way(tmp_path: Path) -> None:
    world = LyingWorld(tmp_path)
    for _ in range(3):
        world.append(batches=batch(size=UNPACKED_BYTES, max_timestamp=NOW_MS + 180_000))
    answer = world.ask(MAX_TIMESTAMP)
    assert not answer.done
    assert len(world.worker.held) == 1
    found = world.work(answer)
    assert (found.error, found.offset) == (ErrorCode.NONE, -1)
    assert world.worker.done == 3
    assert world.pool.used == 0
    world.close()


def test_small_batches_need_no_thread(world: LyingWorld) -> None:
    answer = world.ask(NOW_MS + 120_000)
    found = world.work(answer)
    assert found.offset == LYING + 1
    assert world.worker.done == 0
    assert world.ask(NOW_MS).value.offset == 0


def test_many_headers_are_read_in_slices(
    world: LyingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim at the start of a segment hides every later entry of the time index."""
    for _ in range(300):
        world.append(batches=batch())
    world.append(batches=batch(timestamp=NOW_MS + 180_000))
    steps = world.replicas.list_offset(KEY, NOW_MS + 150_000)
    pauses = 0
    for step in steps:
        assert step is None
        pauses += 1
    assert 3 <= pauses <= 10


def test_a_search_whose_segment_was_deleted_begins_again(tmp_path: Path) -> None:
    world = LyingWorld(tmp_path, log_segment_bytes="1048576")
    log = world.logs.get(KEY)
    assert log is not None
    answer = world.ask(CLAIMED_MS)
    log.roll(NOW_MS)
    world.append(batches=batch(timestamp=NOW_MS + 240_000))
    log.delete_records_before(LYING + 2)
    log.delete_old_segments(NOW_MS)
    assert len(log.segments) == 1
    found = world.work(answer)
    assert (found.error, found.offset) == (ErrorCode.NONE, LYING + 2)
    assert world.worker.done == 1
    world.close()


def test_a_search_ends_when_the_partition_is_not_led_here_any_more(world: LyingWorld) -> None:
    answer = world.ask(CLAIMED_MS)
    world.host(0, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2))
    found = world.work(answer)
    assert found.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.worker.done == 1


def test_a_file_that_cannot_be_read_takes_the_partition_offline(world: LyingWorld) -> None:
    answer = world.ask(CLAIMED_MS)
    world.worker.run_one(OSError("unreadable"))
    found = world.work(answer)
    assert found.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.ask(CLAIMED_MS).value.error == ErrorCode.KAFKA_STORAGE_ERROR


def test_searches_fail_when_the_broker_stops(world: LyingWorld) -> None:
    """One is in the thread, one waits for it; a third comes after the close."""
    answers = [world.ask(CLAIMED_MS), world.ask(CLAIMED_MS)]
    world.replicas.close()
    answers.append(world.ask(CLAIMED_MS))
    world.worker.run_one()
    world.timers.advance(0)
    assert [answer.value.error for answer in answers[:2]] == [ErrorCode.BROKER_NOT_AVAILABLE] * 2
    assert answers[2].value.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not world.worker.held
    assert world.pool.used == 0


def test_batches_that_wait_for_a_closed_searcher_fail() -> None:
    searcher = BatchSearcher(HeldOffload())
    candidate = cast(Candidate, SimpleNamespace(size=1))
    running, waiting = searcher.look(candidate, 1), searcher.look(candidate, 1)
    searcher.close()
    assert not running.done, "the thread ends it"
    for look in (waiting, searcher.look(candidate, 1)):
        with pytest.raises(KafkaError) as refused:
            _ = look.result
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_cancelled_search_leaves_the_queue(world: LyingWorld) -> None:
    """The connection is gone: what it asked for is not looked into any more."""
    first = world.ask(CLAIMED_MS)
    outcome: list[object] = []
    steps = world.replicas.list_offset(KEY, CLAIMED_MS)
    work = world.replicas.fair_slices.begin(steps, outcome.append)
    work.cancel()
    del steps
    world.work(first)
    assert world.worker.done == LYING
    assert not outcome
    assert world.pool.used == 0


def test_what_looking_raised_is_raised_once_and_leaves_no_cycle() -> None:
    with found_by_collector() as found:
        look = Look(cast(Candidate, None), 0)
        look.failure = KafkaError(ErrorCode.CORRUPT_MESSAGE)
        with pytest.raises(KafkaError):
            _ = look.result
        assert look.result is None
        del look
    assert not found
