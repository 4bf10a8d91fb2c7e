"""Crashes that once left a log wrong: each by itself, on a simulated disk that loses, keeps, tears
and reorders what was not synced in a few hundred ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.truncation import truncate_fully
from kbroker.log.storage import names
from kbroker.log.storage.files import (
    LogDirectoryError,
    atomic_write,
    list_directory,
    read_file,
)
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.crash_model import CrashMachine
from tests.log.crash_truth import Batch, read_all
from tests.log.cuts import cut_now
from tests.own_threads import own_threads
from tests.sim.disk import Crashed, SimDisk

TOPIC_PARTITION = TopicPartition("topic", 0)
FOLDER = Path("/disk/data/topic-0")
CONFIG = LogConfig(segment_bytes=2000, segment_index_bytes=240, index_interval_bytes=150)
WAYS = 40


@pytest.fixture
def disks() -> Iterator[Callable[[], Iterator[SimDisk]]]:
    """Disks that differ in what a loss of power leaves of what was not synced."""

    def make() -> Iterator[SimDisk]:
        for seed in range(WAYS):
            disk = SimDisk(Random(seed))
            disk.make_root("/disk/data")
            with disk.installed():
                yield disk

    yield make


def open_log(*, recovery_point: int = 0) -> PartitionLog:
    return PartitionLog.open(
        FOLDER, TOPIC_PARTITION, CONFIG, recovery_point=recovery_point, now_ms=0
    )


def append(log: PartitionLog, *, epoch: int = 0, size: int = 10, timestamp: int = 0) -> None:
    batch = build_batch([(timestamp, b"key", bytes(size), ())])
    append_as_leader(log, batch, leader_epoch=epoch, now_ms=0)


def restart(
    disk: SimDisk, log: PartitionLog, *, power_loss: bool, recovery_point: int = 0
) -> PartitionLog:
    log.release()
    disk.restart(power_loss=power_loss)
    return open_log(recovery_point=recovery_point)


def times(batches: list[Batch]) -> list[int]:
    """What `append` told the batches apart by."""
    return [batch.header.max_timestamp for batch in batches]


def is_first_part(found: list[int], whole: list[int]) -> bool:
    return found == whole[: len(found)]


@pytest.mark.parametrize("crash_after", range(12))
def test_what_a_killed_truncation_cut_does_not_come_back_among_later_records(
    disks: Callable[[], Iterator[SimDisk]], crash_after: int
) -> None:
    for disk in disks():
        log = open_log()
        for number in range(4):
            append(log, timestamp=number)
            if number == 2:
                log.roll(0)
        log.flush()
        disk.crash_after = crash_after
        try:
            log.truncate_to(1)
        except Crashed:
            log = restart(disk, log, power_loss=False)
        disk.crash_after = None
        kept = times(read_all(log))
        for number in (10, 11, 12):
            append(log, timestamp=number)
        log = restart(disk, log, power_loss=True)
        found = times(read_all(log))
        assert found[: len(kept)] == kept
        assert is_first_part(found, [*kept, 10, 11, 12])
        assert [item for item in verify_folder(FOLDER) if isinstance(item, Problem)] == []


@pytest.mark.parametrize("crash_after", range(16))
def test_a_segment_that_a_killed_truncation_removed_does_not_come_back(
    disks: Callable[[], Iterator[SimDisk]], crash_after: int
) -> None:
    for disk in disks():
        log = open_log()
        for offset in (3, 4):  # what lay before was compacted
            batch = build_batch([(offset, b"key", b"", ())], base_offset=offset)
            log.append_as_follower(batch, now_ms=0)
        log.flush()
        disk.crash_after = crash_after
        try:
            log.truncate_to(2)
        except Crashed:
            log = restart(disk, log, power_loss=False)
        disk.crash_after = None
        kept = times(read_all(log))
        append(log, timestamp=10)
        log = restart(disk, log, power_loss=True)
        assert is_first_part(times(read_all(log)), [*kept, 10])
        assert [item for item in verify_folder(FOLDER) if isinstance(item, Problem)] == []
        log.release()


def test_an_outdated_leader_epoch_checkpoint_does_not_outlive_recovery(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, now_ms=0)
    for epoch in (1, 1, 3, 3):
        append(log, epoch=epoch)
    log.release()
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n2 1\n")
    log = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, now_ms=0)
    assert log.leader_epochs.entries == [(1, 0), (3, 2)]
    log.release()
    again = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, recovery_point=4, now_ms=0)
    assert again.leader_epochs.entries == [(1, 0), (3, 2)]


def test_an_epoch_whose_first_batches_were_compacted_keeps_its_start(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, now_ms=0)
    for offset, epoch in ((0, 0), (7, 3), (8, 3)):
        batch = build_batch(
            [(0, b"key", b"value", ())], base_offset=offset, partition_leader_epoch=epoch
        )
        log.append_as_follower(batch, now_ms=0)
    log.release()
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n1 2\n3 5\n")
    log = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, now_ms=0)
    assert log.leader_epochs.entries == [(0, 0), (1, 2), (3, 5)]


def test_a_temporary_file_that_a_crash_left_is_not_written_again(
    disks: Callable[[], Iterator[SimDisk]],
) -> None:
    path = Path("/disk/data/some-checkpoint")
    for disk in disks():
        disk.put(f"{path}.tmp", b"from long ago")
        atomic_write(path, b"new", sync=False)
        disk.restart(power_loss=True)
        assert read_file(path) in (None, b"", b"new", bytes(3))


@pytest.mark.parametrize("crash_after", range(4, 20))
def test_a_truncation_across_segments_leaves_no_hole(
    disks: Callable[[], Iterator[SimDisk]], crash_after: int
) -> None:
    for disk in disks():
        log = open_log()
        for number in range(6):
            append(log, timestamp=number)
            if number % 2:
                log.roll(0)
        log.flush()
        disk.crash_after = crash_after
        try:
            log.truncate_to(1)
        except Crashed:
            log = restart(disk, log, power_loss=True, recovery_point=6)
        disk.crash_after = None
        found = times(read_all(log))
        assert found
        assert is_first_part(found, list(range(6)))
        log.release()


def test_producers_are_known_after_an_orderly_stop_and_a_loss_of_power(
    disks: Callable[[], Iterator[SimDisk]],
) -> None:
    for disk in disks():
        log = open_log()
        batch = build_batch(
            [(0, b"key", b"value", ())], producer_id=5, producer_epoch=0, base_sequence=0
        )
        append_as_leader(log, bytearray(batch), leader_epoch=0, now_ms=0)
        for _ in range(3):
            log.close()
            disk.restart(power_loss=True)
            log = PartitionLog.open(
                FOLDER, TOPIC_PARTITION, CONFIG, recovery_point=1, clean_shutdown=True, now_ms=0
            )
        assert append_as_leader(log, batch, leader_epoch=0, now_ms=0).duplicate
        log.release()


def test_a_start_that_lay_behind_what_was_lost_does_not_go_back(
    disks: Callable[[], Iterator[SimDisk]],
) -> None:
    for disk in disks():
        log = open_log()
        append(log)
        log.flush()
        for _ in range(3):
            append(log)
        log.delete_records_before(4)
        log.release()
        for start in (4, 0):  # its checkpoint has no entry once the first segment begins there
            disk.restart(power_loss=True)
            log = PartitionLog.open(
                FOLDER, TOPIC_PARTITION, CONFIG, log_start_offset=start, now_ms=0
            )
            if log.log_end_offset == 4 and log.segments.first.base_offset == 0:
                break  # nothing was lost
            assert log.log_start_offset == 4
            log.release()


def test_what_follows_a_truncation_before_the_start_is_not_taken_for_deleted(
    disks: Callable[[], Iterator[SimDisk]],
) -> None:
    config = BrokerConfig.from_properties({"log.dirs": "/disk/data", "node.id": "1"})

    def start() -> LogManager:
        manager = LogManager(config, now_ms=lambda: 0, random=Random(1), threads=own_threads)
        manager.load(lambda _: CONFIG)
        return manager

    for disk in disks():
        manager = start()
        log = manager.get_or_create(TOPIC_PARTITION, None, CONFIG)
        for number in range(4):
            append(log, timestamp=number)
        log.delete_records_before(3)
        manager.checkpoints.write_start_offsets()
        cut_now(manager, TOPIC_PARTITION, 1)
        append(log, timestamp=10)
        log.flush()
        manager.close(clean=False)
        disk.restart(power_loss=True)
        manager = start()
        assert times(read_all(manager.logs[TOPIC_PARTITION]))[-1] == 10
        manager.close(clean=False)


@pytest.mark.parametrize(("cut", "left"), [(3, []), (4, [3]), (6, [3])])
def test_a_compacted_log_still_ends_after_a_restart_where_it_was_cut(
    tmp_path: Path, cut: int, left: list[int]
) -> None:
    log = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, now_ms=0)
    for offset in (3, 6, 7):  # what lay before and between was compacted
        log.append_as_follower(build_batch([(0, b"key", b"", ())], base_offset=offset), now_ms=0)
    log.truncate_to(cut)
    assert log.log_end_offset == cut
    log.close()
    log = PartitionLog.open(
        tmp_path, TOPIC_PARTITION, CONFIG, recovery_point=cut, clean_shutdown=True, now_ms=0
    )
    assert log.log_end_offset == cut
    append(log, timestamp=9)
    assert [batch.base for batch in read_all(log)] == [*left, cut]


def test_a_truncation_that_a_full_disk_ends_leaves_no_epoch_behind_the_end() -> None:
    """Steps that the crash model once found. The truncation removes all segments and then cannot
    create one: the restart begins a new log at 0, where epoch 1 began at 1.
    """
    machine = CrashMachine()
    machine.begin(seed=0)
    machine.append_idempotent(producer_id=1, count=1, size=0)
    machine.roll()
    for _ in range(6):
        machine.checkpoint()
    machine.append(count=1, size=0, in_new_epoch=True, codec=Compression.NONE)
    machine.stop_and_start(power_loss=False)
    machine.disk_fails_soon(name="full", after=5)
    machine.retain(keep_bytes=1, is_deferred=True)
    machine.append_in_transaction(count=1)
    machine.truncate(share=0.0)
    assert machine.log.log_end_offset == 0
    machine.teardown()


def test_a_start_writes_the_epochs_that_it_cuts(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path, TOPIC_PARTITION, CONFIG, now_ms=0)
    for epoch in range(4):
        append(log, epoch=epoch)
    log.close()
    checkpoint = tmp_path / names.LEADER_EPOCHS
    assert checkpoint.read_text() == "0\n4\n0 0\n1 1\n2 2\n3 3\n"
    checkpoint.write_text("0\n5\n0 0\n1 1\n2 2\n3 3\n9 7\n")
    log = PartitionLog.open(
        tmp_path,
        TOPIC_PARTITION,
        CONFIG,
        recovery_point=4,
        log_start_offset=2,
        clean_shutdown=True,
        now_ms=0,
    )
    assert log.leader_epochs.entries == [(2, 2), (3, 3)]
    assert checkpoint.read_text() == "0\n2\n2 2\n3 3\n"
    log.release()


def cut_in_worker(log: PartitionLog, offset: int, *, is_full: bool = False) -> None:
    cut = log.begin_cut(offset, is_full=is_full, now_ms=0, then=lambda: None)
    assert cut is not None
    cut.work()
    cut.end(None)


OPERATIONS: dict[str, Callable[[PartitionLog], object]] = {
    "truncate within the last segment": lambda log: log.truncate_to(11),
    "truncate to a segment's base": lambda log: log.truncate_to(8),
    "truncate across segments": lambda log: log.truncate_to(6),
    "truncate to the first segment's base": lambda log: log.truncate_to(4),
    "truncate before the first segment": lambda log: log.truncate_to(2),
    "truncate fully, to before the start": lambda log: truncate_fully(log, 1, now_ms=0),
    "truncate fully, to behind the end": lambda log: truncate_fully(log, 30, now_ms=0),
    "truncate in a worker across segments": lambda log: cut_in_worker(log, 6),
    "truncate in a worker before the first segment": lambda log: cut_in_worker(log, 2),
    "truncate fully in a worker": lambda log: cut_in_worker(log, 30, is_full=True),
    "roll": lambda log: log.roll(0),
    "retire what lies before the start": lambda log: (
        log.delete_records_before(9) and log.delete_old_segments(0)
    ),
    "retire everything": lambda log: (
        log.update_config(replace(CONFIG, retention_bytes=0)) or log.delete_old_segments(0)
    ),
}


@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("fault", ["full", "broken for writes", "broken at fsync"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_failing_disk_leaves_of_an_operation_is_a_sound_log_after_the_next_start(
    name: str, fault: str, power_loss: bool
) -> None:
    """The disk fails at the first of the operation's changes of a file, at the second, and so on,
    until the operation succeeds.
    """
    is_done = False
    after = 0
    while not is_done:
        disk = SimDisk(Random(after))
        disk.make_root("/disk/data")
        with disk.installed():
            is_done = fail_at(disk, name, fault, after, power_loss=power_loss)
        after += 1
    assert after > 5 or fault != "broken for writes", "the fault was never met"


def fail_at(disk: SimDisk, name: str, fault: str, after: int, *, power_loss: bool) -> bool:
    """Run the operation on a flushed log from offset 4 to 12, in two segments and of four leader
    epochs, while the disk fails; then start again. Returns whether the operation succeeded.
    """
    log = open_log()
    for number in range(12):
        batch = build_batch(
            [(number, b"key", bytes(10), ())], producer_id=7, producer_epoch=0, base_sequence=number
        )
        append_as_leader(log, batch, leader_epoch=number // 2, now_ms=0)
        if number in (3, 7):
            log.roll(0)
    log.delete_records_before(4)
    log.delete_old_segments(0)
    log.flush()
    disk.inject(fault, after)
    try:
        OPERATIONS[name](log)
        is_done = True
    except LogDirectoryError:
        is_done = False
    disk.mend()
    log = restart(disk, log, power_loss=power_loss, recovery_point=11)
    found = times(read_all(log))
    assert is_first_part(found, list(range(log.log_start_offset, 12)))
    if not name.startswith("truncate"):
        assert log.log_end_offset == 12
    assert [item for item in verify_folder(FOLDER) if isinstance(item, Problem)] == []
    kinds = [names.parse_offset_name(file) for file, _, _ in list_directory(FOLDER)]
    snapshots = [kind[0] for kind in kinds if kind is not None and kind[1:] == (names.SNAPSHOT, "")]
    assert all(log.log_start_offset < offset <= log.log_end_offset for offset in snapshots)
    log.release()
    return is_done
