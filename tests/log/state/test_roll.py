"""A roll whose files a worker creates: what may happen meanwhile, and which operations complete the
roll themselves.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log.append_cost import LoopBudget
from kbroker.log.append_request import AppendRequest
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import Appended
from kbroker.log.state.roll import Roll, RollDue
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.sim.timers import SimTimers

NOW_MS = 1_700_000_000_000
KEY = TopicPartition("events", 0)
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100, segment_index_bytes=1200)

Open = Callable[..., PartitionLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Open]:
    logs = []

    def opened(name: str = "one", **options: object) -> PartitionLog:
        log = PartitionLog.open(tmp_path / name / str(KEY), KEY, CONFIG, now_ms=NOW_MS, **options)  # type: ignore[arg-type]  # of the test's own calls
        log.leader_epochs.assign(0, log.log_end_offset)
        logs.append(log)
        return log

    yield opened
    for log in logs:
        log.close()


def batch(number: int) -> bytearray:
    return build_batch(
        [(NOW_MS + number, b"key", bytes(80), [])],
        producer_id=5,
        producer_epoch=0,
        base_sequence=number,
    )


def append(log: PartitionLog, *, defer_roll: bool = True) -> RollDue | None:
    """Append the next batch. Returns why it is postponed."""
    outcome = log.append(
        batch(log.log_end_offset),
        0,
        AppendRequest(1, 0, NOW_MS, 9),
        LoopBudget(SimTimers()) if defer_roll else None,
    )
    if isinstance(outcome, RollDue):
        return outcome
    assert isinstance(outcome, Appended)
    return None


def fill(log: PartitionLog) -> Roll:
    """Append up to the batch that needs a new segment."""
    while True:
        before = log.log_end_offset
        due = append(log)
        if due is not None:
            assert log.log_end_offset == before
            assert due.roll.base_offset == before
            return due.roll


def files_of(log: PartitionLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(log.directory.iterdir())}


def records_of(log: PartitionLog) -> int:
    """How many offsets a reader gets from the log start on, segment by segment."""
    at = log.log_start_offset
    while at < log.log_end_offset:
        at = log.read(at, max_bytes=1 << 20).end_offset
    return at


def test_files_are_those_of_a_roll_on_the_loop(open_log: Open) -> None:
    worked, at_once = open_log("one"), open_log("two")
    for _ in range(3):
        roll = fill(worked)
        before = files_of(worked)
        assert len(worked.segments) == len(at_once.segments)
        roll.work()
        assert files_of(worked) != before
        assert worked.segments.active.size, "the old one still"
        roll.end(None)
        append(worked)
        while at_once.log_end_offset < worked.log_end_offset:
            append(at_once, defer_roll=False)
        assert files_of(worked) == files_of(at_once)
        assert worked.recovery_point == at_once.recovery_point
        assert worked.segments.base_offsets == at_once.segments.base_offsets
    assert records_of(worked) == worked.log_end_offset


def test_the_next_batch_does_not_slip_into_the_old_segment(open_log: Open) -> None:
    """A smaller batch would fit, but be after the offset where the new segment begins."""
    log = open_log()
    roll = fill(log)
    small = build_batch([(NOW_MS, None, b"", [])])
    due = log.append(small, 0, AppendRequest(1, 0, NOW_MS), LoopBudget(SimTimers()))
    assert isinstance(due, RollDue)
    assert due.roll is roll


@pytest.mark.parametrize("is_made", [False, True])
def test_who_cannot_wait_does_what_is_left(open_log: Open, is_made: bool) -> None:
    log = open_log()
    roll = fill(log)
    if is_made:
        roll.work()
    base_offset = log.log_end_offset
    append_as_leader(
        log,
        build_batch([(NOW_MS, b"group", b"offset", [])]),
        leader_epoch=0,
        now_ms=NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )
    assert log.segments.base_offsets == [0, base_offset]
    files = files_of(log)
    roll.work()
    roll.end(None)
    assert files_of(log) == files, "the worker comes too late and changes nothing"
    assert log.segments.active.size
    assert records_of(log) == base_offset + 1


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("to", ["end", "middle", "start"])
def test_a_cut_comes_after_it(open_log: Open, is_made: bool, to: str) -> None:
    log = open_log()
    roll = fill(log)
    if is_made:
        roll.work()
    end = log.log_end_offset
    offset = {"end": end, "middle": end // 2, "start": 0}[to]
    log.truncate_to(offset, now_ms=NOW_MS)
    roll.work()
    roll.end(None)
    assert log.log_end_offset == offset
    bases = log.segments.base_offsets.copy()
    append(log)
    assert log.segments.base_offsets == bases, "there is room in what is the active one now"
    log.truncate_to(offset, now_ms=NOW_MS)
    log.close()
    again = open_log(recovery_point=offset, clean_shutdown=True)
    assert (again.log_end_offset, records_of(again)) == (offset, offset)
    append(again)


def test_a_closed_log_is_whole(open_log: Open) -> None:
    log = open_log()
    roll = fill(log)
    end = log.log_end_offset
    log.close()
    files = files_of(log)
    roll.work()
    roll.end(None)
    assert files_of(log) == files
    again = open_log(recovery_point=end, clean_shutdown=True)
    assert again.segments.base_offsets == [0, end]


def test_a_folder_that_is_renamed_takes_the_new_segment_along(open_log: Open) -> None:
    log = open_log()
    roll = fill(log)
    folder = log.directory
    target = log.mark_for_deletion("0" * 32)
    roll.work()
    roll.end(None)
    assert not folder.exists()
    assert f"{log.log_end_offset:020}.log" in {path.name for path in target.iterdir()}


def test_a_log_let_go_after_a_fault_is_left_alone(open_log: Open) -> None:
    log = open_log()
    roll = fill(log)
    log.release()
    files = files_of(log)
    roll.work()
    roll.end(None)
    assert files_of(log) == files
    assert log.failure is None


def test_a_flush_meanwhile_does_not_count_the_indexes(open_log: Open) -> None:
    log = open_log()
    roll = fill(log)
    end = log.log_end_offset
    flush = log.begin_flush()
    roll.work()
    roll.end(None)
    flush.sync()
    flush.finish()
    assert log.recovery_point == end - 1, "the indexes were closed after it had begun"
    log.flush()
    assert log.recovery_point == end


def test_an_index_that_is_unloaded_meanwhile(open_log: Open) -> None:
    log, twin = open_log("one"), open_log("two")
    roll = fill(log)
    active = log.segments.active
    active.release()  # as OpenFiles does
    roll.work()
    assert active.offset_index.lookup(5)[0] > 0
    roll.end(None)
    append(log)
    while twin.log_end_offset < log.log_end_offset:
        append(twin, defer_roll=False)
    assert files_of(log) == files_of(twin)
    assert log.segments.first.offset_index.entries() == twin.segments.first.offset_index.entries()


def test_an_index_that_is_made_anew_meanwhile(open_log: Open) -> None:
    log = open_log()
    roll = fill(log)
    index = log.segments.active.offset_index
    entries = index.entries()
    index.reset()
    for offset, position in entries[::2]:
        index.append(offset, position)
    index.write_pending()
    roll.work()
    roll.end(None)
    index.unload()
    assert index.entries() == entries[::2]


def test_files_are_made_once(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    roll = fill(log)
    roll.work()
    monkeypatch.delattr("kbroker.log.storage.segment.create_file")
    append(log, defer_roll=False)
    assert len(log.segments) == 2


@pytest.mark.parametrize("which", ["worker", "surprise", "loop"])
def test_a_fault_ends_the_log(open_log: Open, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    roll = fill(log)
    full = LogDirectoryError(log.directory, "create", OSError(errno.ENOSPC, "no space"))

    def fail(*_: object, **__: object) -> None:
        raise full

    monkeypatch.setattr("kbroker.log.storage.segment.create_file", fail)
    if which == "worker":
        with pytest.raises(LogDirectoryError):
            roll.work()
        roll.end(full)
    elif which == "surprise":
        roll.end(OSError("ZeroDivisionError: in the thread"))
    else:
        with pytest.raises(LogDirectoryError):
            append(log, defer_roll=False)
    assert log.failure is not None
    with pytest.raises(LogDirectoryError):
        append(log)


def test_an_empty_segment_is_not_rolled_again(open_log: Open) -> None:
    """Where indexes have no room for one entry every append asks for a new segment."""
    log = open_log()
    log.update_config(replace(CONFIG, segment_index_bytes=4))
    roll = fill(log)
    roll.work()
    roll.end(None)
    append(log)
    assert fill(log).base_offset == log.log_end_offset


def test_open_files_are_counted_as_ever(open_log: Open) -> None:
    log = open_log(open_files=OpenFiles(4))
    for _ in range(6):
        roll = fill(log)
        roll.work()
        roll.end(None)
    assert sum(segment.file is not None for segment in log.segments) <= 4
    assert records_of(log) == log.log_end_offset


def test_a_roll_waits_behind_the_names_of_retired_segments(open_log: Open) -> None:
    """A worker runs one queue; the loop that rolls by itself does not wait for the renames."""
    log = open_log()
    roll = fill(log)
    roll.work()
    roll.end(None)
    append(log)
    log.delete_records_before(log.segments.active.base_offset)
    assert log.delete_old_segments(NOW_MS, defer=True) == 1
    roll = fill(log)
    assert log.jobs.is_pending
    roll.work()
    assert not log.jobs.is_pending
    roll.end(None)
    assert len(log.segments) == 2
    log.delete_records_before(log.segments.active.base_offset)
    assert log.delete_old_segments(NOW_MS, defer=True) == 1
    append(log)
    log.roll(NOW_MS)
    assert log.jobs.is_pending
    log.check()
