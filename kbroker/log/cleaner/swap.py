"""Replaces the segments of a group by the cleaned one: `.cleaned` -> `.swap`, old -> `.deleted`,
`.swap` -> final name, in Kafka's order.

A crash before the first log file has become `.swap` loses only the cleaned files; after that, the
next start finishes the swap (`recovery`). Between the two steps the directory is synced, so that a
crash of the machine cannot keep the second step and lose the first.

A worker does the first step, whose file names nothing else uses, and opens the new files. Then the
loop puts the new segment into the log and queues the second step as jobs of the log (`disk_jobs`).
Until these have run the new segment works without its final names: its file stays open and its
indexes stay loaded, exempt from the limits of `OpenFiles`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import Lock

from kbroker.log.cleaner.steps import CleanedSegment, CleaningStopped
from kbroker.log.state.log_state import LogState
from kbroker.log.storage import names
from kbroker.log.storage.disk_jobs import DiskJob, DiskJobs, Rename
from kbroker.log.storage.files import LogDirectoryError, rename, sync_directory, unlink
from kbroker.log.storage.index import CorruptIndexError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment


class SwappedSegment(Segment):
    """jobs: those of its log; set while the files do not have their final names yet."""

    __slots__ = ("jobs",)

    jobs: DiskJobs | None

    def load(self) -> None:
        """Load everything that is ever read from the files, except for the log file, which stays
        open.
        """
        self.jobs = None
        self.open_files = OpenFiles(1)  # so that other segments do not close the file
        self.open_files.indexes.limit_bytes = sys.maxsize
        self.log_file()
        for index in (self.offset_index, self.time_index):
            _ = index.entry_count
        self.transaction_index.entries()

    def take_names(self, jobs: DiskJobs) -> None:
        """Use the final names from now on; the files are renamed later."""
        self.jobs = jobs
        self.path = self.log_file().path = self.path.removesuffix(names.SWAP)
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.path = index.path.removesuffix(names.SWAP)

    def names_taken(self, open_files: OpenFiles) -> None:
        """The files have their final names: this is an ordinary segment from now on."""
        self.jobs = None
        self.release()
        self.open_files = open_files

    def rebuild_indexes(self, error: CorruptIndexError) -> bool:
        if self.jobs is not None:
            self.jobs.settle()  # writes use the final names
        return super().rebuild_indexes(error)


class SegmentSwap(DiskJob):
    """One swap. old: adjacent segments, none of them active. now_ms: the clock.

    Call `prepare`, while `is_valid`; then `run` in a worker; then `settle`, if it still `is_valid`.
    The files have their final names once the log's queue has run the renames that `settle` adds.
    """

    __slots__ = (
        "_base_offset",
        "_begun",
        "_cleaned",
        "_config",
        "_finishing",
        "_lock",
        "_now_ms",
        "_old",
        "_paths",
        "_segment",
        "_sizes",
        "_state",
        "_undone",
    )

    def __init__(self, state: LogState, old: Sequence[Segment], now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._cleaned: CleanedSegment | None = None
        self._state = state
        self._config = state.config
        self._old = list(old)
        self._sizes = [segment.size for segment in old]
        self._base_offset = self._old[0].base_offset
        prefix = f"{state.segments.directory}/{names.offset_name(self._base_offset, '')}"
        self._paths = [prefix + kind for kind in (names.LOG, names.INDEX, names.TIME_INDEX)]
        self._paths.append(prefix + names.TRANSACTION_INDEX)
        self._segment: SwappedSegment | None = None
        self._lock = Lock()  # held during a rename of the first step, and by `undo`
        self._begun = False
        self._undone = False
        self._finishing = False

    @property
    def is_valid(self) -> bool:
        """Whether the old segments are unchanged: none removed, truncated or active."""
        segments = self._state.segments
        first = segments.floor_index(self._base_offset)
        now = list(segments)[first : first + len(self._old)]
        return (
            not self._undone
            and len(now) == len(self._old)
            and all(each is old for each, old in zip(now, self._old, strict=True))
            and [segment.size for segment in now] == self._sizes
            and now[-1] is not segments.active
        )

    def prepare(self, cleaned: CleanedSegment) -> None:
        """The cleaned files are written. From now on a change of the log's segments undoes the
        swap.
        """
        self._cleaned = cleaned
        if not cleaned.has_transaction_index:
            self._paths.pop()
        # a start that finds `.swap` files would restore records that are cut or retired now
        self._state.jobs.undo = self.undo

    def run(self) -> None:
        """Rename `.cleaned` to `.swap` and open the files. Raises CleaningStopped if the swap was
        undone meanwhile, LogDirectoryError.
        """
        cleaned = self._cleaned
        if cleaned is None:
            raise RuntimeError("the swap was not prepared")
        try:
            for path in self._paths:
                with self._lock:
                    if self._undone:
                        raise CleaningStopped
                    rename(path + names.CLEANED, path + names.SWAP)
                    self._begun = True
            sync_directory(self._state.segments.directory)
            segment = SwappedSegment(
                self._state.segments.directory,
                self._base_offset,
                size=cleaned.size,
                config=self._config,
                open_files=self._state.segments.open_files,
                created_ms=self._old[0].created_ms,
                has_transaction_index=cleaned.has_transaction_index,
                suffix=names.SWAP,
            )
            segment.load()
        except LogDirectoryError:
            if self._undone:
                raise CleaningStopped from None
            raise
        self._segment = segment

    def settle(self) -> None:
        """Put the new segment into the log in place of the old ones, and queue the renames."""
        state, segment = self._state, self._segment
        if segment is None:
            raise RuntimeError("the swap was not begun")
        self._finishing = True
        segments, jobs = state.segments, state.jobs
        jobs.undo = None
        due_ms = self._now_ms() + state.config.file_delete_delay_ms
        segments.remove(self._old, due_ms=due_ms)
        segment.index_interval_bytes = state.config.index_interval_bytes
        segment.take_names(jobs)
        segments.insert(segment)
        for path in self._paths[:-1]:
            jobs.add(Rename(path + names.SWAP, path))
        jobs.add(Rename(self._paths[-1] + names.SWAP, self._paths[-1], self._named))
        for old in self._old[1:]:
            snapshot = state.snapshots.forget(old.base_offset)
            if snapshot is not None:
                segments.schedule_delete(snapshot, due_ms=due_ms)

    def _named(self) -> None:
        if self._segment is not None:
            self._segment.names_taken(self._state.segments.open_files)
        self._state.changes.changed()  # the next flush syncs the folder

    def undo(self) -> None:
        """Delete the new files, unless `settle` has begun: then only a start can finish the swap.
        The log's `.swap` first becomes `.cleaned` again: the next start ignores a `.swap` beside a
        `.cleaned` file.
        """
        if self._finishing:
            return
        self._state.jobs.undo = None
        with self._lock:
            self._undone = True
            if self._begun:
                rename(self._paths[0] + names.SWAP, self._paths[0] + names.CLEANED)
                self._begun = False
        self._segment = None
        for path in reversed(self._paths):
            unlink(path + names.SWAP)
            unlink(path + names.CLEANED)
