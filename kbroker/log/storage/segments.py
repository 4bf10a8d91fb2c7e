"""The ordered segments of one partition: lookup, reads across segments, adding, and removal in two
steps.

A removed segment is renamed to `.deleted` by a job of the log's queue (`disk_jobs`), and its files
are deleted after file.delete.delay.ms, as in Kafka; reads in progress keep their descriptor.
`partition_log` interprets the records (producers, epochs, offsets).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from random import Random

from kbroker.log.storage import names
from kbroker.log.storage.disk_jobs import DiskJobs, Rename
from kbroker.log.storage.files import FileSlice, LogFile
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.model import InvariantError
from kbroker.settings.views.log_config import LogConfig


class Segments:
    """At least one segment; the last is active. All records below the base offset of the first are
    deleted.
    """

    __slots__ = (
        "_bases",
        "_items",
        "_jobs",
        "_latest",
        "active",
        "deleted_files",
        "directory",
        "open_files",
        "random",
    )

    active: Segment

    def __init__(
        self,
        directory: str,
        open_files: OpenFiles,
        random: Random | None = None,
        *,
        jobs: DiskJobs | None = None,
    ) -> None:
        """jobs: those of the log."""
        self.directory = directory
        self.open_files = open_files
        self.random = random
        self._jobs = DiskJobs(directory) if jobs is None else jobs
        self._items: list[Segment] = []
        self._bases: list[int] = []
        self._latest: list[int] | None = None
        """The largest timestamp up to each closed segment; None: must be determined again."""
        self.deleted_files: deque[tuple[int, str]] = deque()
        """(due time in ms, path) of files that were renamed to `.deleted`."""

    def share(self, open_files: OpenFiles, random: Random) -> None:
        """Use the resources that all logs of the node share from now on. No file of this log may be
        open.
        """
        self.open_files = open_files
        self.random = random
        for segment in self._items:
            segment.open_files = open_files

    def lend(self, jobs: DiskJobs, open_files: OpenFiles) -> Segments:
        """The same segments for a worker, with its own jobs and open files. This object must not be
        used until `take_back`.
        """
        lent = Segments(self.directory, open_files, jobs=jobs)
        lent._items = self._items.copy()
        lent._bases = self._bases.copy()
        lent.active = self.active
        for segment in self._items:
            segment.close_file()
            segment.release()
            segment.open_files = open_files
        return lent

    def release(self) -> None:
        """Called by the worker when it is done: release all files and loaded indexes."""
        for segment in self._items:
            segment.close_file()
            segment.release()

    def take_back(self, lender: Segments, jobs: DiskJobs) -> None:
        """Called on the segments that a worker has released: they replace the lender, which is not
        used any more.
        """
        self._jobs = jobs
        lender.deleted_files.extend(self.deleted_files)
        self.deleted_files = lender.deleted_files
        self.open_files = lender.open_files
        self.random = lender.random
        for segment in self._items:
            segment.open_files = self.open_files

    def roll_jitter_ms(self, config: LogConfig) -> int:
        """How much earlier than segment.ms one segment rolls, so that not all roll at once: random,
        from 0 to segment.jitter.ms (exclusive). 0 without a random number generator.
        """
        limit_ms = min(config.segment_jitter_ms, config.segment_ms)
        return self.random.randrange(limit_ms) if self.random and limit_ms > 0 else 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._items)

    def __getitem__(self, index: int) -> Segment:
        return self._items[index]

    @property
    def first(self) -> Segment:
        return self._items[0]

    @property
    def base_offsets(self) -> list[int]:
        """Ascending; must not be changed by the caller."""
        return self._bases

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._items)

    def add(self, segment: Segment) -> None:
        """Append a segment, which becomes the active one. Raises InvariantError if its base offset
        is out of order.
        """
        if self._bases and segment.base_offset <= self._bases[-1]:
            raise InvariantError(f"{segment.path} does not follow segment {self._bases[-1]}")
        self._items.append(segment)
        self._bases.append(segment.base_offset)
        self._latest = None
        self.active = segment

    def insert(self, segment: Segment) -> None:
        """Insert a rewritten segment in place of the removed ones. Never the active segment."""
        index = bisect_left(self._bases, segment.base_offset)
        if index == len(self._bases) or self._bases[index] == segment.base_offset:
            raise InvariantError(f"{segment.path} has no place among the segments")
        self._items.insert(index, segment)
        self._bases.insert(index, segment.base_offset)
        self._latest = None

    def create_active(self, base_offset: int, *, config: LogConfig, now_ms: int) -> Segment:
        """Create a new active segment on disk and append it."""
        segment = Segment.create(
            self.directory,
            base_offset,
            config=config,
            open_files=self.open_files,
            now_ms=now_ms,
            roll_jitter_ms=self.roll_jitter_ms(config),
        )
        self.add(segment)
        return segment

    def floor_index(self, offset: int) -> int:
        """Index of the segment that contains offset; 0 for offsets before all segments."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def at_or_after(self, offset: int) -> list[Segment]:
        """The segments whose base offset is at or after offset."""
        return self._items[bisect_left(self._bases, offset) :]

    def end_offset(self, index: int, log_end_offset: int) -> int:
        """The end offset of the segment at index (exclusive)."""
        following = index + 1
        return self._bases[following] if following < len(self._bases) else log_end_offset

    # -- reading ----------------------------------------------------------------------------------

    def read(
        self,
        fetch_offset: int,
        *,
        max_bytes: int,
        upper_offset: int,
        log_end_offset: int,
        min_one_batch: bool,
    ) -> tuple[FileSlice | None, int]:
        """(slice, its end offset (exclusive)) of one segment: the first that has a batch at or
        after fetch_offset.
        """
        items = self._items
        index = bisect_right(self._bases, fetch_offset) - 1
        while True:
            segment = items[index]
            end_offset = self.end_offset(index, log_end_offset)
            if upper_offset >= end_offset:
                end_position = segment.size
            else:
                end_offset = upper_offset
                end_position = segment.position_of(upper_offset)
            found, reached = segment.read(
                fetch_offset,
                max_bytes=max_bytes,
                end_position=end_position,
                end_offset=end_offset,
                min_one_batch=min_one_batch,
            )
            if found is not None or reached < end_offset or end_offset >= upper_offset:
                return found, reached
            fetch_offset = end_offset
            index += 1

    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [fetch_offset, upper_offset), in order of their
        markers.
        """
        found: list[AbortedTransaction] = []
        for index in range(self.floor_index(fetch_offset), len(self._items)):
            if self._items[index].transaction_index.collect(fetch_offset, upper_offset, found):
                break
        return found

    # -- by time ----------------------------------------------------------------------------------

    def latest_timestamps(self) -> list[int]:
        """The largest timestamp up to each closed segment. Must not be changed by the caller."""
        latest = self._latest
        if latest is None:
            closed = (segment.max_timestamp for segment in self._items[:-1])
            latest = self._latest = list(accumulate(closed, max))
        return latest

    @property
    def knows_latest_timestamps(self) -> bool:
        """Whether `latest_timestamps` is known without reading a closed segment."""
        return self._latest is not None

    def has(self, segment: Segment) -> bool:
        """Whether this is still one of the segments."""
        index = bisect_left(self._bases, segment.base_offset)
        return index < len(self._items) and self._items[index] is segment

    def modified_times(self, log_start_offset: int) -> list[tuple[int, int]]:
        """(first offset, when its file was last written, in ms) of each segment."""
        return [
            (max(segment.base_offset, log_start_offset), segment.modified_ms()) for segment in self
        ]

    # -- flushing ---------------------------------------------------------------------------------

    def files_to_sync(
        self, recovery_point: int, up_to: int, snapshot_path: Callable[[int], str | None]
    ) -> list[LogFile]:
        """The files with data between the two offsets, and the producer snapshots at the end of
        closed segments. Writes pending index entries of closed segments. snapshot_path: returns the
        path of the snapshot at an offset, None if there is none.
        """
        files: list[LogFile] = []
        for index in range(self.floor_index(recovery_point), len(self)):
            segment = self._items[index]
            if segment.base_offset >= up_to and segment.base_offset > recovery_point:
                break
            if segment.size:
                files.append(segment.log_file())
            if segment is not self.active:
                segment.write_pending()
                files += [LogFile(path) for path in segment.file_paths()[1:]]
                following = self._bases[index + 1]
                snapshot = snapshot_path(following)
                if snapshot is not None:
                    files.append(LogFile(snapshot))
            elif segment.transaction_index.exists:
                files.append(LogFile(segment.transaction_index.path))
        return files

    # -- removing ---------------------------------------------------------------------------------

    def remove(self, removed: Iterable[Segment], *, due_ms: int) -> None:
        """Remove segments from the list and queue jobs that rename their files to `.deleted`; the
        renamed files are deleted at due_ms.
        """
        for segment in list(removed):
            if self._jobs.undo is not None:
                self._jobs.undo()
            index = bisect_left(self._bases, segment.base_offset)
            if index == len(self._bases) or self._items[index] is not segment:
                raise InvariantError(f"{segment.path} is no segment of this log")
            del self._items[index], self._bases[index]
            self._latest = None
            segment.close_file()
            for path in segment.file_paths():
                self.schedule_delete(path, due_ms=due_ms)
        if self._items:
            self.active = self._items[-1]

    def schedule_delete(self, path: str, *, due_ms: int) -> None:
        """Queue a job that renames a file, which may be missing, to `.deleted`; the renamed file is
        deleted at due_ms.
        """
        deleted = path + names.DELETED
        remember = partial(self.deleted_files.append, (due_ms, deleted))
        self._jobs.add(Rename(path, deleted, remember, may_be_gone=True))

    def take_due_files(self, now_ms: int) -> list[str]:
        """The renamed files whose deletion is due; the caller deletes them."""
        due = []
        while self.deleted_files and self.deleted_files[0][0] <= now_ms:
            due.append(self.deleted_files.popleft()[1])
        return due
