"""A fetch of very many partitions, read in steps: it answers what one in a single pass does."""

from __future__ import annotations

import gc
from collections.abc import Generator
from random import Random
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.partition import Partition
from kbroker.replication.reads.fetch import FetchReader
from kbroker.replication.reads.fetch_session import FetchContext, FetchSessionCache
from kbroker.replication.reads.fetch_set import FetchPartition, FetchSet
from kbroker.server.network.memory_pool import MemoryPool
from tests.replication.world import World, batch, fetch_request, partitions_of, record_bytes

UNKNOWN = 200
HOSTED = 24
STEP_PARTITIONS = 4


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.replication.reads.fetch.STEP_PARTITIONS", STEP_PARTITIONS)


@pytest.fixture
def few_items_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are as short before and after the reading."""
    monkeypatch.setattr("kbroker.replication.reads.fetch.STEP_ANSWERS", STEP_PARTITIONS)
    monkeypatch.setattr("kbroker.replication.reads.fetch_session.STEP_ITEMS", STEP_PARTITIONS)
    monkeypatch.setattr("kbroker.replication.reads.fetch_set.STEP_ITEMS", STEP_PARTITIONS)


class Steps:
    """A fetch under way. pauses: how often it let the loop have its turn."""

    def __init__(self, world: World, request: FetchRequest) -> None:
        self.steps = world.replicas.fetch_in_steps(
            request, api_version=12, now_ms=world.timers.now_ms()
        )
        self.pauses = 0
        self.response: FetchResponse | None = None

    def run(self) -> Deferred[Any] | None:
        """Up to the answer, or to what it waits for."""
        while self.step():
            if self.waits_for is not None:
                return self.waits_for
        return None

    def step(self) -> bool:
        try:
            self.waits_for = next(self.steps)
        except StopIteration as end:
            self.response = end.value
            return False
        self.pauses += 1
        return True

    @property
    def answer(self) -> FetchResponse:
        assert self.response is not None
        return self.response


def waiting(world: World) -> int:
    return world.replicas._reader._purgatory.waiting


def described(response: FetchResponse) -> dict[int, tuple[int, int, bytes]]:
    return {
        index: (data.error_code, data.high_watermark, record_bytes(data))
        for index, data in partitions_of(response).items()
    }


def test_unknown_partitions_are_looked_up_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []
    reader = world.replicas._reader
    whole = reader._find
    monkeypatch.setattr(reader, "_find", lambda key, i: looked_up.append(i) or whole(key, i))
    fetch = Steps(world, fetch_request({index: 0 for index in range(UNKNOWN)}))
    before = 0
    while fetch.step():
        assert len(looked_up) - before <= STEP_PARTITIONS
        before = len(looked_up)
    assert len(looked_up) == UNKNOWN
    codes = [data.error_code for data in partitions_of(fetch.answer).values()]
    assert codes[10:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (UNKNOWN - 10)


@pytest.mark.parametrize("max_bytes", [0, 1000, 1 << 20])
def test_the_answer_is_that_of_a_single_pass(world: World, max_bytes: int) -> None:
    """The limits too: they hold for all steps together."""
    for index in range(1, HOSTED):
        world.host(index)
    for index in range(0, HOSTED, 3):
        world.append(index, batch(2))
    request = fetch_request({index: 0 for index in range(HOSTED + 50)}, max_bytes=max_bytes)
    fetch = Steps(world, request)
    assert fetch.run() is None
    assert not world.host()._watchers
    assert fetch.pauses > HOSTED // STEP_PARTITIONS
    whole = world.fetch_now(request)
    assert described(fetch.answer) == described(whole)
    assert any(data.records for data in partitions_of(whole).values())


def test_it_waits_and_reads_what_came(world: World) -> None:
    request = fetch_request({0: 0, 7: 0}, max_wait_ms=500)
    fetch = Steps(world, request)
    waits_for = fetch.run()
    assert waits_for is not None
    world.timers.advance(100)
    assert not waits_for.done
    made = batch(3)
    world.append(batches=made)
    world.timers.advance(0)
    assert waits_for.done
    assert fetch.run() is None
    data = partitions_of(fetch.answer)
    assert record_bytes(data[0]) == bytes(made)
    assert data[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert waiting(world) == 0


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_records_appended_behind_the_reader_end_the_wait(
    world: World, session: tuple[int, int]
) -> None:
    asked = {index: 0 for index in range(UNKNOWN)}
    fetch = Steps(world, fetch_request(asked, max_wait_ms=500, session=session))
    for _ in range(3):
        assert fetch.step()
    world.append(batches=batch(3))
    assert fetch.run() is not None
    world.timers.advance(0)
    assert fetch.run() is None
    assert partitions_of(fetch.answer)[0].records
    assert waiting(world) == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 10])
def test_one_that_ends_while_it_reads_leaves_nothing_behind(world: World, steps: int) -> None:
    fetch = Steps(world, fetch_request({index: 0 for index in range(UNKNOWN)}))
    for _ in range(steps):
        assert fetch.step()
    fetch.steps.close()
    assert not world.host()._watchers


def test_one_that_ends_while_it_waits_leaves_nothing_behind(world: World) -> None:
    fetch = Steps(world, fetch_request({0: 0}, max_wait_ms=500))
    assert fetch.run() is not None
    assert waiting(world) == 1
    fetch.steps.close()
    assert waiting(world) == 0
    partition = world.host()
    assert not partition._watchers


def test_a_session_goes_on(world: World) -> None:
    first = Steps(world, fetch_request({0: 0, 5: 0}, session=(0, 0)))
    assert first.run() is None
    session_id = first.answer.session_id
    world.append(batches=batch(3))
    following = world.fetch_now(fetch_request({}, session=(session_id, 1)))
    assert len(record_bytes(partitions_of(following)[0])) > 0


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_another_request_takes_the_session_over(world: World, steps: int) -> None:
    """The one that is under way answers what it has found, and does not wait."""
    for index in range(1, HOSTED):
        world.host(index)
    asked = {index: 0 for index in range(HOSTED)}
    opened = world.fetch_now(fetch_request(asked, session=(0, 0)))
    session_id = opened.session_id
    old = Steps(world, fetch_request(asked, session=(session_id, 1), max_wait_ms=500))
    for _ in range(steps):
        assert old.step()
    following = fetch_request({}, session=(session_id, 2), max_wait_ms=500)
    world.fetch(following)
    assert old.run() is None
    assert waiting(world) == 1
    world.timers.advance(500)
    assert waiting(world) == 0


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_session_ends_meanwhile(world: World, steps: int) -> None:
    for index in range(1, HOSTED):
        world.host(index)
    asked = {index: 0 for index in range(HOSTED)}
    session_id = world.fetch_now(fetch_request(asked, session=(0, 0))).session_id
    old = Steps(world, fetch_request(asked, session=(session_id, 1), max_wait_ms=500))
    for _ in range(steps):
        assert old.step()
    world.fetch_now(fetch_request({0: 0}, session=(session_id, -1)))
    assert old.run() is None
    assert all(not world.host(index)._watchers for index in range(3))


def wide_request(
    topics: int, partitions: int, *, session: tuple[int, int] = (0, -1)
) -> FetchRequest:
    """So many topics of so many partitions each, and as many topics without partitions."""
    request = fetch_request({}, session=session)
    for number in range(topics):
        name = f"topic-{number}"
        named = fetch_request({index: number for index in range(partitions)}, topic=name)
        request.topics += [*named.topics, FetchRequest.FetchTopic(topic=f"empty-{number}")]
    return request


def most_per_step(steps: Generator[Any, None, Any], done: list[object]) -> int:
    """How much was done in one step at most, counted by what is added to done."""
    most, before = 0, len(done)
    is_over = False
    while not is_over:
        try:
            next(steps)
        except StopIteration:
            is_over = True
        most = max(most, len(done) - before)
        before = len(done)
    return most


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize(("topics", "partitions"), [(1, 200), (200, 1), (10, 30)])
@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_partitions_are_added_answered_and_freed_in_steps(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    topics: int,
    partitions: int,
    session: tuple[int, int],
) -> None:
    added: list[object] = []
    answered: list[object] = []
    freed: list[object] = []
    respond, init = FetchReader._respond, FetchPartition.__init__

    def counted_init(self: FetchPartition, *args: Any) -> None:
        added.append(1)
        init(self, *args)

    def counted_respond(self: FetchReader, context: FetchContext, progress: Any) -> FetchResponse:
        answered.extend(progress.outgoing.values())
        return respond(self, context, progress)

    monkeypatch.setattr(FetchPartition, "__init__", counted_init)
    monkeypatch.setattr(FetchReader, "_respond", counted_respond)
    # Failed partitions are unwatched as they are read; those of a set without session once more.
    monkeypatch.setattr(FetchPartition, "unwatch", lambda self: freed.append(1))
    for done in (added, answered, freed):
        request = wide_request(topics, partitions, session=session)
        steps = world.replicas.fetch_in_steps(request, api_version=12, now_ms=0)
        assert most_per_step(steps, done) <= STEP_PARTITIONS
    count = topics * partitions
    assert len(added) == len(answered) == 3 * count
    assert len(freed) == 3 * count * (1 if session == (0, 0) else 2)


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_topics_cut_by_steps_are_whole_in_the_response(
    world: World, session: tuple[int, int]
) -> None:
    request = wide_request(7, 9, session=session)
    fetch = Steps(world, request)
    assert fetch.run() is None
    single = world.fetch_now(request)
    assert fetch.answer.responses == single.responses
    assert bool(fetch.answer.session_id) == bool(single.session_id) == (session == (0, 0))


def finished(steps: Generator[None, None, FetchContext]) -> FetchContext:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: FetchContext = end.value
            return found


def content(fetch_set: FetchSet) -> list[object]:
    found = [(each.topic, each.index, each.fetch_offset, each.dirty) for each in fetch_set]
    return [found, [each.index for each in fetch_set.dirty], fetch_set.held_bytes]


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize("seed", range(20))
def test_sessions_are_those_of_a_single_pass(seed: int) -> None:
    """Requests of every kind, in one cache in steps and in the other at once."""
    random = Random(seed)
    limit = random.choice([1 << 20, 1 << 24])
    memories = MemoryPool(limit), MemoryPool(limit)
    caches = [FetchSessionCache(2, Random(1), memory) for memory in memories]
    opened: list[list[int]] = []
    for now_ms in range(0, 600_000, 20_000):
        session = [0, random.choice([-1, 0])]
        if opened and random.random() < 0.7:
            session = random.choice(opened)
            if random.random() < 0.1:
                session = [session[0], random.choice([-1, 0, 77])]
        request = fetch_request(
            {random.randrange(40): now_ms for _ in range(random.choice([0, 1, 30, 300]))},
            session=(session[0], session[1]),
            forgotten=random.sample(range(40), random.choice([0, 3, 40])),
        )
        request.topics += wide_request(random.choice([0, 2, 12]), 5).topics
        whole = caches[0].context(request, by_id=False, replica_id=-1, now_ms=now_ms)
        steps = caches[1].context_in_steps(request, by_id=False, replica_id=-1, now_ms=now_ms)
        found = finished(steps)
        assert (found.error, found.full, found.session_id) == (
            whole.error,
            whole.full,
            whole.session_id,
        )
        assert content(found.fetch_set) == content(whole.fetch_set)
        assert memories[0].kept == memories[1].kept
        assert caches[0].evictions == caches[1].evictions
        if found.session_id and found.full:
            opened.append([found.session_id, 1])
        elif not found.error:
            session[1] += 1
    assert opened


def changing(
    cache: FetchSessionCache, opened: FetchContext, epoch: int = 1
) -> Generator[None, None, FetchContext]:
    request = fetch_request(
        dict.fromkeys(range(50, 150), 0), session=(opened.session_id, epoch), forgotten=range(20)
    )
    return cache.context_in_steps(request, by_id=False, replica_id=-1, now_ms=0)


def opened_in(cache: FetchSessionCache) -> FetchContext:
    request = fetch_request(dict.fromkeys(range(50), 0), session=(0, 0))
    return cache.context(request, by_id=False, replica_id=-1, now_ms=0)


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize("steps", [1, 5, 28])
def test_changes_end_when_another_request_takes_the_session_over(steps: int) -> None:
    memory = MemoryPool()
    cache = FetchSessionCache(10, Random(1), memory)
    opened = opened_in(cache)
    changes = changing(cache, opened)
    for _ in range(steps):
        next(changes)
    following = fetch_request({0: 5}, session=(opened.session_id, 2))
    found = cache.context(following, by_id=False, replica_id=-1, now_ms=0)
    assert found.fetch_set is opened.fetch_set
    assert finished(changes).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert memory.kept == opened.fetch_set.held_bytes


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize("steps", [1, 5, 28])
def test_changes_end_with_their_session(steps: int) -> None:
    memory = MemoryPool()
    cache = FetchSessionCache(10, Random(1), memory)
    opened = opened_in(cache)
    changes = changing(cache, opened)
    for _ in range(steps):
        next(changes)
    cache.remove(opened.session_id)
    assert finished(changes).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (memory.kept, opened.fetch_set.size and len(opened.fetch_set.dirty)) == (0, 0)


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize("steps", [1, 5, 28])
def test_changes_of_a_lost_connection_are_accounted_for(steps: int) -> None:
    memory = MemoryPool()
    cache = FetchSessionCache(10, Random(1), memory)
    opened = opened_in(cache)
    changes = changing(cache, opened)
    for _ in range(steps):
        next(changes)
    changes.close()
    assert memory.kept == opened.fetch_set.held_bytes
    cache.close()
    assert memory.kept == 0


@pytest.mark.usefixtures("few_items_each")
def test_a_slot_that_is_taken_meanwhile_is_answered_without_a_session() -> None:
    cache = FetchSessionCache(1, Random(1))
    request = fetch_request(dict.fromkeys(range(50), 0), session=(0, 0))
    steps = cache.context_in_steps(request, by_id=False, replica_id=-1, now_ms=0)
    next(steps)
    other = opened_in(cache)
    found = finished(steps)
    assert (found.error, found.full, found.session_id) == (ErrorCode.NONE, True, 0)
    assert not found.fetch_set.lasts
    assert found.fetch_set.size == 50
    assert cache.get(other.session_id) is other.fetch_set


@pytest.mark.usefixtures("few_items_each")
@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_wherever_a_fetch_ends_nothing_is_left(world: World, session: tuple[int, int]) -> None:
    """Neither watchers nor reference cycles, which the collector may have frozen."""
    asked = {index: 0 for index in range(40)}
    for index in range(1, HOSTED):
        world.host(index)

    def watched() -> list[Partition]:
        return [found for found in world.replicas.partitions() if found._watchers]

    gc.collect()
    gc.disable()
    try:
        steps, is_over = 0, False
        while not is_over:
            fetch = Steps(world, fetch_request(asked, session=session))
            is_over = not all(fetch.step() for _ in range(steps))
            fetch.steps.close()
            world.replicas.sessions.close()
            assert not watched()
            del fetch
            # all that was made since the collector was switched off is in its first generation
            young = gc.get_objects(generation=0)
            left = [found for found in young if isinstance(found, FetchPartition)]
            del young
            assert left == []
            steps += 1
    finally:
        gc.enable()
    assert steps > 2 * 40 // STEP_PARTITIONS
