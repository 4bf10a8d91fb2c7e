"""Sessions: epochs, what an incremental response leaves out, eviction, and a model of the whole."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.reads.fetch_session import (
    MIN_EVICTION_MS,
    FetchContext,
    FetchSessionCache,
    next_epoch,
)
from kbroker.replication.reads.fetch_set import (
    PARTITION_BYTES,
    STEP_ITEMS,
    TOPIC_BYTES,
    FetchPartition,
)
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.settings.views.network import NetworkConfig
from tests.replication.world import TOPIC_ID, World, batch, fetch_request, partitions_of, records_of

SMALL_POOL = (1 << 20) // 3


def opened(world: World, offsets: dict[int, int], **options: object) -> int:
    """A session over these partitions; its id."""
    response = world.fetch_now(fetch_request(offsets, session=(0, 0), **options))  # type: ignore[arg-type]  # keywords of the callee
    assert set(partitions_of(response)) == set(offsets)
    assert response.session_id
    return response.session_id


def poll(world: World, session_id: int, epoch: int, **options: object) -> FetchResponse:
    request = fetch_request(options.pop("offsets", {}), session=(session_id, epoch), **options)  # type: ignore[arg-type]  # keywords of the callee
    return world.fetch_now(request)


def test_epochs_go_round_past_0() -> None:
    assert next_epoch(1) == 2
    assert next_epoch(0x7FFF_FFFF) == 1


def test_an_incremental_response_has_only_what_changed(world: World) -> None:
    session_id = opened(world, {0: 0, 1: 0, 2: 0})
    assert partitions_of(poll(world, session_id, 1)) == {}
    world.append(1)
    changed = partitions_of(poll(world, session_id, 2))
    assert list(changed) == [1]
    assert len(records_of(changed[1])) == 1
    again = partitions_of(poll(world, session_id, 3))
    assert list(again) == [1], "the client did not move on: the same records again"
    assert partitions_of(poll(world, session_id, 4, offsets={1: 1})) == {}
    assert partitions_of(poll(world, session_id, 5)) == {}


def test_an_idle_session_looks_at_nothing(world: World) -> None:
    session_id = opened(world, {0: 0, 1: 0, 2: 0})
    session = world.replicas.sessions.get(session_id)
    assert session is not None
    assert not session.dirty
    world.append(2)
    assert [partition.index for partition in session.dirty] == [2]


def test_a_session_waits_and_is_woken(world: World) -> None:
    session_id = opened(world, {0: 0, 1: 0})
    waits = world.fetch(fetch_request({}, session=(session_id, 1), max_wait_ms=500))
    assert isinstance(waits, Deferred)
    world.append(1)
    world.timers.advance(0)
    assert list(partitions_of(waits.value)) == [1]
    idle = world.fetch(fetch_request({1: 1}, session=(session_id, 2), max_wait_ms=500))
    assert isinstance(idle, Deferred)
    world.timers.advance(500)
    assert idle.value.responses == []
    assert idle.value.session_id == session_id


def test_partitions_are_added_and_forgotten(world: World) -> None:
    session_id = opened(world, {0: 0})
    added = poll(world, session_id, 1, offsets={1: 0}, forgotten=[0])
    assert list(partitions_of(added)) == [1]
    world.append(0)
    assert partitions_of(poll(world, session_id, 2)) == {}
    assert [partition.watcher_count for partition in world.replicas.partitions()] == [0, 1, 0]


def test_a_session_without_partitions_ends(world: World) -> None:
    session_id = opened(world, {0: 0})
    last = poll(world, session_id, 1, forgotten=[0])
    assert (last.error_code, last.session_id, last.responses) == (0, 0, [])
    gone = poll(world, session_id, 2)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_no_session_for_no_partitions(world: World) -> None:
    response = world.fetch_now(fetch_request({}, session=(0, 0)))
    assert response.session_id == 0


@pytest.mark.parametrize(
    ("id_shift", "epoch", "version", "error"),
    [
        pytest.param(1, 1, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, id="unknown id"),
        pytest.param(0, 2, 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH, id="epoch ahead"),
        pytest.param(0, 7, 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH, id="epoch far off"),
        pytest.param(0, 1, 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, id="names, then ids"),
        pytest.param(0, 1, 12, ErrorCode.NONE, id="right"),
    ],
)
def test_errors_of_a_session(
    world: World, id_shift: int, epoch: int, version: int, error: ErrorCode
) -> None:
    session_id = opened(world, {0: 0})
    response = world.fetch_now(
        fetch_request({}, session=(session_id + id_shift, epoch)), version=version
    )
    assert response.error_code == error
    if error:
        assert response.session_id == 0
        assert response.responses == []


def test_an_epoch_used_twice_is_refused_and_the_session_lives(world: World) -> None:
    session_id = opened(world, {0: 0})
    assert poll(world, session_id, 1).error_code == 0
    assert poll(world, session_id, 1).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert poll(world, session_id, 2).error_code == 0


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_request_closes_the_old_session(world: World, epoch: int) -> None:
    session_id = opened(world, {0: 0})
    response = poll(world, session_id, epoch, offsets={1: 0})
    assert response.error_code == 0
    assert (response.session_id == 0) == (epoch == -1)
    assert response.session_id != session_id
    assert poll(world, session_id, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert [p.watcher_count for p in world.replicas.partitions()] == [0, 1 if epoch == 0 else 0, 0]


def test_an_error_is_reported_every_time_and_its_end_too(world: World) -> None:
    session_id = opened(world, {0: 0, 9: 0})
    for epoch in (1, 2):
        again = partitions_of(poll(world, session_id, epoch))
        assert {i: data.error_code for i, data in again.items()} == {9: 3}
    world.host(9)
    found = partitions_of(poll(world, session_id, 3))
    assert {i: data.error_code for i, data in found.items()} == {9: 0}
    assert partitions_of(poll(world, session_id, 4)) == {}


def test_a_topic_made_anew_is_another_topic(world: World) -> None:
    request = fetch_request({0: 0}, topic_id=TOPIC_ID, session=(0, 0))
    session_id = world.fetch_now(request, version=13).session_id
    for index in range(3):
        world.remove(index)
    world.host(0, topic_id=b"n" * 16)
    response = world.fetch_now(fetch_request({}, session=(session_id, 1)), version=13)
    assert partitions_of(response)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_moved_log_start_is_reported_once(world: World) -> None:
    world.append(batches=batch(5))
    session_id = opened(world, {0: 5, 1: 0})
    partition = next(iter(world.replicas.partitions()))
    assert world.replicas.delete_records(partition.topic_partition, 3) == 3
    told = partitions_of(poll(world, session_id, 1))
    assert told[0].log_start_offset == 3
    assert partitions_of(poll(world, session_id, 2)) == {}
    world.replicas.delete_records(partition.topic_partition, 5)
    assert partitions_of(poll(world, session_id, 3))[0].log_start_offset == 5


def test_what_came_with_a_diverging_epoch_is_told_again(world: World) -> None:
    """A follower does not apply it, and read at the end it had nothing else to be told: its high
    watermark stayed behind until the next record.
    """
    world.append(0, batches=batch(3))
    world.host(0, epoch=4, partition_epoch=1)
    response = world.fetch_now(fetch_request({0: 3}, last_fetched_epoch=1, session=(0, 0)))
    diverged = partitions_of(response)[0]
    assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (0, 3)
    request = fetch_request({0: 3}, last_fetched_epoch=0, session=(response.session_id, 1))
    told = partitions_of(world.fetch_now(request))[0]
    assert (told.diverging_epoch.epoch, told.high_watermark) == (-1, diverged.high_watermark)
    assert partitions_of(poll(world, response.session_id, 2)) == {}


def test_small_responses_starve_no_partition(world: World) -> None:
    for index in range(3):
        for _ in range(4):
            world.append(index, batch(1, size=500))
    session_id = opened(world, {0: 0, 1: 0, 2: 0}, max_bytes=1)
    seen = []
    for epoch in range(1, 7):
        seen += list(partitions_of(poll(world, session_id, epoch, max_bytes=1)))
    assert sorted(set(seen)) == [0, 1, 2]
    assert seen[:3] == [1, 2, 0]


def context(
    cache: FetchSessionCache, count: int, now_ms: int, *, replica_id: int = -1
) -> FetchContext:
    request = fetch_request(dict.fromkeys(range(count), 0), session=(0, 0))
    return cache.context(request, by_id=False, replica_id=replica_id, now_ms=now_ms)


def test_a_full_cache_refuses_while_its_sessions_are_young() -> None:
    cache = FetchSessionCache(2, Random(1))
    first, second = context(cache, 1, 0), context(cache, 2, 1)
    assert first.session_id
    assert second.session_id
    assert context(cache, 9, MIN_EVICTION_MS).session_id == 0
    stale_gone = context(cache, 1, MIN_EVICTION_MS + 1)
    assert stale_gone.session_id
    assert cache.get(first.session_id) is None
    assert cache.evictions == 1


def test_a_larger_session_pushes_out_an_old_smaller_one_in_use() -> None:
    cache = FetchSessionCache(2, Random(1))
    small, large = context(cache, 1, 0), context(cache, 5, 0)
    now_ms = 2 * MIN_EVICTION_MS
    for used in (small, large):
        request = fetch_request({}, session=(used.session_id, 1))
        cache.context(request, by_id=False, replica_id=-1, now_ms=now_ms)
    assert context(cache, 1, now_ms).session_id == 0
    assert context(cache, 2, now_ms).session_id
    assert cache.get(small.session_id) is None
    assert cache.get(large.session_id) is not None


def test_a_follower_pushes_out_young_clients_but_no_client_a_follower() -> None:
    cache = FetchSessionCache(1, Random(1))
    client = context(cache, 50, 0)
    follower = context(cache, 1, 1, replica_id=2)
    assert follower.session_id
    assert cache.get(client.session_id) is None
    assert context(cache, 50, 2).session_id == 0
    assert context(cache, 50, 3, replica_id=3).session_id == 0


def test_no_slots_no_sessions(make_world: Callable[..., World]) -> None:
    world = make_world(max_incremental_fetch_session_cache_slots="0")
    assert world.fetch_now(fetch_request({0: 0}, session=(0, 0))).session_id == 0
    assert all(partition.watcher_count == 0 for partition in world.replicas.partitions())


def test_a_session_beyond_the_share_of_memory_is_not_made() -> None:
    memory = MemoryPool(SMALL_POOL)
    cache = FetchSessionCache(1000, Random(1), memory)
    fits = (memory.lent_limit - TOPIC_BYTES - 100) // PARTITION_BYTES
    too_large = context(cache, fits + 1, 0)
    assert too_large.session_id == 0
    assert too_large.fetch_set.size == fits + 1, "it is answered all the same"
    assert not cache
    assert memory.kept == 0
    assert context(cache, fits, 0).session_id
    assert memory.kept > 0.9 * memory.lent_limit
    assert context(cache, fits // 2, 0).session_id == 0


def test_a_hundred_sessions_of_a_thousand_partitions_are_made_until_memory_pressure() -> None:
    memory = MemoryPool(NetworkConfig().pool_bytes)
    cache = FetchSessionCache(1000, Random(1), memory)
    memory.on_pressure = cache.give_back_memory
    ids = [context(cache, 1000, now_ms).session_id for now_ms in range(100)]
    assert all(ids)
    assert memory.overdrawn
    memory.charge(memory.answer_limit)
    memory.wait(memory.largest_request, lambda: None)
    assert memory.waiting == 0
    assert memory.overdrawn == 0
    left = [session_id for session_id in ids if cache.get(session_id) is not None]
    assert 10 < len(left) < 60
    assert left == ids[-len(left) :], "the stalest went"


def test_a_large_session_is_closed_in_steps() -> None:
    """100,000 partitions took 50 ms in the turn of the request that evicted them."""
    closing: list[Iterator[None]] = []
    memory = MemoryPool(1 << 30)
    cache = FetchSessionCache(1, Random(1), memory, close=closing.append)
    evicted = context(cache, 10 * STEP_ITEMS, 0).fetch_set
    assert context(cache, 1, MIN_EVICTION_MS + 1).session_id
    assert memory.kept < 2 * (PARTITION_BYTES + TOPIC_BYTES)
    (steps,) = closing
    assert sum(1 for _ in steps) >= 10
    assert evicted.closed
    assert not evicted.partitions
    assert not evicted.dirty


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_session_that_is_closed_in_steps_is_watched_by_nothing_at_the_end(
    world: World, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the steps are abandoned midway, and if a fetch waits on the session."""
    monkeypatch.setattr("kbroker.replication.reads.fetch_set.STEP_ITEMS", 1)
    session_id = opened(world, {0: 0, 1: 0, 2: 0})
    waits = world.fetch(fetch_request({}, session=(session_id, 1), max_wait_ms=500))
    session = world.replicas.sessions.get(session_id)
    assert session is not None
    assert isinstance(waits, Deferred)
    steps = session.close_in_steps()
    for _ in range(taken):
        next(steps)
    del steps
    world.timers.advance(0)
    assert waits.done
    assert [partition.watcher_count for partition in world.replicas.partitions()] == [0, 0, 0]


def test_a_refused_session_leaves_no_cycle() -> None:
    """Nothing waits for the garbage collector, which may have frozen it (`node.run`)."""
    memory = MemoryPool(1 << 20)
    cache = FetchSessionCache(1000, Random(1), memory)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(found, FetchPartition) for found in gc.get_objects())
        refused = context(cache, 5000, 0)
        assert refused.session_id == 0
        refused.fetch_set.clear()  # as once it is answered
        grown_id = context(cache, 100, 0).session_id
        grown = fetch_request(dict.fromkeys(range(100, 5000), 0), session=(grown_id, 1))
        assert cache.context(grown, by_id=False, replica_id=-1, now_ms=1).error
        del refused
        after = sum(isinstance(found, FetchPartition) for found in gc.get_objects())
    finally:
        gc.enable()
    assert after == before


def test_memory_taken_by_sessions_comes_back() -> None:
    memory = MemoryPool(1 << 20)
    cache = FetchSessionCache(1000, Random(1), memory)
    first, second = context(cache, 50, 0), context(cache, 70, 0)
    both = memory.kept
    assert both == sum(found.fetch_set.held_bytes for found in (first, second))
    cache.remove(first.session_id)
    assert memory.kept == second.fetch_set.held_bytes
    request = fetch_request({}, session=(second.session_id, 1), forgotten=range(65))
    cache.context(request, by_id=False, replica_id=-1, now_ms=1)
    assert memory.kept == second.fetch_set.held_bytes < both / 5
    cache.close()
    assert memory.kept == memory.used == 0


def test_a_session_that_grows_beyond_memory_ends_and_the_client_begins_anew() -> None:
    memory = MemoryPool(SMALL_POOL)
    cache = FetchSessionCache(1000, Random(1), memory)
    session_id = context(cache, 100, 0).session_id
    grown = fetch_request(dict.fromkeys(range(100, 400), 0), session=(session_id, 1))
    found = cache.context(grown, by_id=False, replica_id=-1, now_ms=1)
    assert found.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.get(session_id) is None
    assert memory.kept == 0


def test_memory_of_unused_sessions_goes_to_new_ones() -> None:
    memory = MemoryPool(SMALL_POOL)
    cache = FetchSessionCache(1000, Random(1), memory)
    stale, used = context(cache, 100, 0), context(cache, 100, 0)
    assert context(cache, 150, MIN_EVICTION_MS).session_id == 0, "both are young"
    request = fetch_request({}, session=(used.session_id, 1))
    cache.context(request, by_id=False, replica_id=-1, now_ms=MIN_EVICTION_MS)
    assert context(cache, 150, MIN_EVICTION_MS + 1).session_id
    assert cache.get(stale.session_id) is None
    assert cache.get(used.session_id) is not None
    assert context(cache, 150, MIN_EVICTION_MS + 2).session_id == 0, "no larger one wins here"
    assert context(cache, 200, MIN_EVICTION_MS + 2, replica_id=2).session_id, "a follower does"


EVENT = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3)),
    st.tuples(st.just("poll"), st.just(0)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.integers(0, 3)),
)


@settings(max_examples=25)
@given(st.lists(EVENT, max_size=30))
def test_a_session_tells_what_full_fetches_tell(events: list[tuple[str, int]]) -> None:
    """A client that keeps what a session told it knows what a full fetch would say."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), partitions=4)
        try:
            _run_model(world, events)
        finally:
            world.close()


def _run_model(world: World, events: list[tuple[str, int]]) -> None:
    position = dict.fromkeys(range(4), 0)
    known: dict[int, tuple[int, int, int]] = {}
    epochs = dict.fromkeys(range(4), 0)
    session_id = opened(world, dict(position))
    epoch = 1
    updates: dict[int, int] = {}
    known = dict.fromkeys(position, (0, 0, 0))

    def take(response: FetchResponse) -> None:
        for index, data in partitions_of(response).items():
            known[index] = (data.error_code, data.high_watermark, data.log_start_offset)
            read = [r.offset for r in records_of(data) if r.offset >= position[index]]
            if read:
                assert read[0] == position[index]
                position[index] = updates[index] = read[-1] + 1
            elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                partition = world.replicas.find("events", index)
                assert not isinstance(partition, ErrorCode)
                position[index] = updates[index] = partition.log.log_start_offset

    for what, index in [*events, ("poll", 0), ("poll", 0), ("poll", 0), ("poll", 0)]:
        if what == "append":
            world.append(index, batch(2))
        elif what == "move":
            epochs[index] += 1
            world.host(index, epoch=epochs[index], partition_epoch=epochs[index])
        elif what == "cut":
            partition = world.replicas.find("events", index)
            assert not isinstance(partition, ErrorCode)
            world.replicas.delete_records(partition.topic_partition, partition.high_watermark)
        else:
            forgotten = []
            if what == "forget" and index in known and len(known) > 1:
                forgotten = [index]
                del known[index]
                updates.pop(index, None)
            elif what == "add" and index not in known:
                known[index] = (0, -1, -1)
                updates[index] = position[index]
            asked = dict(updates)
            updates.clear()
            request = fetch_request(
                asked, session=(session_id, epoch), forgotten=forgotten, max_wait_ms=100
            )
            epoch += 1
            outcome = world.fetch(request)
            if not isinstance(outcome, FetchResponse):
                if what == "wait":
                    world.append(index)
                    world.timers.advance(0)
                world.timers.advance(100)
                outcome = outcome.value
            take(outcome)
    full = partitions_of(world.fetch_now(fetch_request({i: position[i] for i in known})))
    for index, data in full.items():
        assert data.records == b""
        assert known[index] == (data.error_code, data.high_watermark, data.log_start_offset)


# Responses that are withdrawn because of a quota


def test_a_withdrawn_response_is_given_again(world: World) -> None:
    session_id = opened(world, {0: 0, 1: 0, 2: 0})
    world.append(1)
    over = poll(world, session_id, 1, offsets={2: 0})
    assert list(partitions_of(over)) == [1]
    assert world.replicas.sessions.withdraw(over) == session_id
    again = partitions_of(poll(world, session_id, 2))
    assert list(again) == [1]
    assert len(records_of(again[1])) == 1
    assert partitions_of(poll(world, session_id, 3, offsets={1: 1})) == {}


def test_what_a_withdrawn_response_told_without_records_is_told_again(world: World) -> None:
    session_id = opened(world, {0: 1, 1: 0})
    world.append(0)  # the high watermark moves; the client is at its end already
    over = poll(world, session_id, 1)
    assert list(partitions_of(over)) == [0]
    assert world.replicas.sessions.withdraw(over) == session_id
    assert list(partitions_of(poll(world, session_id, 2))) == [0]
    assert partitions_of(poll(world, session_id, 3)) == {}


def test_a_session_that_the_client_never_hears_of_is_closed(world: World) -> None:
    response = world.fetch_now(fetch_request({0: 0}, session=(0, 0)))
    assert response.session_id
    assert world.replicas.sessions.withdraw(response) == 0
    assert len(world.replicas.sessions) == 0


def test_a_response_without_a_session_is_withdrawn_too(world: World) -> None:
    world.append(0)
    response = world.fetch_now(fetch_request({0: 0}, session=(0, -1)))
    assert world.replicas.sessions.withdraw(response) == 0
