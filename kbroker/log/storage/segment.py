"""A segment that can be written: record batches in `<base offset>.log`, and their indexes.

Reading is in `indexed_segment`, the file itself in `segment_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.log.storage.faults import make_lasting
from kbroker.log.storage.files import (
    LogDirectoryError,
    create_file,
)
from kbroker.log.storage.index import IndexTrim
from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET
from kbroker.log.storage.indexed_segment import NO_TIMESTAMP, IndexedSegment
from kbroker.log.storage.open_files import OpenFiles
from kbroker.protocol.batches.batch_header import LENGTH_OVERHEAD, BatchHeader
from kbroker.settings.views.log_config import LogConfig


class Segment(IndexedSegment):
    """A segment that can be appended to, closed, truncated and recovered."""

    __slots__ = (
        "created_ms",
        "largest_offset",
        "latest_timestamp",
        "preallocated",
        "roll_jitter_ms",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        size: int,
        config: LogConfig,
        open_files: OpenFiles,
        created_ms: int,
        has_transaction_index: bool = False,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """Describes existing files; `create` makes new ones. suffix: as in IndexedSegment."""
        super().__init__(
            directory,
            base_offset,
            size=size,
            config=config,
            open_files=open_files,
            has_transaction_index=has_transaction_index,
            suffix=suffix,
        )
        self.largest_offset = (
            base_offset + MAX_RELATIVE_OFFSET
        )  # the largest that fits into an index entry
        self.preallocated = False
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.latest_timestamp = NO_TIMESTAMP
        """A batch with a later timestamp needs a new segment. Known while `index_room` is
        positive.
        """

    @classmethod
    def create(
        cls,
        directory: str,
        base_offset: int,
        *,
        config: LogConfig,
        open_files: OpenFiles,
        now_ms: int,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> Segment:
        """Create the files of a new active segment: an empty log and two preallocated indexes."""
        segment = cls(
            directory,
            base_offset,
            size=0,
            config=config,
            open_files=open_files,
            created_ms=now_ms,
            roll_jitter_ms=roll_jitter_ms,
            suffix=suffix,
        )
        # internal.segment.bytes may be negative: no batch fits then, nothing is preallocated
        create_file(segment.path, max(config.segment_bytes, 0) if config.preallocate else 0)
        segment.preallocated = config.preallocate
        segment.offset_index.create(config.segment_index_bytes)
        segment.time_index.create(config.segment_index_bytes)
        segment.transaction_index.delete()
        segment._max_timestamp_known = True
        return segment

    # -- appending --------------------------------------------------------------------------------

    def append(
        self, batches: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]
    ) -> None:
        """Write whole batches at the end: one system call; then the index entries that are due.

        headers: of those batches, with their final offsets. After a fault the file is truncated to
        its previous size. Raises LogDirectoryError.
        """
        self.append_sized(
            batches,
            [
                (
                    header.batch_length + LENGTH_OVERHEAD,
                    header.base_offset + header.last_offset_delta,
                    header.max_timestamp,
                )
                for header in headers
            ],
        )

    def append_sized(
        self, batches: bytes | bytearray | memoryview, sized: Iterable[tuple[int, int, int]]
    ) -> None:
        """As `append`. sized: the size in bytes, last offset and max timestamp of each batch."""
        file = self.file
        if file is None:
            file = self.log_file()
        self.used = True
        if not self._max_timestamp_known:
            self._load_max_timestamp()
        position = start = self.size
        since = self.bytes_since_index_entry
        try:
            file.write_at(batches, start)
            for size, last_offset, max_timestamp in sized:
                if max_timestamp > self._max_timestamp:
                    self._max_timestamp = max_timestamp
                    self._max_timestamp_offset = last_offset
                if since > self.index_interval_bytes:
                    self.offset_index.append(last_offset, position)
                    self.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
                    self.index_room -= 1
                    since = 0
                if not position and max_timestamp >= 0 and self._rolling_timestamp is None:
                    self._rolling_timestamp = max_timestamp
                since += size
                position += size
        except LogDirectoryError as error:
            make_lasting(error)  # indexes and largest timestamp may be ahead of the file
            file.truncate(start)
            raise
        self.bytes_since_index_entry = since
        self.size = position

    def can_hold(self, last_offset: int) -> bool:
        """Whether last_offset fits into the 31 bits of an index entry."""
        return self.base_offset <= last_offset <= self.largest_offset

    def should_roll(
        self,
        incoming_bytes: int,
        last_offset: int,
        max_timestamp: int,
        config: LogConfig,
        now_ms: int,
    ) -> bool:
        """Whether these batches need a new segment, because of size, age, a full index, or an
        offset that is too far from the base offset. Changes nothing.
        """
        size = self.size
        if (
            size > config.segment_bytes - incoming_bytes
            or not self.base_offset <= last_offset <= self.largest_offset
            or (self.index_room <= 0 and self._room_in_indexes() <= 0)
        ):
            return True
        if not size:
            return False
        first = self._rolling_timestamp
        if first is None:
            first = self.first_timestamp
        longest_ms = config.max_segment_ms - self.roll_jitter_ms
        if first < 0:
            return now_ms - self.created_ms > longest_ms
        return max_timestamp > first + longest_ms

    def learn_limits(self, config: LogConfig) -> None:
        """After an append: store the largest timestamp, and the number of index entries, for which
        `should_roll` is false; the first branch of `AppendableLog.append` uses them. Reads no file.
        Nothing is stored for a segment whose first batch has no timestamp: its age counts from its
        creation.
        """
        first = self._rolling_timestamp
        if first is not None:
            self.latest_timestamp = first + config.max_segment_ms - self.roll_jitter_ms
            self.index_room = self._room_in_indexes()

    def forget_limits(self) -> None:
        """Called when the configuration or the jitter changed."""
        self.index_room = 0

    def _room_in_indexes(self) -> int:
        return min(self.offset_index.room, self.time_index.room)

    # -- closing ----------------------------------------------------------------------------------

    def become_inactive(self) -> None:
        """At a roll: add the last time index entry, trim the files."""
        trims = self.begin_closing()
        for trim in trims:
            trim.run()
        self.end_closing(trims)

    def begin_closing(self) -> tuple[IndexTrim, IndexTrim]:
        """Add the last time index entry and accept no more batches: `should_roll` returns True.
        Returns the jobs that trim the indexes, for any thread.
        """
        self._add_last_time_entry()
        self.largest_offset = self.base_offset - 1
        return self.offset_index.begin_trim(), self.time_index.begin_trim()

    def cancel_closing(self) -> None:
        """The roll failed, and changed nothing but the length of the index files: accept batches
        again. The index entry that was added stays, which is valid in an active segment too.
        """
        self.largest_offset = self.base_offset + MAX_RELATIVE_OFFSET
        self.forget_limits()

    def end_closing(self, trims: tuple[IndexTrim, IndexTrim]) -> None:
        """Called after the trims have run."""
        self.largest_offset = self.base_offset + MAX_RELATIVE_OFFSET
        for trim in trims:
            trim.settle()
        self._cut_to_size()

    def _cut_to_size(self) -> None:
        """Truncate a preallocated file after its last batch, also if the file is not open."""
        file = self.log_file() if self.preallocated else self.file
        if file is not None and file.size() > self.size:
            file.truncate(self.size)
        self.preallocated = False

    def write_pending(self) -> None:
        """Write pending index entries (no fsync)."""
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def close(self) -> None:
        """Close cleanly: add the last time index entry, trim the files. A segment that was not used
        is left unchanged.
        """
        if self._max_timestamp_known:
            self._add_last_time_entry()
        self.offset_index.trim()
        self.time_index.trim()
        self._cut_to_size()
        self.close_file()

    def file_paths(self) -> list[str]:
        """Its files, in the order Kafka renames them."""
        paths = [self.path, self.offset_index.path, self.time_index.path]
        if self.transaction_index.exists:
            paths.append(self.transaction_index.path)
        return paths

    # -- truncation and recovery ------------------------------------------------------------------

    def truncate_to(self, offset: int, *, index_bytes: int, now_ms: int) -> None:
        """Truncate before the batch that contains offset; the segment becomes the active one."""
        position = self.position_of(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self._positions = None
        if position < self.size:
            self.log_file().truncate(position)
            self.size = position
        self.offset_index.preallocate(index_bytes)
        self.time_index.preallocate(index_bytes)
        if self.size == 0:
            self.created_ms = now_ms
        self._rolling_timestamp = None
        self.index_room = 0
        self.bytes_since_index_entry = 0
        self._max_timestamp_known = False

    def begin_recovery(self) -> None:
        """Clear the indexes: the log is about to be scanned."""
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self._positions = None
        self._rolling_timestamp = None
        self.index_room = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._max_timestamp_known = True
        self.bytes_since_index_entry = 0

    def end_recovery(self, valid_bytes: int, max_timestamp: int, max_timestamp_offset: int) -> None:
        """Truncate the file after the valid batches, close the indexes."""
        self._max_timestamp = max_timestamp
        self._max_timestamp_offset = max_timestamp_offset
        file = self.log_file()
        if file.size() > valid_bytes:
            file.truncate(valid_bytes)
        self.size = valid_bytes
        self.bytes_since_index_entry = 0
        self._add_last_time_entry()
        self.offset_index.trim()
        self.time_index.trim()
