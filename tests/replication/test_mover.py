"""Moves between log directories: nothing lost, nothing twice, at any point of a crash."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from kbroker.broker.directory_assignments import LogDirectoryReporter
from kbroker.controller.partitions.directories import Assignment
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.replication import mover
from tests.own_threads import own_threads
from tests.replication.two_dirs import KEY, TwoDirs
from tests.replication.world import (
    NODE_ID,
    TOPIC_ID,
    batch,
    fetch_request,
    partitions_of,
    records_of,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoDirs]:
    monkeypatch.setattr(mover, "CHUNK_BYTES", 1000)
    made = TwoDirs(tmp_path)
    yield made
    made.close()


def test_a_log_moves_while_it_is_written_and_read(world: TwoDirs) -> None:
    for _ in range(20):
        world.append(batches=batch(3))
    assert world.place == 0 and world.move(1) == ErrorCode.NONE
    for _ in range(10):  # writes go on during the copy
        world.step()
        assert world.place == 0
        world.append(batches=batch(2))
    assert world.folders(1) == ["events-0-future"]
    assert world.values() == list(range(80))
    world.finish()
    assert world.place == 1 and world.folders(1) == ["events-0"]
    assert world.folders(0) == ["events-0-delete"]
    assert world.values() == list(range(80))
    world.append(batches=batch(1))
    assert world.values(79) == [79, 80]
    world.crash()
    assert world.place == 1 and world.values() == list(range(81))


def test_what_a_move_costs_those_who_wait_is_nothing(world: TwoDirs) -> None:
    world.append()
    waiting = world.fetch(fetch_request({0: 1}, max_wait_ms=5000))
    assert isinstance(waiting, Deferred)
    world.move(1)
    world.finish()
    assert not waiting.done
    world.append()
    world.timers.advance(1)
    assert waiting.done
    assert [record.offset for record in records_of(partitions_of(waiting.value)[0])] == [1]


@pytest.mark.parametrize("steps", range(0, 16, 3))
def test_a_crash_in_the_middle_continues(world: TwoDirs, steps: int) -> None:
    for _ in range(20):
        world.append(batches=batch(3))
    world.move(1)
    world.step(steps)
    world.append(batches=batch(3))
    world.crash()
    assert world.values() == list(range(63))
    world.finish()
    assert world.place == 1 and world.values() == list(range(63))
    assert world.folders(1) == ["events-0"]


def test_idempotent_producers_are_known_after_the_move(world: TwoDirs) -> None:
    def send(sequence: int) -> int:
        data = batch(2, producer_id=7, producer_epoch=0, base_sequence=sequence)
        result = world.append(batches=data)
        assert not isinstance(result, Deferred)
        assert result.error == ErrorCode.NONE
        return result.base_offset

    offsets = [send(sequence) for sequence in range(0, 10, 2)]
    world.move(1)
    world.finish()
    assert [send(sequence) for sequence in range(0, 10, 2)] == offsets  # duplicates, all five
    assert send(10) == 10


def test_the_start_of_a_log_moves_with_it(world: TwoDirs) -> None:
    for _ in range(5):
        world.append(batches=batch(4))
    assert world.replicas.delete_records(KEY, 6) == 6
    world.move(1)
    world.step(2)
    assert world.replicas.delete_records(KEY, 9) == 9
    world.finish()
    log = world.logs.get(KEY)
    assert log is not None and (log.log_start_offset, log.log_end_offset) == (9, 20)
    assert world.values(9) == list(range(9, 20))
    assert log.leader_epochs.entries == [(0, 9)]


def test_retention_may_overtake_the_copy(world: TwoDirs) -> None:
    for _ in range(30):
        world.append(batches=batch(4))
    world.move(1)
    world.step(1)
    world.replicas.delete_records(KEY, 100)
    world.finish()
    assert world.values(100) == list(range(100, 120))


def test_a_move_back_ends_the_move(world: TwoDirs) -> None:
    for _ in range(20):
        world.append(batches=batch(3))
    world.move(1)
    world.step(2)
    assert world.move(0) == ErrorCode.NONE
    assert world.logs.moves.future(KEY) is None and world.folders(1) == ["events-0-delete"]
    world.step(5)
    assert world.place == 0 and world.values() == list(range(60))
    assert world.move(1) == world.move(1) == ErrorCode.NONE
    world.finish()
    assert world.place == 1


def test_a_deleted_topic_takes_its_future_log_with_it(world: TwoDirs) -> None:
    world.append(batches=batch(50))
    world.move(1)
    world.remove()
    world.step(3)
    assert world.folders(0) == world.folders(1) == ["events-0-delete"]
    world.host()
    world.move(1)
    world.finish()


def test_refusals(world: TwoDirs) -> None:
    assert world.replicas.move_log(KEY, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
    unknown = TopicPartition("unknown", 0)
    path = str(world.dirs[1])
    assert world.replicas.move_log(unknown, path) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.replicas.hosting.knows = lambda topic, index: True
    assert world.replicas.move_log(unknown, path) == ErrorCode.REPLICA_NOT_AVAILABLE
    world.host(topic="unknown", topic_id=bytes(15) + b"\x09")
    assert world.logs.directory_of(unknown) == world.dirs[1]  # as it was asked for
    world.logs.directory_failed(LogDirectoryError(path, "write", OSError(errno.EIO, "EIO")))
    assert world.replicas.move_log(KEY, path) == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.replicas.move_log(unknown, str(world.dirs[0])) == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_new_disk_fails(world: TwoDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        world.append(batches=batch(3))
    world.move(1)
    world.step(2)
    write_at = LogFile.write_at

    def fail(self: LogFile, data: bytes, position: int) -> None:
        if self.path.startswith(str(world.dirs[1])):
            raise LogDirectoryError(self.path, "write", OSError(errno.EIO, "Input/output error"))
        write_at(self, data, position)

    monkeypatch.setattr(LogFile, "write_at", fail)
    world.step(3)
    assert world.logs.moves.future(KEY) is None
    assert list(world.logs.offline_directories) == [world.dirs[1]]
    assert world.values() == list(range(60))
    assert world.append() is not None and world.log_end == 61


@pytest.mark.parametrize("where", ["begin_flush", "sync", "read_at"])
def test_a_shortage_of_descriptors_is_a_pause(
    world: TwoDirs, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for _ in range(20):
        world.append(batches=batch(3))
    world.move(1)
    world.step(2)

    def fail(*_: object, **__: object) -> NoReturn:
        raise LogDirectoryError(world.dirs[1], "open", OSError(errno.EMFILE, "Too many open files"))

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog if where == "begin_flush" else LogFile, where, fail)
        world.step(12)
    for _ in range(40):
        world.timers.advance(1000)
        world.step(3)
    assert (world.logs.moves.future(KEY), world.place) == (None, 1)
    assert not world.logs.offline_directories
    assert world.values() == list(range(60))


@pytest.mark.parametrize("method", ["unflushed", "append"])
def test_a_surprise_ends_the_move_not_the_log(
    world: TwoDirs, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for _ in range(20):
        world.append(batches=batch(3))

    def surprise(*args: object, **options: object) -> None:
        raise IndexError("list index out of range")

    with monkeypatch.context() as patch:
        owned = {"unflushed": "begin_flush", "append": "append_as_follower"}[method]
        patch.setattr(PartitionLog, owned, surprise)
        assert world.move(1) == ErrorCode.NONE
        world.step(20)
    assert world.logs.moves.future(KEY) is None
    assert world.values() == list(range(60))
    assert world.move(1) == ErrorCode.NONE  # it can be moved later
    world.finish()
    assert world.place == 1 and world.values() == list(range(60))


def test_a_follower_that_was_truncated_cuts_the_copy(world: TwoDirs) -> None:
    for _ in range(60):
        world.append(batches=batch(3))
    world.move(1)
    world.step(5)
    future, source = world.logs.moves.future(KEY), world.logs.get(KEY)
    assert future is not None and source is not None and future.log_end_offset > 30
    world.host(leader=2, epoch=1, replicas=(NODE_ID, 2))
    source.truncate_to(30, now_ms=world.timers.now_ms())
    world.host(epoch=2, partition_epoch=1)
    for _ in range(5):
        world.append(batches=batch(4))
    expected = world.values()
    world.finish()
    assert world.values() == expected
    log = world.logs.get(KEY)
    assert log is not None and log.leader_epochs.entries == [(0, 0), (2, 30)]


def test_a_throttled_move_takes_its_time(world: TwoDirs) -> None:
    for _ in range(20):
        world.append(batches=batch(3, size=100))
    world.replicas.mover.bytes_per_second = 1000
    world.move(1)
    world.step(3)
    future = world.logs.moves.future(KEY)
    assert future is not None
    copied = future.log_end_offset
    world.step(20)
    assert future.log_end_offset == copied
    world.timers.advance(1000)
    world.step(1)
    assert future.log_end_offset > copied


def test_a_higher_limit_counts_at_once(world: TwoDirs) -> None:
    for _ in range(20):
        world.append(batches=batch(3, size=100))
    world.replicas.mover.bytes_per_second = 1
    world.move(1)
    world.step(3)
    future = world.logs.moves.future(KEY)
    assert future is not None
    copied = future.log_end_offset
    world.step(20)
    assert future.log_end_offset == copied
    world.replicas.mover.bytes_per_second = 1 << 40
    world.step(3)
    assert future.log_end_offset > copied


def test_the_metadata_is_asked_before_the_swap(world: TwoDirs) -> None:
    asked: list[tuple[TopicPartition, Uuid, Uuid]] = []
    answer: Deferred[None] = Deferred()

    def assign(key: TopicPartition, topic_id: Uuid, directory_id: Uuid) -> Deferred[None]:
        asked.append((key, topic_id, directory_id))
        return answer

    ids = {str(path): bytes(15) + bytes([number]) for number, path in enumerate(world.dirs, 5)}
    world.logs.set_directory_ids(ids)
    world.replicas.mover.assign = assign
    world.append(batches=batch(3))
    world.move(1)
    world.step(9)
    assert asked == [(KEY, TOPIC_ID, ids[str(world.dirs[1])])] and world.place == 0
    world.append(batches=batch(2))
    answer.resolve(None)
    world.step(1)
    assert world.place == 1 and world.values() == list(range(5))


def test_the_report_of_a_deleted_topic_keeps_no_move_from_its_end(world: TwoDirs) -> None:
    """The controller has deleted it, of which this broker has not read yet."""
    deleted_id = b"u" * 16
    errors = {TOPIC_ID: ErrorCode.NONE, deleted_id: ErrorCode.UNKNOWN_TOPIC_ID}
    asked: list[list[Uuid]] = []

    class Channel:
        def assign_directories(
            self, epoch: int, assignments: Sequence[Assignment]
        ) -> Deferred[list[ErrorCode]]:
            asked.append([each.topic_id for each in assignments])
            return Deferred.of([errors[each.topic_id] for each in assignments])

    channel: Any = Channel()
    reporter = LogDirectoryReporter(
        world.logs,
        channel,
        world.timers,
        broker_epoch=lambda: 1,
        is_assigned=lambda *_: True,
        metadata_directory=world.dirs[0],
        failure_timeout_ms=1000,
        fail=lambda _: None,
    )

    def assign(key: TopicPartition, topic_id: Uuid, directory_id: Uuid) -> Deferred[None]:
        reporter.assign(TopicPartition("deleted", 0), deleted_id, directory_id)
        return reporter.assign(key, topic_id, directory_id)

    world.logs.set_directory_ids({str(path): path.name.encode() * 8 for path in world.dirs})
    world.replicas.mover.assign = assign
    world.append(batches=batch(3))
    world.move(1)
    world.step(9)
    assert asked == [[deleted_id, TOPIC_ID]]
    assert world.place == 1 and world.values() == [0, 1, 2]


def test_the_current_log_is_missing_and_the_metadata_names_its_directory(world: TwoDirs) -> None:
    """A crash between the two renames of a swap."""
    world.append(batches=batch(3))
    world.move(1)
    world.step(1)
    future = world.logs.moves.future(KEY)
    assert future is not None
    world.logs.close(clean=False)
    current = world.dirs[0] / str(KEY)
    current.rename(world.dirs[0] / f"{KEY}.{'0' * 32}-delete")
    ids = {str(path): bytes(15) + bytes([number]) for number, path in enumerate(world.dirs, 5)}
    for assigned, expected in ((0, None), (1, world.dirs[1])):
        logs = LogManager(
            world.config, now_ms=world.timers.now_ms, random=Random(1), threads=own_threads
        )
        logs.lock()
        logs.set_directory_ids(ids)
        logs.load(assigned=lambda key, at=assigned: ids[str(world.dirs[at])])
        assert logs.directory_of(KEY) == expected
        assert logs.moves.future_partitions() == ([KEY] if expected is None else [])
        logs.close(clean=False)
    world.crash()
    assert world.values() == [0, 1, 2]


def test_a_flush_under_way_does_not_fail_the_directory_of_a_deleted_log(world: TwoDirs) -> None:
    world.configure(flush_ms="1")
    world.append()
    world.timers.advance(2000)
    assert world.work.held
    world.remove()
    while world.work.held:
        world.work.run_one()
    assert not world.logs.offline_directories


def test_files_are_deleted_by_the_thread(world: TwoDirs) -> None:
    world.append()
    world.remove()
    assert world.folders(0) == ["events-0-delete"]
    world.timers.advance(61_000)
    assert world.folders(0) == ["events-0-delete"]
    while world.work.held:
        world.work.run_one()
    assert world.folders(0) == []


def test_who_waits_for_a_flush_waits_for_the_log_that_moved(world: TwoDirs) -> None:
    world.configure(flush_messages="1000000")
    assigned: Deferred[None] = Deferred()
    world.replicas.mover.assign = lambda *_: assigned
    for _ in range(3):
        world.append()
    assert world.move(1) == ErrorCode.NONE
    future = world.logs.moves.future(KEY)
    assert future is not None
    while future.recovery_point < 3:
        world.step()
    world.configure(flush_messages="1")
    answers = [world.append(), world.append(acks=-1)]
    assigned.resolve(None)
    held, world.work.held = world.work.held, []  # the disk of the old place is slow
    world.finish()
    assert world.place == 1
    for answer in answers:
        assert isinstance(answer, Deferred)
    world.work.held += held
    while world.work.held:
        world.work.run_one()
    for offset, answer in enumerate(answers, 3):
        assert isinstance(answer, Deferred) and answer.done
        assert (answer.value.error, answer.value.base_offset) == (ErrorCode.NONE, offset)
    log = world.logs.get(KEY)
    assert log is not None and log.recovery_point == 5
    assert world.values() == list(range(5))


def test_a_batch_that_was_being_checked_goes_to_the_log_that_moved(world: TwoDirs) -> None:
    world.append()
    world.configure(compression_type="gzip")
    answer = world.append(batches=batch(50, size=4000))
    assert isinstance(answer, Deferred)
    held, world.work.held = world.work.held, []
    assert world.move(1) == ErrorCode.NONE
    world.finish()
    assert world.place == 1
    world.work.held += held
    world.step(3)
    assert (answer.value.error, answer.value.base_offset) == (ErrorCode.NONE, 1)
    assert world.log_end == 51
    assert not world.logs.offline_directories


def test_refused_moves_are_one_line_a_second(
    world: TwoDirs, caplog: pytest.LogCaptureFixture
) -> None:
    """The path and the topic's name are any text: 38 KB of request became 120 MB of log lines."""
    path = "/nowhere\n" + "x" * 30_000
    for index in range(500):
        key = TopicPartition("a\nb", index)
        assert world.replicas.move_log(key, path) == ErrorCode.LOG_DIR_NOT_FOUND
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert len(line) < 1000
    caplog.clear()
    world.timers.advance(1000)
    world.replicas.move_log(key, path)
    assert caplog.records[0].getMessage().endswith("(and 499 more like this)")
