"""Batches that wait for a thread, to be checked or for a new segment: off the loop, in order, with
the answers of the others.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.log import validator
from kbroker.log.append_cost import LOOP_BYTES, loop_cost
from kbroker.log.appending import check_batches
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import Refused
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.appends.preparation import APPEND_TURN_BYTES
from tests.replication.waiting_batches import (
    KEY,
    LARGE,
    MEGABYTE,
    large,
    middling,
    opened_anew,
    value,
)
from tests.replication.world import NOW_MS, World, batch
from tests.sim.offload import HeldOffload


def codecs(world: World) -> list[Compression]:
    log = world.logs.get(KEY)
    assert log is not None
    records = log.read(0, max_bytes=1 << 20).records
    assert isinstance(records, FileSlice)
    return [header.codec for _, header in iter_batches(records.read())]


def test_small_batches_are_packed_at_once(world: World, offload: HeldOffload) -> None:
    assert value(world.append(batches=batch(3))).last_offset == 2
    assert offload.held == []
    assert codecs(world) == [Compression.ZSTD]


def test_later_batches_queue_in_order(world: World, offload: HeldOffload) -> None:
    received = [large(7, 0), large(7, 10), batch(1)]
    answers = [world.append(batches=one, acks=-1) for one in received]
    for one in received:
        one[:] = bytes(len(one))  # the receive buffer is used again
    other = world.host(1)
    assert value(world.append(1)).error is ErrorCode.NONE, "another partition does not wait"
    assert other.log.log_end_offset == 1
    assert not any(answer.done for answer in answers if isinstance(answer, Deferred))
    assert len(offload.held) == 1, "one after the other"
    offload.run()
    assert (value(answers[0]).base_offset, value(answers[0]).last_offset) == (0, 9)
    offload.run()
    assert [value(answer).base_offset for answer in answers] == [0, 10, 20]
    assert codecs(world) == [Compression.ZSTD] * 3
    assert value(world.append(batches=batch(1))).base_offset == 21, "the queue is gone"


def test_a_refused_batch_is_answered_and_the_next_goes_on(
    world: World, offload: HeldOffload
) -> None:
    damaged = large()
    damaged[-1] ^= 1
    answers = [world.append(batches=one) for one in (damaged, large(8, 5), large())]
    offload.run()
    offload.run()
    offload.run()
    assert [value(answer).error for answer in answers] == [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]


def test_records_that_are_refused_are_named(world: World, offload: HeldOffload) -> None:
    world.configure(cleanup_policy="compact")
    answer = world.append(batches=build_batch([(NOW_MS, None, bytes(LARGE), [])] * 10))
    offload.run()
    assert value(answer).error is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in value(answer).record_errors] == list(range(10))


def test_leadership_that_goes_meanwhile(world: World, offload: HeldOffload) -> None:
    answers = [world.append(batches=large()), world.append(batches=large())]
    world.host(0, leader=2, epoch=3, replicas=(1, 2))
    offload.run()
    offload.run()
    assert {value(answer).error for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert world.replicas.partition(KEY).log.log_end_offset == 0  # type: ignore[union-attr]  # it is hosted


def test_the_end_of_the_broker_answers_who_waits(world: World, offload: HeldOffload) -> None:
    answers = [world.append(batches=large()), world.append(batches=large())]
    held, offload.held = offload.held, []
    world.replicas.close()
    for work, then in held:
        work()
        then(None)
    assert {value(answer).error for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_surprise_is_logged_and_answered(
    world: World, offload: HeldOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kbroker.replication.appends.preparation.check_batches", fail)
    answer = world.append(batches=large())
    offload.run()
    assert value(answer).error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_surprise_of_one_append_is_answered_and_the_others_have_their_turn(
    world: World, offload: HeldOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it the partition would stand still, and so would the connections that wrote to it."""
    append = PartitionLog._append_checked
    calls = 0

    def fail_twice(log: PartitionLog, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise ZeroDivisionError
        return append(log, *arguments, **options)

    monkeypatch.setattr(PartitionLog, "_append_checked", fail_twice)
    answers = [world.append(batches=one) for one in (large(), batch(1), batch(1), large())]
    offload.run()
    offload.run()
    surprise = ErrorCode.UNKNOWN_SERVER_ERROR
    assert [value(answer).error for answer in answers] == [surprise, surprise, 0, 0]


def test_one_worker_at_a_time_unpacks(
    world: World, offload: HeldOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def validate(*arguments: Any) -> validator.ValidatedBatches | Refused:
        held.append(world.replicas.unpacking.locked())
        return check_batches(*arguments)

    monkeypatch.setattr("kbroker.replication.appends.preparation.check_batches", validate)
    answer = world.append(batches=large())
    offload.run()
    assert value(answer).last_offset == 9
    assert held == [True]


@pytest.mark.parametrize(
    ("overrides", "codec", "size", "costly"),
    [
        ({}, Compression.NONE, 1 << 20, False),
        ({}, Compression.GZIP, 1 << 20, False),
        ({"compression_type": "gzip"}, Compression.GZIP, 1 << 20, False),
        ({"compression_type": "gzip"}, Compression.NONE, 31_000, False),
        ({"compression_type": "gzip"}, Compression.NONE, 33_000, True),
        ({"compression_type": "gzip"}, Compression.ZSTD, 1_023, False),
        ({"compression_type": "gzip"}, Compression.ZSTD, 1_025, True),
        ({"compression_type": "uncompressed"}, Compression.NONE, 1 << 20, False),
        ({"compression_type": "uncompressed"}, Compression.LZ4, 2_000, True),
        ({"cleanup_policy": "compact"}, Compression.NONE, 33_000, True),
        ({"cleanup_policy": "compact"}, Compression.LZ4, 2_000, True),
        ({"message_timestamp_before_max_ms": "1000"}, Compression.NONE, 33_000, True),
        ({"message_timestamp_type": "LogAppendTime"}, Compression.NONE, 1 << 20, False),
    ],
)
def test_what_is_costly(
    make_world: Callable[..., World],
    overrides: dict[str, str],
    codec: Compression,
    size: int,
    costly: bool,
) -> None:
    world = make_world(partitions=0)
    log = world.host(0, **overrides).log
    data = bytearray(size)
    data[22] = int(codec)
    config = log.config  # type: ignore[attr-defined]  # a PartitionLog
    assert (loop_cost(data, config, 9, NOW_MS) > LOOP_BYTES) is costly


def test_an_old_message_set_is_converted_off_the_loop(world: World, offload: HeldOffload) -> None:
    world.configure(compression_type="producer")
    for size in (10, LARGE):
        sent = bytearray()
        write_message_set(sent, [Record(0, NOW_MS, b"key", bytes(size))], magic=1)
        outcome = world.replicas.append(KEY, sent, acks=1, timeout_ms=1000, produce_version=2)
        assert isinstance(outcome, Deferred) == (size == LARGE)
    offload.run()
    assert value(outcome).last_offset == 1


# a new segment


@pytest.fixture
def rolling(world: World) -> HeldOffload:
    """The thread of a world whose topic has a segment with room for two of `middling`."""
    held = opened_anew(world, segment_bytes=str(MEGABYTE))
    for _ in range(2):
        assert value(world.append(batches=middling())).error is ErrorCode.NONE
    return held


def segments(world: World) -> list[int]:
    log = world.logs.get(KEY)
    assert log is not None
    return log.segments.base_offsets


def test_a_new_segment_is_made_in_the_thread(world: World, rolling: HeldOffload) -> None:
    received = [middling(0), middling(1), batch(1), middling(2)]
    answers = [
        world.append(batches=one, acks=acks)
        for one, acks in zip(received, (-1, 1, 0, -1), strict=True)
    ]
    for one in received:
        one[:] = bytes(len(one))
    assert not any(isinstance(answer, PartitionAppendResult) for answer in answers)
    assert (segments(world), len(rolling.held)) == ([0], 1)
    other = world.host(1)
    assert value(world.append(1)).error is ErrorCode.NONE, "another partition does not wait"
    assert other.log.log_end_offset == 1
    rolling.run()
    assert [value(answer).base_offset for answer in answers[:3]] == [2, 3, 4]
    assert segments(world) == [0, 2]
    rolling.run()
    assert value(answers[3]).base_offset == 5, "which needed one more"
    assert segments(world) == [0, 2, 5]
    assert value(world.append(batches=batch(1))).base_offset == 6, "the queue is gone"
    records = [world.logs.get(KEY).read(at, max_bytes=1 << 20).records for at in (0, 2, 5)]  # type: ignore[union-attr]  # hosted
    read = [header.base_offset for part in records for _, header in iter_batches(part.read())]  # type: ignore[union-attr]  # slices
    assert read == [0, 1, 2, 3, 4, 5, 6]


def test_a_batch_sent_twice_meanwhile_is_known(world: World, rolling: HeldOffload) -> None:
    answers = [world.append(batches=middling(0)) for _ in range(2)]
    rolling.run()
    assert [value(answer).base_offset for answer in answers] == [2, 2]


def test_checked_first_then_a_new_segment(world: World, rolling: HeldOffload) -> None:
    world.configure(segment_bytes=str(MEGABYTE), cleanup_policy="compact")
    answers = [world.append(batches=middling()) for _ in range(2)]
    small = world.append(batches=batch(1))
    rolling.run()
    assert (segments(world), len(rolling.held)) == ([0], 1), "checked, and now it rolls"
    rolling.run()
    assert (segments(world), len(rolling.held)) == ([0, 2], 1), "the next is to be checked"
    rolling.run()
    assert [value(answer).base_offset for answer in (*answers, small)] == [2, 3, 4]


def test_the_coordinator_does_not_wait(world: World, rolling: HeldOffload) -> None:
    waits = world.append(batches=middling())
    marker = world.replicas.append(
        KEY, batch(1), acks=1, timeout_ms=1000, origin=validator.AppendOrigin.COORDINATOR
    )
    assert value(marker).base_offset == 2
    assert segments(world) == [0, 2]
    rolling.run()
    assert value(waits).base_offset == 3


def test_leadership_that_goes_during_a_roll(world: World, rolling: HeldOffload) -> None:
    answers = [world.append(batches=middling()) for _ in range(2)]
    world.host(0, leader=2, epoch=3, replicas=(1, 2), segment_bytes=str(MEGABYTE))
    rolling.run()
    assert {value(answer).error for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert segments(world) == [0, 2], "the new one is empty"
    world.host(0, leader=1, epoch=4, replicas=(1, 2), isr=(1,), segment_bytes=str(MEGABYTE))
    assert value(world.append(batches=middling())).base_offset == 2


def test_a_disk_that_fails_during_a_roll(
    world: World, rolling: HeldOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, size: int = 0) -> None:
        raise LogDirectoryError(path, "create", OSError(errno.ENOSPC, "no space"))

    monkeypatch.setattr("kbroker.log.storage.segment.create_file", fail)
    answers = [world.append(batches=middling()) for _ in range(2)]
    rolling.run()
    assert {value(answer).error for answer in answers} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert KEY in world.logs.offline_partitions


def test_a_roll_without_descriptors_is_tried_again_for_the_next_batch(
    world: World, rolling: HeldOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, size: int = 0) -> None:
        raise LogDirectoryError(path, "create", OSError(errno.EMFILE, "Too many open files"))

    answers = [world.append(batches=middling()) for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.storage.segment.create_file", fail)
        rolling.run()
        assert value(answers[0]).error is ErrorCode.KAFKA_STORAGE_ERROR
        rolling.run()
        assert value(answers[1]).error is ErrorCode.KAFKA_STORAGE_ERROR
    rolling.run()
    assert value(answers[2]).base_offset == 2
    assert segments(world) == [0, 2]
    assert not world.logs.offline_directories and not rolling.held


def test_the_end_of_the_broker_during_a_roll(world: World, rolling: HeldOffload) -> None:
    answers = [world.append(batches=middling()) for _ in range(2)]
    world.replicas.close()
    rolling.run()
    assert {value(answer).error for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_an_append_for_a_closed_connection_waits_for_no_replica(world: World) -> None:
    held = opened_anew(world, compression_type="zstd")
    world.host(0, epoch=1, replicas=(1, 2), compression_type="zstd")
    waits, later = (world.append(batches=large(), acks=-1, timeout_ms=2**31 - 1) for _ in range(2))
    assert isinstance(waits, Deferred) and isinstance(later, Deferred)
    held.run()
    assert world.replicas.purgatory.waiting == 1
    waits.cancel()
    later.cancel()
    assert world.replicas.purgatory.waiting == 0
    held.run()
    assert world.replicas.purgatory.waiting == 0
    assert world.logs.get(KEY).log_end_offset == 20, "appended all the same"  # type: ignore[union-attr]  # hosted


def test_a_long_queue_is_appended_in_several_turns(world: World) -> None:
    held = opened_anew(world)
    refused = world.append(batches=batch(1, timestamp=NOW_MS + 7_200_000, size=LARGE * 10))
    assert len(held.held) == 1
    answers = [world.append(batches=middling()) for _ in range(30)]
    held.run()
    assert value(refused).error is ErrorCode.INVALID_TIMESTAMP
    log = world.logs.get(KEY)
    assert log is not None
    assert log.log_end_offset == APPEND_TURN_BYTES // len(middling()) + 1, "in the first turn"
    behind = world.append(batches=batch(1))
    assert isinstance(behind, Deferred), "the order stays"
    world.timers.advance(0)
    assert [value(answer).base_offset for answer in (*answers, behind)] == list(range(31))
