"""An immediate roll, a queued one, and the log's state afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.rolling import begin_roll, roll_now, settle_jobs, settle_roll
from kbroker.log.storage import segment
from kbroker.log.storage.files import LogDirectoryError
from tests.log.state.logs import NOW_MS, append, open_log


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    log = open_log(tmp_path)
    append(log, 3)
    return log


def test_an_empty_segment_at_the_end_is_not_rolled(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert roll_now(log, NOW_MS) is log.segments.first
    assert roll_now(log, NOW_MS, 5) is not log.segments.first
    assert log.segments.base_offsets == [0, 5]


@pytest.mark.parametrize(("asked", "base"), [(0, 3), (2, 3), (3, 3), (7, 7)])
def test_a_segment_begins_at_the_end_of_the_log_or_behind_it(
    log: PartitionLog, asked: int, base: int
) -> None:
    assert roll_now(log, NOW_MS, asked) is log.segments.active
    assert log.segments.base_offsets == [0, base]
    assert log.snapshots.latest == base == log.last_snapshot_offset
    assert log.roll_under_way is None


def test_the_recovery_point_stays_before_the_roll_until_it_is_flushed(log: PartitionLog) -> None:
    """The indexes of the closed segment were trimmed just now."""
    log.flush()
    assert log.recovery_point == 3
    roll_now(log, NOW_MS)
    assert log.recovery_point == 2
    log.flush()
    assert log.recovery_point == 3


def test_a_flush_that_was_under_way_does_not_cover_the_closed_segment(log: PartitionLog) -> None:
    flush = log.begin_flush(3)
    roll_now(log, NOW_MS)
    flush.sync()
    flush.finish()
    assert log.recovery_point == 2


def test_one_roll_is_under_way_at_most(log: PartitionLog) -> None:
    roll = begin_roll(log, NOW_MS, 3)
    assert begin_roll(log, NOW_MS, 3) is roll is log.roll_under_way
    assert len(log.segments) == 1
    settle_roll(log)
    assert log.segments.base_offsets == [0, 3] and log.roll_under_way is None
    settle_roll(log)
    assert len(log.segments) == 2


def test_a_roll_in_the_queue_is_finished_before_another(log: PartitionLog) -> None:
    begin_roll(log, NOW_MS, 3)
    assert roll_now(log, NOW_MS) is log.segments.active
    assert log.segments.base_offsets == [0, 3]


def test_the_owner_of_the_log_is_told_once(log: PartitionLog) -> None:
    told: list[PartitionLog] = []
    log.on_rolled = told.append
    begin_roll(log, NOW_MS, 3)
    assert told == []
    settle_jobs(log)
    assert told == [log]


def test_a_log_that_is_released_during_a_roll_gets_no_segment(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = segment.create_file
    told: list[PartitionLog] = []
    log.on_rolled = told.append
    roll = begin_roll(log, NOW_MS, 3)

    def release(path: str, size: int = 0) -> None:
        log.release()
        create(path, size)

    monkeypatch.setattr(segment, "create_file", release)
    roll.work()
    assert log.closed
    roll.end(None)
    assert told == [] and log.segments.base_offsets == [0]


def test_the_index_interval_may_have_changed_meanwhile(log: PartitionLog) -> None:
    begin_roll(log, NOW_MS, 3)
    log.config = log.config.__class__(index_interval_bytes=77)
    settle_roll(log)
    assert log.segments.active.index_interval_bytes == 77


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_disk_that_fails_leaves_the_log_with_the_segments_it_had(
    log: PartitionLog, is_queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LogDirectoryError(log.directory, "create", OSError(5, "Input/output error"))

    monkeypatch.setattr("kbroker.log.storage.segment.create_file", fail)
    if is_queued:
        begin_roll(log, NOW_MS, 3)
    for _ in range(2):
        with pytest.raises(LogDirectoryError, match="Input/output error"):
            if is_queued:
                settle_roll(log)
            else:
                roll_now(log, NOW_MS)
    assert log.segments.base_offsets == [0] and log.log_end_offset == 3
