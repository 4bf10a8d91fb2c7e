"""The life of a Fetch answer for a client before 0.11: what it is charged for, and that it ends
with its connection. What it is converted to is tested in handlers/test_fetch and
test_legacy_records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread, get_ident

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.batches.any_magic import iter_any_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.reads.fetch import ANSWER_BYTES
from kbroker.server.down_conversion import COPIES, share_of
from kbroker.server.network.memory_pool import MemoryPool
from tests.replication.world import World, batch, fetch_request, partitions_of
from tests.server.handlers.records.test_fetch import conversion_of
from tests.sim.offload import HeldOffload

LIMIT = 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=3)
    yield made
    made.close()


class LoopPool(MemoryPool):
    """An account that notes every change by another thread than the one that made it."""

    def __init__(self) -> None:
        super().__init__(LIMIT)
        self.thread = get_ident()
        self.foreign: list[str] = []

    def charge(self, count: int) -> None:
        self._note("charge")
        super().charge(count)

    def release(self, count: int) -> None:
        self._note("release")
        super().release(count)

    def _note(self, what: str) -> None:
        if get_ident() != self.thread:
            self.foreign.append(what)


def test_the_worker_may_be_the_last_to_hold_what_it_made(world: World) -> None:
    """A thread pool keeps the work for a moment after its result has reached the loop."""
    world.append()
    memory = LoopPool()
    worked, may_drop = Event(), Event()
    threads: list[Thread] = []

    def offload(work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        box = [work]
        del work

        def run() -> None:
            held = box.pop()
            held()
            worked.set()
            may_drop.wait(60)
            del held

        threads.append(Thread(target=run))
        threads[0].start()
        assert worked.wait(60)
        then(None)

    request = fetch_request({0: 0})
    outcome = conversion_of(world, request, offload, memory).follow(world.fetch_now(request))
    records = partitions_of(outcome.value)[0].records
    assert records
    world.timers.advance(0)
    del outcome, records
    may_drop.set()
    threads[0].join()
    assert memory.foreign == []
    assert memory.used == 0


def test_an_answer_is_charged_until_the_connection_does(world: World) -> None:
    world.append()
    memory, worker = MemoryPool(LIMIT), HeldOffload()
    request = fetch_request({0: 0})
    stored = world.fetch_now(request)
    source_bytes = partitions_of(stored)[0].records.size  # type: ignore[union-attr]  # a file range
    memory.charge(memory.limit)
    outcome = conversion_of(world, request, worker, memory).follow(stored)
    assert not worker.held, "it waits for its turn"
    assert memory.used == memory.limit + ANSWER_BYTES
    memory.release(memory.limit)
    assert memory.used == ANSWER_BYTES + COPIES * source_bytes
    worker.run()
    records = partitions_of(outcome.value)[0].records
    assert memory.used == ANSWER_BYTES + len(records) > ANSWER_BYTES  # type: ignore[arg-type]  # bytes
    world.timers.advance(0)
    assert memory.used == 0


def waiting_for_records(
    world: World, memory: MemoryPool, worker: HeldOffload
) -> Deferred[FetchResponse]:
    request = fetch_request({0: 0, 1: 0}, max_wait_ms=2**31 - 1)
    outcome = world.fetch(request)
    assert isinstance(outcome, Deferred)
    assert world.replicas.purgatory.waiting == 1
    return conversion_of(world, request, worker, memory).follow(outcome)


def waiting_for_memory(
    world: World, memory: MemoryPool, worker: HeldOffload
) -> Deferred[FetchResponse]:
    world.append()
    memory.charge(memory.limit)
    request = fetch_request({0: 0})
    waiting = conversion_of(world, request, worker, memory).follow(world.fetch_now(request))
    assert memory.waiting == 1
    return waiting


def in_the_worker(world: World, memory: MemoryPool, worker: HeldOffload) -> Deferred[FetchResponse]:
    for index in range(3):
        world.append(index)
    request = fetch_request({0: 0, 1: 0, 2: 0})
    waiting = conversion_of(world, request, worker, memory).follow(world.fetch_now(request))
    assert len(worker.held) == 1
    return waiting


@pytest.mark.parametrize("stage", [waiting_for_records, waiting_for_memory, in_the_worker])
def test_whatever_an_answer_waits_for_ends_with_its_connection(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    stage: Callable[[World, MemoryPool, HeldOffload], Deferred[FetchResponse]],
) -> None:
    converted: list[object] = []
    monkeypatch.setattr(
        "kbroker.server.down_conversion.down_convert",
        lambda stored, **_: converted.append(stored) or b"",
    )
    memory, worker = MemoryPool(LIMIT), HeldOffload()
    waiting = stage(world, memory, worker)
    resolved: list[FetchResponse] = []
    waiting.on_done(resolved.append)
    waiting.cancel()
    waiting.cancel()
    assert world.replicas.purgatory.waiting == 0
    assert memory.waiting == 0
    world.append()
    world.timers.advance(1000)
    if stage is waiting_for_memory:
        memory.release(memory.limit)
    if worker.held:
        assert memory.used > 0, "the worker still holds file ranges, and may be converting"
    worker.run()
    assert memory.used == 0
    assert not resolved
    assert not waiting.done
    assert not converted, "no further partition is converted"


def test_one_answer_converts_no_more_than_its_share(world: World) -> None:
    """Small batches may unpack to far more than they take on disk."""
    memory, worker = MemoryPool(LIMIT), HeldOffload()
    share = share_of(memory)
    sizes = []
    for index in range(3):
        for _ in range(4):
            stored = batch(1, size=share // 2, compression=Compression.GZIP)
            sizes.append(len(stored))
            world.append(index, stored)
    assert sum(sizes) < share, "all of them would be read at once"
    request = fetch_request({0: 0, 1: 0, 2: 0})
    outcome = conversion_of(world, request, worker, memory).follow(world.fetch_now(request))
    worker.run()
    found = partitions_of(outcome.value)
    assert found[0].records, "the first batches"
    assert len(found[0].records) < sum(sizes[:4])  # type: ignore[arg-type]  # bytes
    assert [found[index].records for index in (1, 2)] == [b"", b""], "left for the next request"
    assert {data.error_code for data in found.values()} == {0}
    assert not worker.held, "they are not taken for stretches without records"
    offset = requests = 0
    while offset < 4:
        requests += 1
        request = fetch_request({0: offset})
        outcome = conversion_of(world, request, worker, memory).follow(world.fetch_now(request))
        worker.run()
        for _, header in iter_any_batches(partitions_of(outcome.value)[0].records):  # type: ignore[arg-type]  # bytes
            offset = header.next_offset
    assert requests == 2, "a reader that goes on gets everything"


def wide(world: World, partitions: int) -> tuple[FetchRequest, FetchResponse]:
    """A Fetch of so many partitions, of which the first has records."""
    request = fetch_request({0: 0})
    stored = world.fetch_now(request)
    stored.responses[0].partitions += [
        FetchResponse.PartitionData(partition_index=index, records=b"")
        for index in range(1, partitions)
    ]
    return request, stored


def test_answers_that_wait_do_not_wait_for_each_other(world: World) -> None:
    """What is charged for those that wait is no reason to wait."""
    world.append()
    memory, worker = MemoryPool(LIMIT), HeldOffload()
    memory.charge(memory.answer_limit + 1)
    count = memory.answer_limit // (100 * ANSWER_BYTES)
    outcomes = []
    for _ in range(count + 3):
        request, stored = wide(world, 100)
        outcomes.append(conversion_of(world, request, worker, memory).follow(stored))
    assert memory.waiting == count
    assert [outcome.done for outcome in outcomes] == [False] * count + [True] * 3
    assert not partitions_of(outcomes[-1].value)[0].records, "the client asks again"
    assert memory.parked_answers == count * 100 * ANSWER_BYTES
    memory.release(memory.answer_limit + 1)
    while worker.held:
        worker.run()
        world.timers.advance(0)
    assert all(outcome.done for outcome in outcomes)
    assert partitions_of(outcomes[0].value)[0].records
    assert (memory.used, memory.parked_answers, memory.waiting) == (0, 0, 0)


def test_an_answer_larger_than_what_may_wait_is_converted_where_memory_is_not_short(
    world: World,
) -> None:
    world.append()
    memory, worker = MemoryPool(LIMIT), HeldOffload()
    request, stored = wide(world, 2 * memory.answer_limit // ANSWER_BYTES)
    outcome = conversion_of(world, request, worker, memory).follow(stored)
    worker.run()
    assert partitions_of(outcome.value)[0].records
    world.timers.advance(0)
    assert memory.used == 0


def test_a_wide_answer_is_looked_through_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.server.down_conversion.STEP_ITEMS", 4)
    world.append()
    memory, worker = MemoryPool(LIMIT), HeldOffload()
    request, stored = wide(world, 100)
    request.topics += [FetchRequest.FetchTopic(topic=f"empty-{number}") for number in range(100)]
    steps = conversion_of(world, request, worker, memory).follow_in_steps(stored)
    pauses = 0
    while (waits_for := next(steps)) is None:
        pauses += 1
    assert pauses >= (100 + 100) // 4
    assert not waits_for.done
    worker.run()
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value is stored
    assert isinstance(stored.responses[0].partitions[0].records, bytes)
    world.timers.advance(0)
    assert memory.used == 0
