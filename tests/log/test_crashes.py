"""Crashes that once left a log wrong: each by itself, on a simulated disk that loses, keeps, tears
and reorders what was not synced in a few hundred ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kbroker.log.files import atomic_write, read_file
from kbroker.log.partition_log import PartitionLog
from kbroker.log.verify import Problem, verify_folder
from kbroker.model import TopicPartition
from kbroker.protocol.records import build_batch
from kbroker.settings.log_config import LogConfig
from tests.log.crash_model import Batch, read_all
from tests.sim.disk import Crashed, SimDisk

TOPIC_PARTITION = TopicPartition("topic", 0)
FOLDER = Path("/disk/data/topic-0")
CONFIG = LogConfig(segment_bytes=2000, segment_index_bytes=240, index_interval_bytes=150)
WAYS = 150


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
    log.append_as_leader(batch, leader_epoch=epoch, now_ms=0)


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
