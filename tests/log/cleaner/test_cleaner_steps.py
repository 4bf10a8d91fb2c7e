"""Compaction of one log, step by step: what may change in between, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.cleaner import cleaner as cleaner_module
from kbroker.log.cleaner import swap
from kbroker.log.storage import disk_jobs, files, segments
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from tests.log.cleaner.cleaning import DAY_MS, FILLED_CLEAN, TOPIC, Bench, batch, filled, view
from tests.log.cuts import cut_now
from tests.sim.offload import HeldOffload
from tests.sim.timers import START_MS


class Crash(BaseException):
    """The process ends here."""


def steps_of_a_round(folder: Path) -> int:
    held = HeldOffload()
    bench = filled(Bench(folder, offload=held))
    bench.clean()
    count = 0
    while held.run_one():
        count += 1
    assert view(bench) == FILLED_CLEAN
    bench.stop()
    return count


@pytest.mark.parametrize("change", ["truncate", "delete", "retire", "policy", "stop", "append"])
def test_the_log_changes_between_any_two_steps(tmp_path: Path, change: str) -> None:
    steps = steps_of_a_round(tmp_path / "count")
    if change == "truncate":
        steps -= 2  # before these (names and checkpoint) the older record was already removed
    for step in range(steps):
        held = HeldOffload()
        bench = filled(Bench(tmp_path / str(step), offload=held))
        bench.clean()
        for _ in range(step):
            held.run_one()
        log = bench.log
        match change:
            case "truncate":
                log.truncate_to(6, now_ms=START_MS)
                bench.append(batch(("n", "1")))
            case "delete":
                bench.logs.delete(TOPIC)
            case "retire":
                log.delete_records_before(5)
                log.delete_old_segments(START_MS)
            case "policy":
                log.update_config(Bench(tmp_path / f"x{step}", cleanup_policy=frozenset()).config)
            case "stop":
                bench.cleaner.request_stop()
                bench.cleaner.finish_stop()
                held.held.clear()
            case "append":
                bench.append(batch(("n", "1")))
        while held.run_one():
            pass
        assert not bench.cleaner.uncleanable
        assert not bench.logs.offline_directories
        if change == "delete":
            continue
        seen = dict((key, value) for _, key, value in view(bench))
        assert seen["a"] == ("2" if change == "truncate" else "4")
        assert seen.get("n") == ("1" if change in ("truncate", "append") else None)
        leftovers = [n for n in bench.names() if n.endswith((".cleaned", ".swap"))]
        assert not leftovers
        bench.stop()


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_log_that_is_cut_after_its_swap_is_not_clean_beyond_the_cut(
    tmp_path: Path, back: int
) -> None:
    """While a worker changes the names, or writes the checkpoint: the records appended after the
    truncation have not been cleaned.
    """
    steps = steps_of_a_round(tmp_path / "count")
    held = HeldOffload()
    bench = filled(Bench(tmp_path / "data", offload=held))
    bench.clean()
    for _ in range(steps - back):
        held.run_one()
    cut_now(bench.logs, TOPIC, 6)
    while held.run_one():
        pass
    assert read_offsets(bench.folder / "cleaner-offset-checkpoint").get(TOPIC, 0) <= 6
    assert bench.log.cleaner_offset is None or bench.log.cleaner_offset <= 6
    bench.append(batch(("n", "1"), ("n", "2"), ("n", "3")))
    bench.roll()
    bench.clean()
    while held.run_one():
        pass
    assert [value for _, key, value in view(bench) if key == "n"] == ["3"]
    bench.stop()
    bench.open()
    assert bench.log.cleaner_offset == 9
    bench.stop()


def test_a_crash_at_each_file_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each rename and unlink of a round, and each write of the new segment."""
    crash_at = -1
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if 0 < crash_at <= count:  # a dead process does no more
                raise Crash
            return function(*arguments, **options)

        return run

    def patch(context: pytest.MonkeyPatch) -> None:
        for module in (swap, disk_jobs, segments):
            for name in ("rename", "unlink", "sync_directory"):
                if hasattr(module, name):
                    context.setattr(module, name, counted(getattr(module, name)))
        for name in ("write_at", "truncate", "sync"):
            method = getattr(files.LogFile, name)
            context.setattr(files.LogFile, name, counted(method))
        context.setattr(cleaner_module, "write_offsets", counted(cleaner_module.write_offsets))

    total = None
    while total is None or crash_at <= total:
        bench = filled(Bench(tmp_path / f"{crash_at}"))
        bench.log.flush()
        count = 0
        with monkeypatch.context() as context:
            patch(context)
            if total is None:
                bench.clean()
                total, crash_at = count, 0
                assert total > 20
                continue
            crash_at += 1
            count = 0
            try:
                bench.clean()
            except Crash:
                pass
            else:
                break
            bench.log.failure = LogDirectoryError("", "", OSError())
            bench.cleaner.finish_stop()
        bench.logs.close(clean=False)
        bench.open()
        reopened = view(bench)
        assert reopened in (
            [(0, "a", "1"), (1, "b", "1"), (2, "c", "1"), (3, "a", "2"), (4, "b", None),
             (5, "d", "1"), (6, "a", "3"), *FILLED_CLEAN[3:]],
            FILLED_CLEAN,
        ), crash_at  # fmt: skip
        assert bench.log.log_end_offset == 10
        assert not [n for n in bench.names() if n.endswith((".cleaned", ".swap", ".deleted"))]
        bench.clean()
        assert view(bench) == FILLED_CLEAN
        bench.stop()
    assert crash_at > 20


def test_what_a_reader_holds_stays_valid_at_every_step(tmp_path: Path) -> None:
    held = HeldOffload()
    bench = filled(Bench(tmp_path, offload=held))
    bench.clean()
    slices: list[tuple[FileSlice, bytes]] = []
    while True:
        seen = view(bench)
        assert {key: value for _, key, value in seen} == {
            key: value for _, key, value in FILLED_CLEAN
        }
        for offset in range(10):
            found = bench.log.read(offset, max_bytes=100).records
            assert isinstance(found, FileSlice)
            slices.append((found, found.read()))
        if not held.run_one():
            break
    bench.logs.delete_due_files(START_MS + DAY_MS)
    assert view(bench) == FILLED_CLEAN
    assert all(found.read() == data for found, data in slices)


def test_a_move_that_begins_between_any_two_steps_ends_the_round(tmp_path: Path) -> None:
    """From then on the log is not cleaned: the copy would keep what cleaning removes. Once the move
    is over it is cleaned again.
    """
    for step in range(steps_of_a_round(tmp_path / "count")):
        held = HeldOffload()
        folders = [tmp_path / f"{step}-{number}" for number in range(2)]
        properties = {"log.dirs": ",".join(map(str, folders))}
        bench = filled(Bench(folders[0], offload=held, properties=properties))
        target = next(path for path in folders if path != bench.logs.directory_of(TOPIC))
        bench.clean()
        for _ in range(step):
            held.run_one()
        assert bench.logs.moves.create_future(TOPIC, str(target))
        before = view(bench)
        while held.run_one():
            pass
        bench.clean()
        assert not held.held and view(bench) == before, step
        assert not bench.cleaner.uncleanable
        assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]
        bench.logs.moves.drop_future(TOPIC)
        bench.clean()
        while held.run_one():
            pass
        assert view(bench) == FILLED_CLEAN
        bench.stop()
