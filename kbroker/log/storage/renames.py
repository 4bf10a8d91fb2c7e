"""Files of one log that have other names in memory already than on disk.

A rename waits for the folder's lock and the file system's journal, so the log changes in memory
first and the names follow, in the order in which they were asked for, done by whoever comes first:
a worker, or the loop where something needs the names as they ought to be (a cut, a close, another
name of the folder). A crash leaves the first part of them, as if it had come between two renames.
Neighbours: `segments` and `swap` ask for renames.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Lock

from kbroker.log.storage.files import LogDirectoryError, rename, unlink


class Renames:
    """path: the log's folder. failure: of a rename; it and those behind it are not tried again, who
    asks for them gets it. undo: takes back a swap that has only begun; called before any segment
    goes.
    """

    __slots__ = ("_done", "_lock", "_waiting", "failure", "path", "undo")

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: LogDirectoryError | None = None
        self.undo: Callable[[], None] | None = None
        self._lock = Lock()  # held during one rename
        # lists: there is one of each for every log, and a deque has 600 bytes
        self._waiting: list[tuple[str, str, Callable[[], object] | None, bool]] = []
        self._done: list[Callable[[], object]] = []

    @property
    def is_pending(self) -> bool:
        """Whether a name on disk is not yet what the log counts on."""
        return bool(self._waiting)

    def add(
        self,
        source: str,
        target: str,
        then: Callable[[], object] | None = None,
        *,
        may_be_gone: bool = False,
    ) -> None:
        """Rename after all that was added before. then: for `collect`. may_be_gone: a file that is
        not there is no fault, and `then` not called.
        """
        self._waiting.append((source, target, then, may_be_gone))

    def work_one(self) -> bool:
        """Do the next one, in any thread. Returns False if there is none. Raises
        LogDirectoryError.
        """
        with self._lock:
            waiting = self._waiting
            if not waiting:
                return False
            if self.failure is not None:
                raise self.failure
            source, target, then, may_be_gone = waiting[0]
            try:
                if may_be_gone:
                    # a `.deleted` of before: a rename would free its blocks with the folder locked
                    unlink(target)
                rename(source, target)
            except LogDirectoryError as error:
                if not may_be_gone or error.errno != errno.ENOENT:
                    self.failure = error
                    raise
                then = None
            if then is not None:
                self._done.append(then)
            del waiting[0]
            return True

    def work(self) -> None:
        """Do all, in any thread. Blocks. Raises LogDirectoryError."""
        while self.work_one():
            pass

    def sync(self) -> None:
        """`work`, as a part of a flush: else a crash of the machine could bring back, under its old
        name, a retired segment that was never synced, and cut all that follows it.
        """
        self.work()

    def collect(self) -> None:
        """Call what was to follow from those that are done: on the loop."""
        while self._done:
            self._done.pop(0)()

    def settle(self) -> None:
        """Do all here and now, on the loop. Blocks; a rename under way in a worker is waited for.
        Raises LogDirectoryError.
        """
        self.work()
        self.collect()

    def drop(self) -> None:
        """The log is closed, no name matters any more. Does not wait."""
        self._waiting = []
        self._done = []
        self.undo = None
