"""Changes of a log's files that run off the loop: jobs, and the job queue of each log.

Creating, renaming and syncing files waits for the folder's lock and the file system's journal, up
to 250 ms in measurements. Such work is a `DiskJob` of three steps. Its constructor prepares it on
the loop. `run` does the work in any thread, with bytes, paths and descriptors only. `settle`
applies the result to the log's state, on the loop. Until a job has run, memory may be ahead of the
disk: the log either has the new state already, or gets it from `settle`.

Jobs that change files the log relies on (a roll, a cut, renames of retired and swapped segments,
the leader epochs) wait in one FIFO per log. A worker runs them in order; an operation that cannot
wait (a truncation, a clean stop) runs the rest itself. After a crash the first jobs have taken
effect and the others have not, as if it had happened between two jobs.

Two kinds of job are not queued. A roll that cannot wait (of a coordinator's append, the metadata
log, a log that is copied to another directory, or retention that empties a log) first completes a
queued roll or cut, with the jobs before it, and then runs at once (`rolling.roll_now`): it only
changes the active segment's indexes and creates files, which no other queued job touches, so it
need not wait for renames. Compaction's other jobs write files that nothing else uses (`.cleaned`,
`.swap`) and take minutes: the cleaner runs them (docs/adr/0008).
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import ClassVar

from kbroker.log.storage.files import LogDirectoryError, rename, unlink


class DiskJob(ABC):
    """See the module. is_name: until this job has run, a file name on disk differs from the one in
    memory. has_result: `settle` has work to do.
    """

    __slots__ = ()

    is_name: ClassVar[bool] = False
    has_result: ClassVar[bool] = True

    @abstractmethod
    def run(self) -> None:
        """Do the work, in any thread. Blocks. Raises LogDirectoryError."""

    def settle(self) -> None:  # noqa: B027 - optional
        """Apply the result to the log's state, on the loop, after `run` has returned."""

    def fail(self, error: LogDirectoryError) -> None:  # noqa: B027 - optional
        """`run` raised this error; the job is not tried again. On the loop."""


class WorkerJob(DiskJob):
    """A job of a log's queue that a worker runs: `work` in a thread, then `end` on the loop. verb:
    describes the job in the message of a fault.
    """

    __slots__ = ("_jobs",)

    verb: ClassVar[str]

    def __init__(self, jobs: DiskJobs) -> None:
        self._jobs = jobs

    @property
    def path(self) -> str:
        """The folder of the log."""
        return self._jobs.path

    def work(self) -> None:
        """Run the log's queue up to this job, in any thread. Blocks. Raises LogDirectoryError."""
        self._jobs.work(self)

    def end(self, failure: OSError | None) -> None:
        """Called on the loop after a worker has run `work`. failure: the error of the worker."""
        if failure is not None and not isinstance(failure, LogDirectoryError):
            failure = LogDirectoryError(self.path, self.verb, failure)
        self._jobs.end(self, failure)


class Rename(DiskJob):
    """Renames a file. then: called on the loop after the rename. may_be_gone: a missing file is no
    fault, and `then` is not called.
    """

    __slots__ = ("_may_be_gone", "_source", "_target", "_then")

    is_name = True

    def __init__(
        self,
        source: str,
        target: str,
        then: Callable[[], object] | None = None,
        *,
        may_be_gone: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._then = then
        self._may_be_gone = may_be_gone

    def run(self) -> None:
        try:
            if self._may_be_gone:
                # an older `.deleted`: replacing it would free its blocks while the folder is locked
                unlink(self._target)
            rename(self._source, self._target)
        except LogDirectoryError as error:
            if not self._may_be_gone or error.errno != errno.ENOENT:
                raise
            self._then = None

    def settle(self) -> None:
        if self._then is not None:
            self._then()


class DiskJobs:
    """The queue of one log. path: the log's folder. failure: the error of a job; that job and those
    after it are not tried again, and each attempt raises it. undo: reverts a segment swap in its
    first step; called before a segment is removed.
    """

    __slots__ = ("_done", "_lock", "_waiting", "failure", "path", "undo")

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: LogDirectoryError | None = None
        self.undo: Callable[[], None] | None = None
        self._lock = Lock()  # held while a job runs
        # lists, since each log has both and a deque takes 600 bytes
        self._waiting: list[DiskJob] = []
        self._done: list[DiskJob] = []

    @property
    def is_pending(self) -> bool:
        """Whether a file name on disk differs from the one in memory."""
        return any(job.is_name for job in self._waiting.copy())

    @property
    def is_idle(self) -> bool:
        """Whether no job waits to run or to be settled."""
        return not self._waiting and not self._done

    def add(self, job: DiskJob) -> None:
        """Append a job to the queue."""
        self._waiting.append(job)

    def work_one(self, last: DiskJob | None = None) -> bool:
        """Run the next job, in any thread. Returns False if there is none, or if last is no longer
        queued. Raises LogDirectoryError.
        """
        with self._lock:
            # `drop` may replace both meanwhile, `_waiting` first: then the result goes to a list
            # that is dropped as well
            done = self._done
            waiting = self._waiting
            if not waiting or (last is not None and last not in waiting):
                return False
            if self.failure is not None:
                raise self.failure
            job = waiting[0]
            try:
                job.run()
            except LogDirectoryError as error:
                if not error.is_shortage:  # lack of descriptors: nothing was changed
                    self.failure = error
                raise
            if job.has_result:
                done.append(job)
            del waiting[0]
            return True

    def work(self, last: DiskJob | None = None) -> None:
        """Run all jobs, or those up to last, in any thread. Blocks. Raises LogDirectoryError."""
        while self.work_one(last):
            pass

    def sync(self) -> None:
        """`work`, as a part of a flush. Without it a retired segment that was never synced could
        reappear under its old name after a crash of the machine, and the start would truncate the
        log behind it.
        """
        self.work()

    def collect(self) -> None:
        """Settle the jobs that have run. On the loop."""
        while self._done:
            self._done.pop(0).settle()

    def end(self, job: DiskJob, failure: LogDirectoryError | None) -> None:
        """Called on the loop after a worker has run a job. Does nothing for a job that was settled
        or dropped meanwhile.
        """
        if failure is None:
            self.collect()
            return
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        job.fail(failure)

    def settle(self, last: DiskJob | None = None) -> None:
        """Run and settle all jobs, or those up to last, on the loop. Blocks, also for a job that a
        worker is running. Raises LogDirectoryError.
        """
        self.work(last)
        self.collect()

    def drop(self) -> None:
        """The log is closed: drop all jobs. Does not wait for a running job, which is not settled
        either.
        """
        self._waiting = []
        self._done = []  # after `_waiting`: see `work_one`
        self.undo = None
