"""The renames of a swap, run one by one in a worker: what a reader finds meanwhile, which
operations wait for them, and the files after a crash, a stop and a fault.
"""

from __future__ import annotations

import dataclasses
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kbroker.log.cleaner import swap as swap_module
from kbroker.log.cleaner.swap import SwappedSegment
from kbroker.log.storage import disk_jobs
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.log.storage.index import CorruptIndexError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.protocol.batches.batch_builder import build_batch
from tests.log.cleaner.cleaning import TOPIC, Bench, records_of, say_flushed
from tests.sim.offload import HeldOffload
from tests.sim.timers import START_MS

GROUP = 2
"""Segments that are merged into one."""
KEYS = 6
TAIL = 3
"""Offsets after them, in the active segment."""


def filled(folder: Path, worker: HeldOffload, open_files: OpenFiles | None = None) -> Bench:
    """GROUP closed segments with an index of several entries, and the active one."""
    bench = Bench(folder, offload=worker, open_files=open_files, index_interval_bytes=100)
    for number in range(GROUP):
        for _ in range(5):
            append(bench, KEYS)
        bench.append(build_batch([(now(bench), b"only %d" % number, bytes(40), [])]))
        bench.roll()
    append(bench, TAIL)
    return bench


def now(bench: Bench) -> int:
    return START_MS + bench.log.log_end_offset


def append(bench: Bench, count: int) -> None:
    """A record each of the first keys."""
    first = bench.log.log_end_offset
    for number in range(count):
        row = (now(bench), b"key %d" % number, b"%d" % (first + number), [])
        bench.append(build_batch([row]))


def values(bench: Bench) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records_of(bench.log)}


def up_to_the_names(bench: Bench, worker: HeldOffload) -> None:
    """Clean until the new segment is in the log and no file has its final name yet."""
    say_flushed(bench.log)
    bench.log.on_high_watermark(bench.log.log_end_offset)
    bench.cleaner.look()
    while not bench.log.jobs.is_pending:
        assert worker.run_one()


def up_to_the_first_step(bench: Bench, worker: HeldOffload) -> None:
    """Clean until the worker is about to rename `.cleaned` -> `.swap`."""
    say_flushed(bench.log)
    bench.log.on_high_watermark(bench.log.log_end_offset)
    bench.cleaner.look()
    while bench.log.jobs.undo is None:
        assert worker.run_one()


def names_of_a_swap(folder: Path) -> int:
    worker = HeldOffload()
    bench = filled(folder, worker)
    up_to_the_names(bench, worker)
    count = 0
    while bench.log.jobs.work_one():
        count += 1
    while worker.run_one():
        pass
    bench.stop()
    assert count == 3 * GROUP + 3 + GROUP - 1  # files of old, of the new one, snapshots
    return count


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> int:
    return names_of_a_swap(tmp_path_factory.mktemp("count"))


def few_open_files() -> OpenFiles:
    """One file is open at a time, and an index is loaded as long as no other is."""
    return OpenFiles(1, index_bytes=0)


def leftovers(bench: Bench) -> list[str]:
    return [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


def test_readers_between_any_two_names(tmp_path: Path, count: int) -> None:
    """By offset and by time, with files that are opened and closed all the time."""
    for done in range(count + 1):
        worker = HeldOffload()
        bench = filled(tmp_path / str(done), worker, few_open_files())
        wanted = values(bench)
        end = bench.log.log_end_offset
        held = bench.log.read(0, max_bytes=1 << 20).records
        assert isinstance(held, FileSlice)
        before = held.read()
        up_to_the_names(bench, worker)
        for _ in range(done):
            assert bench.log.jobs.work_one()
        kept = [record.offset for record in records_of(bench.log)]
        assert values(bench) == wanted
        order = random.Random(done)
        for _ in range(20):
            # the other segment in between, so that this one's file would have to be closed
            assert bench.log.read(end - 1, max_bytes=100).records
            offset = order.randrange(end)
            found = bench.log.read(offset, max_bytes=100, min_one_batch=True).records
            assert isinstance(found, FileSlice) and found.read()
            following = next(each for each in kept if each >= offset)
            at = bench.log.offset_for_timestamp(START_MS + offset)
            assert at is not None and at.offset == following
        assert len(bench.log.segment_times()) == 2
        assert held.read() == before
        assert not bench.logs.offline_directories
        while worker.run_one():
            pass
        assert values(bench) == wanted
        assert not leftovers(bench)
        bench.stop()


def test_the_new_segment_is_one_like_any_other_in_the_end(tmp_path: Path) -> None:
    worker = HeldOffload()
    bench = filled(tmp_path, worker)
    up_to_the_names(bench, worker)
    segment = bench.log.segments.first
    assert isinstance(segment, SwappedSegment) and segment.open_files.limit == 1
    while worker.run_one():
        pass
    assert segment.open_files is bench.log.segments.open_files
    assert segment.file is None, "its file is counted when it is opened next"
    assert all(Path(path).exists() for path in segment.file_paths())
    bench.logs.delete_due_files(START_MS + 3_600_000)
    assert not [name for name in bench.names() if name.endswith(".deleted")]
    bench.stop()


def test_indexes_that_are_rebuilt_meanwhile_are_written_to_the_new_files(tmp_path: Path) -> None:
    worker = HeldOffload()
    bench = filled(tmp_path, worker)
    up_to_the_names(bench, worker)
    segment = bench.log.segments.first
    count = segment.offset_index.entry_count
    segment.index_interval_bytes *= 2
    assert segment.rebuild_indexes(CorruptIndexError("said so"))
    while worker.run_one():
        pass
    entries = segment.offset_index.entries()
    assert 0 < len(entries) < count
    bench.stop()
    bench.open()
    assert bench.log.segments.first.offset_index.entries() == entries
    bench.stop()


@pytest.mark.parametrize("change", ["delete", "truncate", "cut", "retire", "roll", "stop", "kill"])
def test_a_change_between_any_two_names(tmp_path: Path, count: int, change: str) -> None:
    for done in range(count + 1):
        worker = HeldOffload()
        bench = filled(tmp_path / str(done), worker)
        wanted = values(bench)
        log, end = bench.log, bench.log.log_end_offset
        up_to_the_names(bench, worker)
        for _ in range(done):
            assert log.jobs.work_one()
        match change:
            case "delete":
                assert bench.logs.delete(TOPIC)
                assert not log.jobs.is_pending
            case "truncate":
                log.truncate_to(end - TAIL)
                append(bench, TAIL)
            case "cut":  # within the new segment, to which its last record belongs
                log.truncate_to(end - TAIL - 1)
                assert not leftovers(bench)
                assert log.segments.active is log.segments.first
            case "retire":
                log.delete_records_before(end - TAIL)
                assert log.delete_old_segments(START_MS) == 1
            case "roll":
                bench.roll()
                append(bench, TAIL)
            case "stop":
                worker.held.clear()
                bench.stop()
            case "kill":
                bench.logs.close(clean=False)
        while worker.run_one():
            pass
        assert not bench.cleaner.uncleanable
        assert not bench.logs.offline_directories
        if change == "delete":
            continue
        if change not in ("stop", "kill"):
            assert not leftovers(bench)
            seen = values(bench)
            bench.stop()
            bench.open()
            assert values(bench) == seen
        else:
            bench.open()
        if change in ("stop", "kill"):
            assert values(bench) == wanted
        assert not leftovers(bench)
        assert bench.log.log_end_offset == end - {"cut": TAIL + 1, "roll": -TAIL}.get(change, 0)
        assert bench.log.log_start_offset == (end - TAIL if change == "retire" else 0)
        bench.stop()


class Between:
    """Replaces a swap's lock: runs a callback before it is acquired for the nth time."""

    def __init__(self, turn: int, action: Callable[[], None]) -> None:
        self.turn = turn
        self.action = action

    def __enter__(self) -> None:
        self.turn -= 1
        if self.turn == -1:
            self.action()

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("change", ["truncate", "retire"])
@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_swap_that_has_only_begun_is_undone_by_a_cut(
    tmp_path: Path, change: str, done: int
) -> None:
    """Otherwise a crash right after the truncation would restore the truncated records. done:
    names, of three.
    """
    worker = HeldOffload()
    bench = filled(tmp_path, worker)
    log, end = bench.log, bench.log.log_end_offset
    cut = end - TAIL - 1

    def change_log() -> None:
        if change == "truncate":
            log.truncate_to(cut)
        else:
            log.delete_records_before(end - TAIL)
            log.delete_old_segments(START_MS)
        assert not leftovers(bench), "a crash now would find them"

    up_to_the_first_step(bench, worker)
    if done < 3:
        swap: Any = getattr(log.jobs.undo, "__self__", None)
        swap._lock = Between(done, change_log)
        worker.run_one()
    else:
        with mock.patch.object(swap_module, "sync_directory", lambda _: change_log()):
            worker.run_one()
    assert log.truncation_count == (change == "truncate")
    assert not worker.held, "the round is over"
    assert not bench.logs.offline_directories and not bench.cleaner.uncleanable
    bench.logs.close(clean=False)
    bench.open()
    assert bench.log.log_end_offset == (cut if change == "truncate" else end)
    assert bench.log.log_start_offset == (0 if change == "truncate" else end - TAIL)
    bench.stop()


def test_a_fault_in_the_worker_takes_the_directory_offline(tmp_path: Path, count: int) -> None:
    """And the next start finishes the swap."""
    for done in range(count):
        worker = HeldOffload()
        bench = filled(tmp_path / str(done), worker)
        wanted = values(bench)
        up_to_the_names(bench, worker)
        log, tried = bench.log, 0
        for _ in range(done):
            assert log.jobs.work_one()

        def fail(source: str, target: str) -> None:
            nonlocal tried
            tried += 1
            raise LogDirectoryError(source, "rename", OSError(errno.EIO, "Input/output error"))

        log.update_config(dataclasses.replace(log.config, cleanup_policy=frozenset()))
        with mock.patch.object(disk_jobs, "rename", fail):
            while worker.run_one():
                pass
        assert tried == 1
        assert list(bench.logs.offline_directories) == [bench.folder]
        assert log.failure is not None and log.closed
        bench.stop()
        bench.open()
        assert values(bench) == wanted
        assert not leftovers(bench)
        bench.stop()


def test_a_fault_that_the_loop_meets_first(tmp_path: Path) -> None:
    worker = HeldOffload()
    bench = filled(tmp_path, worker)
    up_to_the_names(bench, worker)

    def fail(source: str, target: str) -> None:
        raise LogDirectoryError(source, "rename", OSError(errno.EIO, "Input/output error"))

    with mock.patch.object(disk_jobs, "rename", fail):
        assert bench.logs.delete(TOPIC)
    assert list(bench.logs.offline_directories) == [bench.folder]
    while worker.run_one():
        pass
    bench.stop()


def test_a_start_is_not_forgotten_before_the_files_are_gone(tmp_path: Path) -> None:
    """Kill between the checkpoint and the names."""
    worker = HeldOffload()
    bench = filled(tmp_path, worker)
    log, end = bench.log, bench.log.log_end_offset
    log.delete_records_before(end - TAIL)
    bench.logs.checkpoints.write_start_offsets()
    log.segments.remove(list(log.segments)[:-1], due_ms=0)
    assert log.log_start_offset == log.segments.first.base_offset
    bench.logs.checkpoints.write_start_offsets()
    bench.logs.close(clean=False)
    bench.open()
    assert bench.log.log_start_offset == end - TAIL
    bench.stop()
