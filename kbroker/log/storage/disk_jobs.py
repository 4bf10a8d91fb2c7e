"""Changes of a log's files that leave the loop: jobs, and the one queue of each log.

Creating, renaming and syncing files waits for the folder's lock and the file system's journal; up
to 250 ms were measured. Such work is a `DiskJob` of three steps. It is prepared on the loop, by its
constructor. `run` does it in any thread, with bytes, paths and descriptors only. `settle` takes the
result into the log's state, on the loop. Memory may be ahead of the disk until a job has run: the
log has the new state already, or waits for `settle` to have it.

Jobs that change files the log counts on - a roll, names of retired and swapped segments, the leader
epochs - wait in one FIFO per log. A worker runs them in order; an operation that cannot wait (a
truncation, a coordinator's append, a clean stop) runs the rest itself. A crash leaves the effect of
the first jobs, as if it had come between two of them. Compaction's jobs write files that nothing
else knows (`.cleaned`, `.swap`) and take minutes, so they are not queued: the cleaner runs them.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import ClassVar

from kbroker.log.storage.files import LogDirectoryError, rename, unlink


class DiskJob(ABC):
    """See the module. is_name: a name on disk differs from the one that memory counts on until
    this job has run. has_result: `settle` has something to do.
    """

    __slots__ = ()

    is_name: ClassVar[bool] = False
    has_result: ClassVar[bool] = True

    @abstractmethod
    def run(self) -> None:
        """Do the work, in any thread. Blocks. Raises LogDirectoryError."""

    def settle(self) -> None:  # noqa: B027 - optional
        """Take the result into the log's state, on the loop, once `run` has returned."""

    def fail(self, error: LogDirectoryError) -> None:  # noqa: B027 - optional
        """`run` raised this; the job is not tried again. On the loop."""


class WorkerJob(DiskJob):
    """A job of a log's queue that a worker is asked for: `work` in a thread, then `end` on the
    loop. verb: what it does, for the message of a fault.
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
        """A worker has done `work`, or `failure` is why not. On the loop."""
        if failure is not None and not isinstance(failure, LogDirectoryError):
            failure = LogDirectoryError(self.path, self.verb, failure)
        self._jobs.end(self, failure)


class Rename(DiskJob):
    """Gives a file another name. then: called on the loop once the file has it. may_be_gone: a
    missing file is no fault, and `then` is not called.
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
                # an older `.deleted`: a rename would free its blocks with the folder locked
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
    """The queue of one log. path: the log's folder. failure: of a job; that job and those behind
    it are not tried again, and each attempt raises it. undo: takes back a segment swap that has
    only begun; called before a segment is removed.
    """

    __slots__ = ("_done", "_lock", "_waiting", "failure", "path", "undo")

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: LogDirectoryError | None = None
        self.undo: Callable[[], None] | None = None
        self._lock = Lock()  # held while a job runs
        # lists, since each log has one of each and a deque takes 600 bytes
        self._waiting: list[DiskJob] = []
        self._done: list[DiskJob] = []

    @property
    def is_pending(self) -> bool:
        """Whether a name on disk is not yet the one that the log counts on."""
        return any(job.is_name for job in self._waiting.copy())

    @property
    def is_idle(self) -> bool:
        """Whether no job waits, and none is to be settled."""
        return not self._waiting and not self._done

    def add(self, job: DiskJob) -> None:
        """Queue a job behind all others."""
        self._waiting.append(job)

    def work_one(self, last: DiskJob | None = None) -> bool:
        """Run the next job, in any thread. Returns False if there is none, or if last does not wait
        any more. Raises LogDirectoryError.
        """
        with self._lock:
            waiting = self._waiting
            if not waiting or (last is not None and last not in waiting):
                return False
            if self.failure is not None:
                raise self.failure
            job = waiting[0]
            try:
                job.run()
            except LogDirectoryError as error:
                if not error.is_shortage:  # of descriptors: nothing was changed
                    self.failure = error
                raise
            if job.has_result:
                self._done.append(job)
            del waiting[0]
            return True

    def work(self, last: DiskJob | None = None) -> None:
        """Run all jobs, or those up to last, in any thread. Blocks. Raises LogDirectoryError."""
        while self.work_one(last):
            pass

    def sync(self) -> None:
        """`work`, as a part of a flush. Without it a crash of the machine could bring a retired
        segment that was never synced back under its old name, and the start would truncate the log
        behind it.
        """
        self.work()

    def collect(self) -> None:
        """Settle the jobs that have run: on the loop."""
        while self._done:
            self._done.pop(0).settle()

    def end(self, job: DiskJob, failure: LogDirectoryError | None) -> None:
        """A worker has run a job, or failed; on the loop. Does nothing for a job that was settled
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
        """Run and settle all jobs, or those up to last, here and now on the loop. Blocks, also for
        a job that a worker runs at the moment. Raises LogDirectoryError.
        """
        self.work(last)
        self.collect()

    def drop(self) -> None:
        """The log is closed: forget all jobs. Does not wait for one that runs."""
        self._waiting = []
        self._done = []
        self.undo = None
