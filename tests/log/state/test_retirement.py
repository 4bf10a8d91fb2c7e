"""The files of retired segments wait to be renamed by a worker: which operations do not wait for
that, and the files after a kill, a stop and a fault.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.flush import DirectoryNames
from kbroker.log.storage import disk_jobs
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.cuts import cut_now
from tests.own_threads import own_threads

NOW_MS = 1_700_000_000_000
KEY = TopicPartition("topic", 0)
TOPIC_ID = bytes(range(16))
CONFIG = LogConfig(file_delete_delay_ms=0, retention_ms=-1)
SEGMENTS = 3
"""Closed segments of two records each; two of them are retired."""
START = 4
NAMES = 3 + 4
"""The two segments' files, and a snapshot."""


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], tuple[LogManager, PartitionLog]]:
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path), "node.id": "1"})

    def start() -> tuple[LogManager, PartitionLog]:
        manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
        manager.load(lambda topic: CONFIG)
        return manager, manager.get_or_create(KEY, TOPIC_ID, CONFIG)

    return start


Opened = Callable[[], tuple[LogManager, PartitionLog]]


def retired(opened: Opened) -> tuple[LogManager, PartitionLog]:
    """Two segments are removed from the log, and no file is renamed yet."""
    manager, log = opened()
    for number in range(2 * SEGMENTS + 1):
        batch = build_batch([(NOW_MS, b"key", b"%d" % number, [])])
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
        if number % 2:
            log.roll(NOW_MS)
    log.delete_records_before(START)
    manager.checkpoints.write_start_offsets()
    assert [count for _, count in manager.retire(NOW_MS, defer=True)] == [2]
    return manager, log


def names(log: PartitionLog) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir())


def work(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        assert log.jobs.work_one()


def test_the_names_are_those_that_retention_gives_at_once(opened: Opened) -> None:
    manager, log = retired(opened)
    assert not [name for name in names(log) if name.endswith(".deleted")]
    work(log, NAMES)
    assert not log.jobs.is_pending
    assert len([name for name in names(log) if name.endswith(".deleted")]) == NAMES
    assert manager.delete_due_files(NOW_MS) == 0, "on the loop nobody knows of them yet"
    log.jobs.collect()
    assert manager.delete_due_files(NOW_MS) == NAMES
    assert not [name for name in names(log) if name.endswith(".deleted")]
    manager.close()


def test_a_file_is_not_taken_for_deleted_before_it_has_the_name(opened: Opened) -> None:
    """With file.delete.delay.ms=0 it would be looked up under that name, and then remain."""
    manager, log = retired(opened)
    work(log, 1)
    log.jobs.collect()
    assert manager.delete_due_files(NOW_MS) == 1
    work(log, NAMES - 1)
    log.jobs.collect()
    assert manager.delete_due_files(NOW_MS) == NAMES - 1
    manager.close()


@pytest.mark.parametrize("done", range(NAMES + 1))
def test_a_kill_between_any_two_names(opened: Opened, done: int) -> None:
    """The log start offset that clients were told is kept, although the checkpoint was written
    meanwhile.
    """
    manager, log = retired(opened)
    work(log, done)
    manager.checkpoints.write_start_offsets()
    manager.checkpoints.write_recovery_points()
    manager.close(clean=False)
    manager, log = opened()
    assert (log.log_start_offset, log.log_end_offset) == (START, 2 * SEGMENTS + 1)
    found = log.read(START, max_bytes=1 << 20).records
    assert isinstance(found, FileSlice)
    assert not manager.offline_directories
    manager.close()


@pytest.mark.parametrize("done", range(NAMES + 1))
@pytest.mark.parametrize("change", ["stop", "delete", "truncate", "begin anew", "append"])
def test_a_change_between_any_two_names(opened: Opened, done: int, change: str) -> None:
    manager, log = retired(opened)
    work(log, done)
    match change:
        case "stop":
            manager.close()
        case "delete":
            assert manager.delete(KEY)
        case "truncate":
            cut_now(manager, KEY, START + 1)
        case "begin anew":  # a new segment where a retired one was
            cut_now(manager, KEY, 0)
            assert names(log)[0] == "00000000000000000000.index"
        case "append":
            append_as_leader(
                log, build_batch([(NOW_MS, b"key", b"new", [])]), leader_epoch=0, now_ms=NOW_MS
            )
            log.roll(NOW_MS)
    assert log.jobs.is_pending == (change == "append" and done < NAMES)
    assert not manager.offline_directories
    manager.close()
    manager, log = opened()
    start, end = {
        "delete": (0, 0),
        "truncate": (START, START + 1),
        "begin anew": (0, 0),
        "append": (START, 2 * SEGMENTS + 2),
    }.get(change, (START, 2 * SEGMENTS + 1))
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    assert log.segments.first.base_offset == start
    manager.close()


def test_a_flush_changes_the_names_before_it_syncs_them(opened: Opened) -> None:
    """Otherwise a retired segment that was never synced could reappear after a crash of the
    machine.
    """
    manager, log = retired(opened)
    files = log.begin_flush().files
    kinds = [type(file) for file in files]
    assert kinds.index(disk_jobs.DiskJobs) < kinds.index(DirectoryNames)
    for file in files:
        file.sync()
    assert not log.jobs.is_pending
    assert len([name for name in names(log) if name.endswith(".deleted")]) == NAMES
    manager.close()


def test_a_fault_stays_a_fault(opened: Opened) -> None:
    """Also at a clean stop: the directory is not marked as cleanly closed."""
    manager, log = retired(opened)

    def fail(source: str, target: str) -> None:
        raise LogDirectoryError(source, "rename", OSError(errno.EIO, target))

    with mock.patch.object(disk_jobs, "rename", fail), pytest.raises(LogDirectoryError):
        work(log, 1)
    manager.close()
    assert log.failure is not None and manager.offline_directories
    manager, log = opened()
    assert not manager.was_clean
    assert log.log_start_offset == START
    manager.close()
