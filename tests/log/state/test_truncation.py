"""The segments after a truncation, and what is updated with them: epochs, producers, offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state import truncation
from kbroker.log.state.truncation import cut_segments, remove_segments, truncate_fully, truncate_to
from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.protocol.batches.batch_builder import build_batch
from tests.log.open_log import delete_due_files
from tests.log.state.logs import NOW_MS, append, open_log, produce


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Offsets 0 to 29 in segments at 0, 10 and 20, each of its own leader epoch."""
    log = open_log(tmp_path)
    for epoch in range(3):
        append(log, 10, epoch=epoch)
        if epoch < 2:
            log.roll(NOW_MS)
    assert log.segments.base_offsets == [0, 10, 20]
    return log


@pytest.mark.parametrize(
    ("offset", "bases", "epochs"),
    [
        pytest.param(29, [0, 10, 20], [(0, 0), (1, 10), (2, 20)], id="within the active segment"),
        pytest.param(21, [0, 10, 20], [(0, 0), (1, 10), (2, 20)], id="all but its first"),
        pytest.param(20, [0, 10, 20], [(0, 0), (1, 10)], id="the base of the active segment"),
        pytest.param(19, [0, 10], [(0, 0), (1, 10)], id="within a closed segment"),
        pytest.param(10, [0, 10], [(0, 0)], id="the base of a closed segment"),
        pytest.param(0, [0], [], id="everything"),
    ],
)
def test_the_end_of_the_log(
    log: PartitionLog, offset: int, bases: list[int], epochs: list[tuple[int, int]]
) -> None:
    assert truncate_to(log, offset, now_ms=NOW_MS)
    assert log.log_end_offset == log.segments.active.next_offset() == offset
    assert log.segments.base_offsets == bases
    assert log.leader_epochs.entries == epochs
    assert log.truncation_count == 1
    log.check()
    append(log, 1, epoch=5)
    assert log.log_end_offset == offset + 1


@pytest.mark.parametrize("offset", [30, 31, 1000])
def test_at_the_end_or_behind_it_nothing_is_cut(log: PartitionLog, offset: int) -> None:
    assert not truncate_to(log, offset, now_ms=NOW_MS)
    assert (log.log_end_offset, log.truncation_count) == (30, 0)


def test_a_negative_offset_is_a_fault_of_the_caller(log: PartitionLog) -> None:
    with pytest.raises(InvariantError, match="truncation to -1"):
        truncate_to(log, -1, now_ms=NOW_MS)
    assert log.log_end_offset == 30


def test_a_batch_that_contains_the_offset_goes_as_a_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for base in (0, 5):
        batch = build_batch([(NOW_MS, None, b"v", [])] * 5, base_offset=base)
        log.append_as_follower(batch, now_ms=NOW_MS)
    truncate_to(log, 7, now_ms=NOW_MS)
    assert log.segments.first.next_offset() == 5
    assert log.segments.base_offsets == [0, 7], "a new segment keeps the end"
    assert log.log_end_offset == 7
    append(log)
    assert log.log_end_offset == 8


def test_offsets_of_the_state_follow(log: PartitionLog) -> None:
    log.high_watermark, log.cleaner_offset, log.recovery_point = 25, 20, 28
    log.log_start_offset = 15
    flush = log.begin_flush(30)
    truncate_to(log, 12, now_ms=NOW_MS)
    assert (log.high_watermark, log.cleaner_offset, log.recovery_point) == (12, 12, 12)
    assert log.log_start_offset == 12
    flush.finish()
    assert log.recovery_point == 12, "a flush that was under way does not count beyond the cut"


def test_offsets_below_the_cut_stay(log: PartitionLog) -> None:
    log.high_watermark, log.cleaner_offset, log.recovery_point = 8, None, 9
    truncate_to(log, 12, now_ms=NOW_MS)
    assert (log.high_watermark, log.cleaner_offset, log.recovery_point) == (8, None, 9)


def test_producers_forget_what_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(6):
        produce(log, 7, sequence)
    produce(log, 8, 0)
    truncate_to(log, 4, now_ms=NOW_MS)
    assert log.producers.active_producers[7].last_sequence == 3
    assert 8 not in log.producers.active_producers


def test_below_the_first_segment_the_log_begins_anew(log: PartitionLog) -> None:
    log.log_start_offset = 10
    remove_segments(log, [log.segments.first], now_ms=NOW_MS)
    assert truncate_to(log, 4, now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (4, 4, 0)
    assert log.segments.base_offsets == [4]
    assert log.leader_epochs.entries == []


@pytest.mark.parametrize("offset", [0, 15, 30, 500])
def test_a_full_truncation_begins_where_it_is_told(log: PartitionLog, offset: int) -> None:
    truncate_fully(log, offset, now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (offset, offset, 0)
    assert log.segments.base_offsets == [offset]
    assert log.snapshots.offsets in ([], [offset])
    log.check()
    append(log)
    assert log.log_end_offset == offset + 1


def test_after_compaction_a_new_segment_keeps_the_end(tmp_path: Path) -> None:
    """The records before the offset were removed by compaction: the segment ends before it."""
    log = open_log(tmp_path)
    append(log, 3)
    later = build_batch([(NOW_MS, b"k", b"v", [])], base_offset=10)
    log.append_as_follower(later, now_ms=NOW_MS)
    cut_segments(log, 8, now_ms=NOW_MS)
    assert log.segments.base_offsets == [0, 8]
    assert log.segments.active.next_offset() == 8
    assert log.segments.first.next_offset() == 3


def test_snapshots_go_with_their_segments(log: PartitionLog) -> None:
    assert log.snapshots.offsets == [10, 20]
    remove_segments(log, [log.segments[2]], now_ms=NOW_MS)
    assert log.snapshots.offsets == [10]
    due = NOW_MS + log.config.file_delete_delay_ms
    assert delete_due_files(log.segments, due - 1) == 0
    names_before = {path.name for path in log.directory.iterdir()}
    assert names.offset_name(20, names.SNAPSHOT) + names.DELETED in names_before
    assert delete_due_files(log.segments, due) == 4
    assert not list(log.directory.glob("*.deleted"))


def test_renames_are_left_to_a_worker_on_demand(log: PartitionLog) -> None:
    remove_segments(log, [log.segments.first], now_ms=NOW_MS, defer=True)
    assert log.jobs.is_pending and not list(log.directory.glob("*.deleted"))
    log.jobs.settle()
    assert list(log.directory.glob("*.deleted"))


@pytest.mark.parametrize("cut", [truncate_to, truncate_fully])
def test_a_disk_that_fails_ends_the_log(
    log: PartitionLog, cut: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = LogDirectoryError(log.directory, "sync", OSError(5, "Input/output error"))

    def fail(path: object) -> None:
        raise failure

    assert callable(cut)
    monkeypatch.setattr(truncation, "sync_directory", fail)
    with pytest.raises(LogDirectoryError):
        cut(log, 5, now_ms=NOW_MS)
    assert log.failure is failure
