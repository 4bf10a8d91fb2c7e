"""The simulated disk: what a divided fsync makes durable, and a disk that is dead."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.sim.disk import SimDisk

SEEDS = range(20)


def file_on(disk: SimDisk) -> int:
    disk.make_root("/d")
    disk.put("/d/log", b"")
    return disk.open("/d/log", os.O_RDWR)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_fsync_covers_what_was_written_before_it_began(seed: int) -> None:
    disk = SimDisk(Random(seed))
    file = file_on(disk)
    disk.pwrite(file, b"a" * 64, 0)
    end = disk.begin_fsync(file)
    disk.pwrite(file, b"b" * 64, 64)
    end()
    disk.restart(power_loss=True)
    data = disk.read("/d/log")
    assert data[:64] == b"a" * 64 and len(data) <= 128


def test_what_is_written_during_an_fsync_may_be_lost_and_may_stay() -> None:
    kept = set()
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        file = file_on(disk)
        disk.pwrite(file, b"a" * 64, 0)
        end = disk.begin_fsync(file)
        disk.pwrite(file, b"b" * 64, 64)
        end()
        disk.restart(power_loss=True)
        kept.add(disk.read("/d/log")[64:])
    assert {b"", b"b" * 64} <= kept


def test_fsyncs_that_overlap_make_nothing_durable_twice() -> None:
    disk = SimDisk(Random(1))
    file = file_on(disk)
    disk.pwrite(file, b"a" * 64, 0)
    first = disk.begin_fsync(file)
    disk.pwrite(file, b"b" * 64, 0)
    second = disk.begin_fsync(file)
    second()
    first()
    disk.restart(power_loss=True)
    assert disk.read("/d/log") == b"b" * 64


def test_an_fsync_that_has_begun_and_a_truncation() -> None:
    disk = SimDisk(Random(1))
    file = file_on(disk)
    disk.pwrite(file, b"a" * 128, 0)
    end = disk.begin_fsync(file)
    disk.ftruncate(file, 64)
    disk.fsync(file)
    end()
    disk.restart(power_loss=True)
    assert disk.read("/d/log") == b"a" * 64


def test_a_dead_disk_refuses_everything_until_it_is_mended() -> None:
    disk = SimDisk(Random(1))
    file = file_on(disk)
    disk.inject("dead", 0)
    for operation in (
        lambda: disk.pwrite(file, b"a", 0),
        lambda: disk.pread(file, 1, 0),
        lambda: disk.fsync(file),
        lambda: disk.open("/d/log", os.O_RDWR),
        lambda: disk.begin_fsync(file)(),
    ):
        with pytest.raises(OSError, match="Input/output error"):
            operation()
    disk.mend()
    assert disk.pwrite(file, b"a", 0) == 1


def test_a_directory_on_a_dead_disk_is_none() -> None:
    disk = SimDisk(Random(1))
    disk.make_root("/d")
    assert disk.isdir("/d")
    disk.inject("dead", 0)
    assert not disk.isdir("/d")


def test_a_slow_disk_takes_longer() -> None:
    disk = SimDisk(Random(1))
    assert max(disk.latency_ms() for _ in range(100)) <= 2
    disk.slow_ms = 1_000
    assert max(disk.latency_ms() for _ in range(100)) > 500
