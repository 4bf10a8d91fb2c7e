"""Retention, flushing and checkpoints on virtual time."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.directories.checkpoints import OffsetCheckpoints
from kbroker.log.directories.directory import remove_all
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state import leader_epochs
from kbroker.log.state.flush import LogFlush
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import MAGIC_POSITION
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.appends.append import PartitionAppendResult
from tests.replication.world import (
    NODE_ID,
    NOW_MS,
    TOPIC,
    World,
    batch,
    fetch_request,
    partitions_of,
)
from tests.sim.offload import HeldOffload, run_inline

HOUR_MS = 3_600_000


def log_of(world: World, index: int = 0):  # type: ignore[no-untyped-def]  # a PartitionLog
    log = world.logs.get(TopicPartition(TOPIC, index))
    assert log is not None
    return log


def test_retention_moves_the_start_and_tells_readers(make_world: Callable[..., World]) -> None:
    world = make_world(partitions=1, log_retention_check_interval_ms="60000")
    world.configure(retention_ms="1000", segment_ms="1000")
    world.replicas.start()
    world.append(batches=batch(3))
    world.timers.advance(2000)
    world.append(batches=batch(2, timestamp=NOW_MS + 2000))
    world.timers.advance(60_000)
    data = partitions_of(world.fetch_now(fetch_request({0: 0})))[0]
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.replicas.offset_of(TopicPartition(TOPIC, 0), -2).value.offset >= 3


def flip_magic(world: World, index: int) -> None:
    """In the file of the first segment; what was known of it in memory is forgotten."""
    world.replicas.close()
    world.logs.close()
    segment = world.folder / "data" / f"{TOPIC}-{index}" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[MAGIC_POSITION] ^= 0x40
    segment.write_bytes(data)
    world.open()
    for each in range(3):
        world.host(each, retention_ms="1000", segment_ms="1000")


def test_a_flipped_magic_byte_ends_retention_of_no_log(make_world: Callable[..., World]) -> None:
    """Not even of its own: a segment that cannot be read goes by its time index."""
    world = make_world(partitions=3, log_retention_check_interval_ms="60000")
    world.configure(segment_ms="1000")
    for index in range(3):
        world.append(index, batch(3))
    world.timers.advance(2000)
    for index in range(3):
        world.append(index, batch(2, timestamp=NOW_MS + 2000))
    flip_magic(world, 0)
    world.replicas.start()
    world.timers.advance(60_000)
    assert [log_of(world, index).log_start_offset for index in range(3)] == [5, 5, 5]
    for index in range(3):
        world.append(index, batch(3, timestamp=NOW_MS + 62_000))
    world.timers.advance(180_000)
    assert [log_of(world, index).log_start_offset for index in range(3)] == [8, 8, 8]
    assert not world.logs.offline_directories


WORK = {
    "retention": (PartitionLog, "delete_old_segments"),
    "flush": (PartitionLog, "begin_flush"),
    "recovery points": (OffsetCheckpoints, "of_recovery_points"),
    "start offsets": (OffsetCheckpoints, "of_start_offsets"),
    "high watermarks": (OffsetCheckpoints, "of_high_watermarks"),
    "deletion": (LogManager, "take_due_files"),
}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("first_only", [True, False], ids=["once", "always"])
def test_a_surprise_ends_no_periodic_work(
    make_world: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    work: str,
    first_only: bool,
) -> None:
    """One that concerns a single log does not keep the others from being looked at, either."""
    world = make_world(partitions=3, log_retention_check_interval_ms="30000")
    world.configure(flush_ms="1000", retention_ms="1000")
    owner, method = WORK[work]
    original = getattr(owner, method)
    seen: list[object] = []
    here = threading.current_thread()

    def surprise(self: object, *args: object, **options: object) -> object:
        if threading.current_thread() is not here:  # the plugin's broker, which runs all the while
            return original(self, *args, **options)
        seen.append(self)
        is_log_0 = isinstance(self, PartitionLog) and self.topic_partition.partition == 0
        if (is_log_0 or isinstance(self, LogManager | OffsetCheckpoints)) and (
            not first_only or seen.count(self) == 1
        ):
            raise IndexError("list index out of range")
        return original(self, *args, **options)

    monkeypatch.setattr(owner, method, surprise)
    world.replicas.start()
    for _ in range(3):
        for index in range(3):
            world.append(index)
        world.timers.advance(61_000)
    per_log = {id(each): seen.count(each) for each in seen}
    assert len(per_log) == (3 if owner is PartitionLog else 1)
    assert min(per_log.values()) >= 3
    lines = [each for each in caplog.records if each.exc_info and "index out" in caplog.text]
    assert len(lines) == 1, "said once, however often it happens"
    if owner is PartitionLog:
        assert f"{TOPIC}-0" in lines[0].getMessage()
        assert log_of(world, 1).recovery_point == log_of(world, 1).log_end_offset
    assert not world.logs.offline_directories


def test_who_waits_for_a_flush_that_surprises_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload = waiting_for_the_disk(world, flush_messages="1")

    def surprise(self: PartitionLog, up_to: int | None = None) -> LogFlush:
        raise IndexError("list index out of range")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "begin_flush", surprise)
        refused = world.append()
        assert isinstance(refused, PartitionAppendResult)
        assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER  # the client sends it again
    answer = world.append()
    offload.run()
    assert isinstance(answer, Deferred) and answer.value.error == ErrorCode.NONE


def test_a_file_that_cannot_be_deleted_keeps_no_other_from_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of several logs, and of several disks, are deleted in one go."""
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.touch()
    delete = os.unlink

    def fail(path: str) -> None:
        if path.endswith("a"):
            raise OSError(5, "Input/output error")
        delete(path)

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(LogDirectoryError, match=f"{tmp_path}/a"):
        remove_all(map(str, paths))
    assert [path.exists() for path in paths] == [True, False, False]


def segment_to_retire(world: World) -> tuple[HeldOffload, Path]:
    """The offload, and the file of a segment before the log start, which retention retires."""
    offload = waiting_for_the_disk(world, segment_ms="1000")
    world.append(batches=batch(3))
    world.timers.advance(2000)
    world.append(batches=batch(2, timestamp=NOW_MS + 2000))
    offload.run()
    log = log_of(world)
    log.on_high_watermark(log.log_end_offset)
    log.delete_records_before(3)
    retired = Path(log.segments.first.path)
    return offload, retired


@pytest.mark.parametrize("fails", [False, True])
def test_retired_files_get_their_names_in_the_thread(world: World, fails: bool) -> None:
    offload, retired = segment_to_retire(world)
    log = log_of(world)
    world.replicas._maintenance.run_retention()
    assert log.segments.first.base_offset == 3 and retired.exists()
    if fails:
        retired.with_name(retired.name + ".deleted").mkdir()  # cannot be replaced by a file
    offload.run()
    assert bool(world.logs.offline_directories) == fails
    assert retired.exists() == fails
    assert fails or log.segments.deleted_files


def test_retired_files_get_their_names_after_a_shortage_of_descriptors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader epochs, which are written before, found none."""
    offload, retired = segment_to_retire(world)
    log = log_of(world)

    def fail(*_: object, **__: object) -> None:
        raise LogDirectoryError(retired, "open", OSError(errno.EMFILE, "Too many open files"))

    log.leader_epochs.assign(5, log.log_end_offset)
    log.leader_epochs.pending(log.log_end_offset + 1)
    world.replicas._maintenance.run_retention()
    with monkeypatch.context() as patch:
        patch.setattr(leader_epochs, "atomic_write", fail)
        offload.run()
    assert log.failure is None and not world.logs.offline_directories
    assert retired.exists()
    log.flush()
    assert not retired.exists()


def test_a_closed_segment_is_flushed_soon(world: World) -> None:
    world.replicas.start()
    world.configure(segment_ms="1000")
    world.append(batches=batch(3))
    world.timers.advance(2000)
    assert log_of(world).recovery_point == 0
    world.append(batches=batch(1, timestamp=NOW_MS + 2000))
    world.timers.advance(1)
    assert log_of(world).recovery_point >= 3


def test_flush_ms(world: World) -> None:
    world.replicas.start()
    world.configure(flush_ms="5000")
    world.append(batches=batch(3))
    world.timers.advance(4000)
    assert log_of(world).recovery_point == 0
    world.timers.advance(3000)
    assert log_of(world).recovery_point == 3


def test_a_failed_flush_takes_the_directory_offline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.replicas.start()
    world.configure(flush_ms="1000")
    world.append()

    def fail(self: LogFile) -> None:
        raise LogDirectoryError(self.path, "fsync", OSError(5, "Input/output error"))

    monkeypatch.setattr(LogFile, "sync", fail)
    world.timers.advance(3000)
    result = world.append()
    assert isinstance(result, PartitionAppendResult)
    assert result.error == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_flush_that_finds_no_descriptor_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.replicas.start()
    world.configure(flush_ms="1000")
    world.append()

    def fail(self: LogFile) -> None:
        raise LogDirectoryError(self.path, "open", OSError(errno.EMFILE, "Too many open files"))

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "sync", fail)
        world.timers.advance(3000)
    assert log_of(world).recovery_point == 0
    result = world.append()
    assert isinstance(result, PartitionAppendResult) and result.error == ErrorCode.NONE
    world.timers.advance(3000)
    assert log_of(world).recovery_point == 2


def waiting_for_the_disk(world: World, **overrides: str) -> HeldOffload:
    offload = HeldOffload()
    world.replicas.close()
    world.logs.close()
    world.open(offload)
    world.host(**overrides)
    world.replicas.start()
    return offload


def test_flush_messages_holds_answers_back_not_the_loop(world: World) -> None:
    offload = waiting_for_the_disk(world, flush_messages="2")
    assert isinstance(world.append(), PartitionAppendResult), "one of two"
    first, all_isr = world.append(), world.append(acks=-1)
    assert isinstance(world.append(acks=0), PartitionAppendResult)
    assert isinstance(first, Deferred)
    assert isinstance(all_isr, Deferred)
    assert (first.done, all_isr.done, log_of(world).log_end_offset) == (False, False, 4)
    offload.run()
    assert (first.value.error, first.value.base_offset) == (ErrorCode.NONE, 1)
    assert not all_isr.done, "came after that flush began"
    offload.run()
    assert (all_isr.value.error, all_isr.value.base_offset) == (ErrorCode.NONE, 2)
    assert (log_of(world).recovery_point, offload.held) == (4, [])


def test_who_waits_for_a_disk_that_fails_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload = waiting_for_the_disk(world, flush_messages="1")
    answers = [world.append(), world.append(acks=-1)]

    def fail(self: LogFile) -> None:
        raise LogDirectoryError(self.path, "fsync", OSError(5, "Input/output error"))

    monkeypatch.setattr(LogFile, "sync", fail)
    offload.run()
    for answer in answers:
        assert isinstance(answer, Deferred)
        assert answer.value.error is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("leads_again", [False, True])
def test_records_that_are_cut_while_their_flush_runs_are_not_acknowledged(
    world: World, leads_again: bool
) -> None:
    """The new leader had not fetched them, and others are at their offsets now."""
    offload = waiting_for_the_disk(world, flush_messages="1", replicas=(NODE_ID, 2))
    of_all, of_leader = world.append(acks=-1), world.append()
    assert isinstance(of_all, Deferred) and isinstance(of_leader, Deferred)
    both = (NODE_ID, 2)
    followed = world.host(
        leader=2, epoch=1, partition_epoch=1, replicas=both, flush_messages="1000"
    )
    log = log_of(world)
    log.truncate_to(0, now_ms=NOW_MS)
    for offset in range(3):
        log.append_as_follower(batch(base_offset=offset, partition_leader_epoch=1), now_ms=NOW_MS)
    followed.high_watermark = 3
    if leads_again:
        world.host(epoch=2, partition_epoch=2, replicas=both, flush_messages="1000")
    while offload.held:
        offload.run()
    world.timers.advance(2000)
    assert of_all.value.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert of_leader.done


def test_who_waits_for_a_flush_of_a_log_that_is_being_cut_is_told(world: World) -> None:
    """No other flush may come for long."""
    offload = waiting_for_the_disk(world, flush_messages="1")
    first = world.append()
    second = world.append()
    assert isinstance(first, Deferred) and isinstance(second, Deferred)
    log_of(world).frozen = True
    offload.run()
    assert second.done and second.value.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    log_of(world).frozen = False


def test_a_log_that_goes_while_its_flush_waits_is_answered(world: World) -> None:
    offload = waiting_for_the_disk(world, flush_messages="1")
    answer = world.append()
    assert isinstance(answer, Deferred)
    world.remove()
    log_of_removed, offload.held = offload.held, []
    for work, then in log_of_removed:
        run_inline(work, then)
    offload.run()
    assert answer.value.error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize("how", ["closed", "failed"])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_flush_of_a_log_that_is_lost_fails_at_once(
    world: World, how: str, is_running: bool
) -> None:
    """Also while the broker starts or stops, when flushes run on the loop."""
    if is_running:
        waiting_for_the_disk(world)
    world.append()
    log = log_of(world)
    if how == "closed":
        log.mark_for_deletion("0" * 32)
    else:
        log.failure = LogDirectoryError(log.directory, "fsync", OSError(5, "Input/output error"))
    told: list[bool] = []
    world.replicas._maintenance.when_flushed(log, 1, told.append)
    assert told == [False]
    assert not world.logs.offline_directories, "no other log is at fault"


def test_a_flush_fails_when_the_log_moved_to_a_disk_that_is_lost(world: World) -> None:
    offload = waiting_for_the_disk(world, flush_messages="1")
    answer = world.append()
    assert isinstance(answer, Deferred) and not answer.done
    world.host(1)
    moved = log_of(world, 1)
    moved.failure = LogDirectoryError(moved.directory, "fsync", OSError(5, "Input/output error"))
    world.replicas._maintenance.log_replaced(log_of(world), moved)
    assert answer.value.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    offload.run()


def test_checkpoints_are_written_off_the_loop(world: World) -> None:
    folder: Path = world.folder / "data"
    offload = waiting_for_the_disk(world)
    world.append(batches=batch(3))
    world.timers.advance(60_000)
    name = f"{TOPIC} 0 3"
    assert name not in (folder / "replication-offset-checkpoint").read_text()
    offload.run()
    assert name in (folder / "replication-offset-checkpoint").read_text().splitlines()


def test_checkpoints_do_not_pile_up_before_a_slow_disk(make_world: Callable[..., World]) -> None:
    """Intervals of 0 are allowed; high watermarks that were left out are written the next time."""
    names = ("log_flush_offset", "log_flush_start_offset", "replica_high_watermark")
    world = make_world(**{f"{name}_checkpoint_interval_ms": "0" for name in names})
    offload = waiting_for_the_disk(world)
    for _ in range(100):
        world.append()
        world.timers.advance(50)
    assert len(offload.held) <= len(names)
    offload.run()
    world.timers.advance(50)
    offload.run()
    path = world.folder / "0" / "data" / "replication-offset-checkpoint"
    assert (
        (path if path.exists() else next(world.folder.rglob(path.name)))
        .read_text()
        .endswith(f"{TOPIC} 0 100\n")
    )


def test_checkpoints(world: World) -> None:
    folder: Path = world.folder / "data"
    world.replicas.start()
    world.append(batches=batch(3))
    world.timers.advance(5_000)
    watermarks = (folder / "replication-offset-checkpoint").read_text()
    assert f"{TOPIC} 0 3" in watermarks.splitlines()
    world.timers.advance(60_000)
    assert (folder / "recovery-point-offset-checkpoint").exists()
    assert (folder / "log-start-offset-checkpoint").exists()


def test_nothing_runs_after_the_end(world: World) -> None:
    world.replicas.start()
    world.replicas.close()
    before = (world.folder / "data" / "replication-offset-checkpoint").stat().st_mtime_ns
    world.timers.advance(HOUR_MS)
    after = (world.folder / "data" / "replication-offset-checkpoint").stat().st_mtime_ns
    assert before == after
