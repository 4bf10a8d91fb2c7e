"""One partition log: what a flush syncs, and where the recovery point stands afterwards."""

from __future__ import annotations

import os

import pytest

from kbroker.log.state.flush import LogFlush
from kbroker.settings.views.log_config import LogConfig
from tests.log.open_log import OpenLog, append


def test_flush_moves_the_recovery_point(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(40):
        append(log)
    assert (log.recovery_point, log.is_flush_due) == (0, True)
    flush = log.begin_flush(log.segments.active.base_offset)
    flush.sync()
    flush.finish()
    assert not log.is_flush_due
    log.flush()
    assert log.recovery_point == 40
    assert log.begin_flush().files == []


def test_a_cut_during_a_flush_is_not_taken_for_synced(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(10):
        append(log)
    up_to = log.log_end_offset
    flush = log.begin_flush(up_to)
    log.truncate_to(4)
    for _ in range(10):
        append(log)
    flush.finish()
    assert log.recovery_point == 4


def test_a_cut_during_a_flush_while_another_one_begins(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(10):
        append(log)
    first = log.begin_flush(10)
    log.truncate_to(4)
    for _ in range(10):
        append(log)
    second = log.begin_flush(5)
    first.finish()
    assert log.recovery_point == 4
    second.finish()
    assert log.recovery_point == 5


def paths(flush: LogFlush) -> list[str]:
    return [file.path for file in flush.files]


def test_a_flush_that_failed_is_repeated_in_full(open_log: OpenLog) -> None:
    """Names, topic id, leader epochs and the folder's own name count as synced only then."""
    log = open_log()
    log.set_topic_id(bytes(range(16)))
    append(log, 3, epoch=7)
    failed = log.begin_flush()
    assert [os.path.basename(path) for path in paths(failed)] == [
        f"{0:020d}.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        log.directory.name,
        log.directory.parent.name,
    ]
    failed.finish(is_synced=False)
    again = log.begin_flush()
    assert paths(again) == paths(failed)
    again.sync()
    again.finish()
    assert log.begin_flush().files == []


def test_a_second_flush_does_not_rely_on_the_first(open_log: OpenLog) -> None:
    log = open_log()
    append(log, 3, epoch=7)
    first = log.begin_flush()
    second = log.begin_flush()
    assert paths(second) == paths(first)
    log.set_topic_id(bytes(range(16)))  # after both have begun
    for flush in (second, first):
        flush.sync()
        flush.finish()
    names_of_the_id = [str(log.directory / "partition.metadata"), str(log.directory)]
    assert paths(log.begin_flush()) == names_of_the_id


@pytest.mark.parametrize("during_flush", [False, True])
def test_a_roll_at_the_recovery_point_waits_for_its_indexes(
    open_log: OpenLog, during_flush: bool
) -> None:
    log = open_log()
    append(log)
    end = log.log_end_offset
    if during_flush:
        flush = log.begin_flush(end)
    else:
        log.flush()
    closed = log.segments.active
    log.roll(0)
    if during_flush:
        flush.finish()
    assert log.recovery_point < end
    assert log.is_flush_due
    flush = log.begin_flush(end)
    assert set(closed.file_paths()) <= set(paths(flush))
    flush.finish()
    assert (log.recovery_point, log.is_flush_due) == (end, False)


def test_flush_messages_makes_a_flush_due(open_log: OpenLog) -> None:
    log = open_log(LogConfig(flush_messages=3))
    append(log, 2)
    assert not log.is_flush_due
    append(log, 2)
    assert (log.is_flush_due, log.recovery_point) == (True, 0), "the append itself syncs nothing"
    log.flush()
    assert (log.is_flush_due, log.recovery_point) == (False, 4)


def test_a_flush_that_comes_late_leaves_the_files_of_a_new_log_alone(open_log: OpenLog) -> None:
    """The topic was deleted and created again while a flush was in progress."""
    log = open_log()
    append(log, 3, epoch=7)
    late = log.begin_flush().files
    log.mark_for_deletion("0" * 32)
    new = open_log()
    append(new, epoch=1)
    new.flush()
    checkpoint = new.leader_epochs.path.read_bytes()
    for file in late:
        file.sync()
    assert new.leader_epochs.path.read_bytes() == checkpoint
