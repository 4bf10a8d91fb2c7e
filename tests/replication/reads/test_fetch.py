"""Reading: limits, waiting, isolation, errors, over real logs and virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.purgatory import DelayedResponse
from kbroker.replication.reads.fetch import ANSWER_BYTES, SHORT_WAIT_MS
from kbroker.replication.reads.fetch_set import PARTITION_BYTES
from kbroker.server.network.memory_pool import MemoryPool
from tests.replication.world import (
    TOPIC,
    TOPIC_ID,
    World,
    batch,
    fetch_request,
    partitions_of,
    record_bytes,
    records_of,
)


def pending(outcome: FetchResponse | Deferred[FetchResponse]) -> DelayedResponse[FetchResponse]:
    assert isinstance(outcome, DelayedResponse)
    assert not outcome.done
    return outcome


def test_a_fetch_from_every_offset_of_batches_returns_the_batch_that_holds_it(
    world: World,
) -> None:
    for count in (1, 5, 3, 7):
        world.append(batches=batch(count))
    for offset in range(16):
        data = partitions_of(world.fetch_now(fetch_request({0: offset})))[0]
        read = records_of(data)
        assert read[0].offset <= offset
        assert [record.offset for record in read if record.offset >= offset] == list(
            range(offset, 16)
        )
        one = partitions_of(world.fetch_now(fetch_request({0: offset}, partition_max_bytes=1)))[0]
        assert offset in [record.offset for record in records_of(one)]


def test_the_end_is_empty_records_never_null(world: World) -> None:
    world.append(batches=batch(3))
    data = partitions_of(world.fetch_now(fetch_request({0: 3})))[0]
    assert data.error_code == 0
    assert data.records == b""
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
    assert data.aborted_transactions is None
    assert data.preferred_read_replica == -1


@pytest.mark.parametrize("offset", [-1, 4, 1 << 40])
def test_out_of_range(world: World, offset: int) -> None:
    world.append(batches=batch(3))
    response = world.fetch(fetch_request({0: offset}, max_wait_ms=500))
    assert isinstance(response, FetchResponse)
    data = partitions_of(response)[0]
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (data.high_watermark, data.log_start_offset, data.records) == (-1, -1, b"")


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        pytest.param(3, ErrorCode.FENCED_LEADER_EPOCH, id="older"),
        pytest.param(4, ErrorCode.NONE, id="same"),
        pytest.param(5, ErrorCode.UNKNOWN_LEADER_EPOCH, id="newer"),
    ],
)
def test_leader_epochs(world: World, epoch: int, error: ErrorCode) -> None:
    world.host(0, epoch=4, partition_epoch=1)
    data = partitions_of(world.fetch_now(fetch_request({0: 0}, current_leader_epoch=epoch)))[0]
    assert data.error_code == error


def test_a_reader_whose_history_differs_is_told_where(world: World) -> None:
    world.append(batches=batch(3))
    world.host(0, epoch=4, partition_epoch=1)
    world.append(batches=batch(2))
    diverged = partitions_of(world.fetch_now(fetch_request({0: 4}, last_fetched_epoch=0)))[0]
    assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (0, 3)
    assert diverged.records == b""
    same = partitions_of(world.fetch_now(fetch_request({0: 4}, last_fetched_epoch=4)))[0]
    assert same.diverging_epoch.epoch == -1
    assert same.records


def test_unknown_topics_and_partitions(world: World) -> None:
    wrong_index = partitions_of(world.fetch_now(fetch_request({9: 0})))[9]
    assert wrong_index.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wrong_name = partitions_of(world.fetch_now(fetch_request({0: 0}, topic="nope")))[0]
    assert wrong_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wrong_id = world.fetch_now(fetch_request({0: 0}, topic_id=b"x" * 16), version=13)
    assert partitions_of(wrong_id)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_id = world.fetch_now(fetch_request({0: 0}, topic_id=TOPIC_ID), version=13)
    assert partitions_of(by_id)[0].error_code == 0
    assert by_id.responses[0].topic_id == TOPIC_ID


def test_unknown_partitions_alone_are_not_waited_for(world: World) -> None:
    assert isinstance(world.fetch(fetch_request({9: 0}, max_wait_ms=500)), FetchResponse)
    both = pending(world.fetch(fetch_request({0: 0, 9: 0}, max_wait_ms=500)))
    world.timers.advance(500)
    assert {i: data.error_code for i, data in partitions_of(both.value).items()} == {0: 0, 9: 3}


def test_known_elsewhere_is_not_leader(world: World) -> None:
    world.replicas.hosting.knows = lambda topic, index: (topic, index) == ("far", 0)
    response = world.fetch(fetch_request({0: 0}, topic="far", max_wait_ms=500))
    assert isinstance(response, FetchResponse)
    assert partitions_of(response)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_first_batch_comes_whole_however_small_the_limits(world: World) -> None:
    for index in range(3):
        world.append(index, batch(1, size=5000))
    request = fetch_request({0: 1, 1: 0, 2: 0}, max_bytes=1, partition_max_bytes=1)
    found = partitions_of(world.fetch_now(request))
    assert [bool(found[i].records) for i in range(3)] == [False, True, False]


def test_max_bytes_is_kept_after_the_first(world: World) -> None:
    for index in range(3):
        for _ in range(10):
            world.append(index, batch(1, size=1000))
    request = fetch_request({0: 0, 1: 0, 2: 0}, max_bytes=3500, partition_max_bytes=2500)
    sizes = [len(record_bytes(data)) for data in partitions_of(world.fetch_now(request)).values()]
    assert sizes[0] <= 2500
    assert sum(sizes) <= 3500
    assert sizes[1] > 0
    assert sizes[2] == 0


def test_the_broker_limits_a_response_too(make_world: Callable[..., World]) -> None:
    world = make_world(fetch_max_bytes="2048")
    for _ in range(10):
        world.append(batches=batch(1, size=500))
    assert len(record_bytes(partitions_of(world.fetch_now(fetch_request({0: 0})))[0])) <= 2048


def test_a_fetch_waits_for_an_append_on_any_partition(world: World) -> None:
    waits = pending(world.fetch(fetch_request({0: 0, 1: 0}, max_wait_ms=500)))
    world.append(1)
    assert not waits.done  # not from inside the append
    world.append(0)
    world.timers.advance(0)
    assert {i: len(records_of(d)) for i, d in partitions_of(waits.value).items()} == {0: 1, 1: 1}
    assert all(partition.watcher_count == 0 for partition in world.replicas.partitions())
    assert world.replicas.purgatory.waiting == 0


def test_a_fetch_waits_no_longer_than_it_said(world: World) -> None:
    waits = pending(world.fetch(fetch_request({0: 0}, max_wait_ms=500)))
    world.timers.advance(499)
    assert not waits.done
    world.timers.advance(1)
    assert partitions_of(waits.value)[0].records == b""


def test_min_bytes_counts_present_and_appended_bytes(world: World) -> None:
    one = len(batch())
    world.append()
    waits = pending(world.fetch(fetch_request({0: 0, 1: 0}, max_wait_ms=500, min_bytes=3 * one)))
    world.append(1)
    world.timers.advance(10)
    assert not waits.done
    world.append(0)
    world.timers.advance(0)
    assert {i: len(records_of(d)) for i, d in partitions_of(waits.value).items()} == {0: 2, 1: 1}


def test_min_bytes_above_max_bytes_does_not_hang(world: World) -> None:
    world.append(batches=batch(1, size=100))
    request = fetch_request({0: 0}, max_wait_ms=500, min_bytes=1 << 20, max_bytes=50)
    assert isinstance(world.fetch(request), FetchResponse)


def test_a_cancelled_fetch_leaves_nothing_behind(world: World) -> None:
    waits = pending(world.fetch(fetch_request({0: 0, 1: 0}, max_wait_ms=500)))
    waits.cancel()
    world.append()
    world.timers.advance(1000)
    assert not waits.done
    assert all(partition.watcher_count == 0 for partition in world.replicas.partitions())
    assert world.replicas.purgatory.waiting == 0


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_waiting_fetch_hears_that_the_partition_went(world: World, how: str) -> None:
    waits = pending(world.fetch(fetch_request({0: 0, 1: 0}, max_wait_ms=500), version=10))
    if how == "deleted":
        world.remove(0)
    else:
        world.host(0, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2))
    world.timers.advance(0)
    expected = {
        "deleted": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "moved": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    assert partitions_of(waits.value)[0].error_code == expected[how]
    assert partitions_of(waits.value)[1].error_code == 0


@pytest.mark.parametrize("has_session", [False, True])
def test_a_waiting_fetch_fails_when_its_disk_is_lost(world: World, has_session: bool) -> None:
    request = fetch_request({0: 0, 1: 0}, max_wait_ms=500)
    if has_session:
        first = world.fetch_now(fetch_request({0: 0, 1: 0}, max_wait_ms=500, session=(0, 0)))
        request = fetch_request({}, max_wait_ms=500, session=(first.session_id, 1))
    waits = pending(world.fetch(request))
    data = world.folder / "data"
    world.logs.directory_failed(LogDirectoryError(data, "read", OSError(5, "Input/output error")))
    assert not waits.done, "a response leaves in a turn of its own"
    world.timers.advance(0)
    errors = {index: data.error_code for index, data in partitions_of(waits.value).items()}
    assert errors == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: ErrorCode.KAFKA_STORAGE_ERROR}
    assert world.replicas.purgatory.waiting == 0
    assert all(partition.watcher_count == 0 for partition in world.replicas.partitions())


def transactional(count: int, sequence: int) -> bytearray:
    return batch(
        count, producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True
    )


def test_read_committed_stops_at_the_open_transaction(world: World) -> None:
    world.append(batches=batch(2))
    world.append(batches=transactional(3, 0))
    world.append(batches=batch(1))
    read = partitions_of(world.fetch_now(fetch_request({0: 0}, read_committed=True)))[0]
    assert [record.offset for record in records_of(read)] == [0, 1]
    assert (read.high_watermark, read.last_stable_offset) == (6, 2)
    assert read.aborted_transactions == []
    uncommitted = partitions_of(world.fetch_now(fetch_request({0: 0})))[0]
    assert len(records_of(uncommitted)) == 6
    assert uncommitted.aborted_transactions is None


def test_an_open_transaction_does_not_wake_a_read_committed_fetch(world: World) -> None:
    world.append(batches=transactional(1, 0))
    waits = pending(world.fetch(fetch_request({0: 0}, max_wait_ms=500, read_committed=True)))
    world.append(batches=batch(3))
    world.timers.advance(10)
    assert not waits.done
    world.timers.advance(490)
    assert partitions_of(waits.value)[0].high_watermark == 4


def test_a_replica_that_is_not_assigned_is_refused(world: World) -> None:
    for fields, error in (
        ({}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"current_leader_epoch": 0}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        request = fetch_request({0: 0}, **fields)
        request.replica_id = 9
        assert partitions_of(world.fetch_now(request))[0].error_code == error


def test_a_follower_reads_to_the_log_end_and_moves_the_high_watermark(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    appended = world.append(acks=-1)
    assert isinstance(appended, Deferred)
    consumer = pending(world.fetch(fetch_request({0: 0}, max_wait_ms=500)))
    request = fetch_request({0: 0}, max_wait_ms=500)
    request.replica_id = 2
    assert len(records_of(partitions_of(world.fetch_now(request))[0])) == 1
    assert not appended.done
    caught_up = fetch_request({0: 1}, max_wait_ms=500)
    caught_up.replica_id = 2
    follower = pending(world.fetch(caught_up))
    world.timers.advance(0)
    assert appended.value.error == ErrorCode.NONE
    assert len(records_of(partitions_of(consumer.value)[0])) == 1
    world.append()
    world.timers.advance(0)
    assert len(records_of(partitions_of(follower.value)[0])) == 1


def test_a_throttled_follower_gets_nothing_above_the_rate_until_it_is_in_sync(world: World) -> None:
    world.host(0, replicas=(1, 2, 3), isr=(1, 3), partition_epoch=1)
    world.append()
    throttle = world.replicas.throttles.leader
    throttle.limit(10)
    throttle.mark(TOPIC, frozenset({0}))

    def sent_to(replica_id: int) -> int:
        request = fetch_request({0: 0})
        request.replica_id = replica_id
        return len(records_of(partitions_of(world.fetch_now(request))[0]))

    assert sent_to(2) == 1
    assert sent_to(2) == 0, "the first answer was more than a second's worth"
    assert sent_to(3) == 1, "in sync"
    throttle.mark(TOPIC, frozenset({1}))
    assert sent_to(2) == 1


def many(count: int) -> dict[int, int]:
    return dict.fromkeys(range(count), 0)


def test_what_a_large_fetch_holds_while_it_waits_is_accounted_for(
    make_world: Callable[..., World],
) -> None:
    memory = MemoryPool(1 << 20)
    world = make_world(partitions=20, memory=memory)
    waiting = pending(world.fetch(fetch_request(many(20), max_wait_ms=500)))
    assert memory.used >= 20 * (PARTITION_BYTES + ANSWER_BYTES)
    gone = pending(world.fetch(fetch_request(many(20), max_wait_ms=500)))
    gone.cancel()
    world.timers.advance(500)
    assert waiting.done
    assert memory.used == 0
    pending(world.fetch(fetch_request({0: 0}, max_wait_ms=500)))
    assert memory.used == 0, "a small one costs nothing"


def test_while_memory_is_short_a_large_fetch_does_not_wait_long(
    make_world: Callable[..., World],
) -> None:
    memory = MemoryPool(1 << 20)
    world = make_world(partitions=20, memory=memory)
    before = pending(world.fetch(fetch_request(many(20), max_wait_ms=2**31 - 1)))
    small = pending(world.fetch(fetch_request({0: 0}, max_wait_ms=500)))
    memory.on_pressure = world.replicas.give_back_memory
    memory.charge(memory.limit)
    memory.wait_turn(lambda: None)
    full = world.fetch(fetch_request(many(20), max_wait_ms=500))
    assert isinstance(full, FetchResponse), "nothing is left: it does not wait at all"
    memory.release(memory.limit // 2)
    after = pending(world.fetch(fetch_request(many(20), max_wait_ms=2**31 - 1)))
    world.timers.advance(SHORT_WAIT_MS)
    assert before.done
    assert after.done
    assert not small.done
    assert memory.used == memory.limit // 2
