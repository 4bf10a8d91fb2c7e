"""The queue of a log's file changes: order, faults, which threads may run them, and dropped
jobs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from unittest import mock

import pytest

from kbroker.log.storage import disk_jobs
from kbroker.log.storage.disk_jobs import DiskJob, DiskJobs, Rename
from kbroker.log.storage.files import LogDirectoryError


class Noted(DiskJob):
    """Records its steps. error: what `run` raises."""

    def __init__(self, name: str, notes: list[str], error: OSError | None = None) -> None:
        self.name = name
        self.notes = notes
        self.error = error

    def run(self) -> None:
        if self.error is not None:
            raise LogDirectoryError(self.name, "write", self.error)
        self.notes.append(f"run {self.name}")

    def settle(self) -> None:
        self.notes.append(f"settle {self.name}")

    def fail(self, error: LogDirectoryError) -> None:
        self.notes.append(f"fail {self.name}: {error.strerror}")


def test_jobs_run_in_order_and_settle_on_the_loop() -> None:
    notes: list[str] = []
    jobs = DiskJobs("")
    for name in "abc":
        jobs.add(Noted(name, notes))
    assert jobs.work_one()
    assert notes == ["run a"], "in a worker: nothing is settled there"
    jobs.collect()
    assert notes == ["run a", "settle a"]
    jobs.settle()
    assert notes[2:] == ["run b", "run c", "settle b", "settle c"]
    assert not jobs.work_one()


def test_work_up_to_a_job_leaves_those_behind_it() -> None:
    notes: list[str] = []
    jobs = DiskJobs("")
    first, second, third = (Noted(name, notes) for name in "abc")
    for job in (first, second, third):
        jobs.add(job)
    jobs.work(second)
    assert notes == ["run a", "run b"]
    jobs.work(second)
    assert notes == ["run a", "run b"], "a job that has run is not waited for again"
    jobs.end(second, None)
    assert notes[2:] == ["settle a", "settle b"]
    jobs.settle(third)
    assert notes[4:] == ["run c", "settle c"]


def test_a_fault_stays_and_keeps_later_jobs_from_running() -> None:
    notes: list[str] = []
    jobs = DiskJobs("")
    jobs.add(Noted("a", notes, OSError(errno.EIO, "Input/output error")))
    jobs.add(Noted("b", notes))
    for _ in range(2):
        with pytest.raises(LogDirectoryError) as caught:
            jobs.work()
        assert caught.value is jobs.failure
    assert notes == []


def test_a_shortage_of_descriptors_is_tried_again() -> None:
    notes: list[str] = []
    jobs = DiskJobs("")
    job = Noted("a", notes, OSError(errno.EMFILE, "Too many open files"))
    jobs.add(job)
    with pytest.raises(LogDirectoryError):
        jobs.work()
    assert jobs.failure is None
    job.error = None
    jobs.settle()
    assert notes == ["run a", "settle a"]


def test_a_job_that_failed_in_a_worker_is_told_and_forgotten() -> None:
    notes: list[str] = []
    jobs = DiskJobs("")
    job = Noted("a", notes)
    jobs.add(job)
    fault = LogDirectoryError("a", "write", OSError(errno.EIO, "surprise"))
    jobs.end(job, fault)
    jobs.end(job, fault)
    assert notes == ["fail a: surprise"]
    jobs.settle()
    assert notes == ["fail a: surprise"]


def test_a_job_of_a_closed_log_is_not_told() -> None:
    notes: list[str] = []
    jobs = DiskJobs("")
    job = Noted("a", notes)
    jobs.add(job)
    jobs.drop()
    jobs.work(job)
    jobs.end(job, None)
    jobs.end(job, LogDirectoryError("a", "write", OSError(errno.EIO, "late")))
    assert notes == []


def test_a_job_that_runs_while_the_log_is_closed_is_not_told() -> None:
    class Closing(Noted):
        def run(self) -> None:
            super().run()
            jobs.drop()

    notes: list[str] = []
    jobs = DiskJobs("")
    jobs.add(job := Closing("a", notes))
    jobs.add(Noted("b", notes))
    jobs.work()
    jobs.end(job, None)
    assert notes == ["run a"] and jobs.is_idle


def test_only_names_are_pending_names() -> None:
    jobs = DiskJobs("")
    jobs.add(Noted("a", []))
    assert not jobs.is_pending
    jobs.add(Rename("b", "c"))
    assert jobs.is_pending


def test_the_loop_waits_for_the_name_that_the_worker_is_at() -> None:
    entered, go_on = Event(), Event()
    order: list[str] = []

    def slow(source: str, target: str) -> None:
        del target
        if source == "a":
            entered.set()
            assert go_on.wait(60)
        order.append(source)

    pending = DiskJobs("")
    for name in "abc":
        pending.add(Rename(name, name + "2", lambda name=name: order.append(name.upper())))  # type: ignore[misc]  # bound now
    with mock.patch.object(disk_jobs, "rename", slow):
        worker = Thread(target=pending.work_one)
        worker.start()
        assert entered.wait(60)
        Thread(target=go_on.set).start()
        pending.settle()
        worker.join()
    assert order == ["a", "b", "c", "A", "B", "C"]


def test_what_is_dropped_is_not_done() -> None:
    def gone(source: str, target: str) -> None:
        pending.drop()
        raise LogDirectoryError(source, "rename", OSError(errno.EIO, target))

    pending = DiskJobs("")
    pending.add(Rename("a", "b"))
    pending.add(Rename("b", "c"))
    with mock.patch.object(disk_jobs, "rename", gone):
        with pytest.raises(LogDirectoryError):
            pending.work()
        pending.settle()
    assert not pending.is_pending


def test_a_file_that_may_be_gone(tmp_path: Path) -> None:
    pending = DiskJobs("")
    done: list[int] = []
    pending.add(Rename(f"{tmp_path}/a", f"{tmp_path}/b", lambda: done.append(1), may_be_gone=True))
    (tmp_path / "c").touch()
    pending.add(Rename(f"{tmp_path}/c", f"{tmp_path}/d", lambda: done.append(2), may_be_gone=True))
    pending.add(Rename(f"{tmp_path}/a", f"{tmp_path}/b"))
    for _ in range(2):
        with pytest.raises(LogDirectoryError):
            pending.settle()
    pending.collect()
    assert done == [2]
    assert (tmp_path / "d").exists()


def test_a_deleted_file_of_before_goes_first(tmp_path: Path) -> None:
    """A rename onto the file would free its blocks while no file can be created in the folder."""
    order: list[str] = []

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted_call(*paths: str) -> None:
            order.append(name)
            call(*paths)

        return noted_call

    for name in ("a", "a.deleted"):
        (tmp_path / name).write_text(name)
    pending = DiskJobs(str(tmp_path))
    pending.add(Rename(f"{tmp_path}/a", f"{tmp_path}/a.deleted", may_be_gone=True))
    with (
        mock.patch.object(disk_jobs, "rename", noted("rename", disk_jobs.rename)),
        mock.patch.object(disk_jobs, "unlink", noted("unlink", disk_jobs.unlink)),
    ):
        pending.work()
    assert order == ["unlink", "rename"]
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.deleted", "a")]
