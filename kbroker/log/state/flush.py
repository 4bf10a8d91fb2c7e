"""One flush of a log: the files to sync, and the marks of changes that are not synced yet.

A flush lists the files to sync and leaves the marks unchanged. Once every sync has succeeded, the
marks are cleared, but only those that are not newer than the flush. A flush that fails, or is never
carried out, is therefore repeated in full; two concurrent flushes do not depend on each other.
Neighbours: `flushing` begins and ends flushes, `closing` begins the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kbroker.log.storage.files import sync_directory

UNKNOWN_CHANGE: Final = -1


class Syncable(Protocol):
    """A file or directory that a flush has to sync; safe to call in any thread."""

    @property
    def path(self) -> str: ...
    def sync(self) -> None: ...


class DirectoryNames:
    """A directory, as a Syncable."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def sync(self) -> None:
        sync_directory(self.path)


class LogFlush:
    """files: to be synced in this order, in any thread. up_to: all records below this offset are
    then on disk; lowered if the log is truncated or rolled meanwhile.

    change, epoch_change: the last changes of the folder and of the leader epochs that the flush
    covers. end: called by `finish`, on the loop, with whether all files were synced.
    """

    __slots__ = ("_end", "change", "epoch_change", "files", "up_to")

    def __init__(
        self,
        files: list[Syncable],
        end: Callable[[LogFlush, bool], None],
        *,
        up_to: int,
        change: int,
        epoch_change: int,
    ) -> None:
        self.files = files
        self.up_to = up_to
        self.change = change
        self.epoch_change = epoch_change
        self._end = end

    def sync(self) -> None:
        """Sync all files in this thread. Blocks. Raises LogDirectoryError."""
        for file in self.files:
            file.sync()

    def finish(self, *, is_synced: bool = True) -> None:
        """The files were synced; with is_synced=False they were not, and the next flush includes
        them again.
        """
        self._end(self, is_synced)


class FolderChanges:
    """Parts of a log's folder that may not be synced, each with the number of its last change; 0 if
    it is synced.

    names: the file names. topic_id: partition.metadata. folder: the folder's own name.
    """

    __slots__ = ("folder", "last", "names", "topic_id")

    def __init__(self) -> None:
        self.last = 0
        self.names = 0
        self.topic_id = 0
        self.folder = 0

    def changed(self, *, names: bool = True, topic_id: bool = False, folder: bool = False) -> None:
        """Record a change of the given parts."""
        self.last += 1
        if names:
            self.names = self.last
        if topic_id:
            self.topic_id = self.last
        if folder:
            self.folder = self.last

    def synced(self, change: int) -> None:
        """All changes up to that number are on disk."""
        if self.names <= change:
            self.names = 0
        if self.topic_id <= change:
            self.topic_id = 0
        if self.folder <= change:
            self.folder = 0
