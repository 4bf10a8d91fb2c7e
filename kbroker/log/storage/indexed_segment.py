"""A segment with its indexes: finds an offset or a time in the log file and reads from there.

Positions are found without system calls where possible: `_positions` has the offsets of readers
that continue where they stopped, or wait at the log end. Otherwise the offset index gives the entry
before the offset, and batch headers are scanned over at most one index interval. An index that
contradicts the log is rebuilt from the log, once.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator
from typing import Final

from kbroker.log.storage import names
from kbroker.log.storage.files import FileSlice, file_size
from kbroker.log.storage.index import (
    CorruptIndexError,
    OffsetIndex,
    TimeIndex,
)
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment_file import SegmentFile
from kbroker.log.storage.transaction_index import TransactionIndex
from kbroker.protocol.batches.any_magic import check_any_crc, read_any_header
from kbroker.protocol.batches.batch_header import MAGIC
from kbroker.protocol.errors import KafkaError
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)

MAX_POSITIONS: Final = 64
NO_TIMESTAMP: Final = -1


class IndexedSegment(SegmentFile):
    """A segment that is read: by offset, by position and by time."""

    __slots__ = (
        "__weakref__",
        "_indexes_rebuilt",
        "_max_timestamp",
        "_max_timestamp_known",
        "_max_timestamp_offset",
        "_positions",
        "_rolling_timestamp",
        "bytes_since_index_entry",
        "index_interval_bytes",
        "index_room",
        "offset_index",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        size: int,
        config: LogConfig,
        open_files: OpenFiles,
        has_transaction_index: bool = False,
        suffix: str = "",
    ) -> None:
        """Describes existing files. suffix: appended to the name of each file."""
        prefix = os.path.join(directory, names.offset_name(base_offset, ""))
        super().__init__(prefix + names.LOG + suffix, base_offset, size=size, open_files=open_files)
        self.index_interval_bytes = config.index_interval_bytes
        self.offset_index = OffsetIndex(
            prefix + names.INDEX + suffix, base_offset, config.segment_index_bytes
        )
        self.time_index = TimeIndex(
            prefix + names.TIME_INDEX + suffix, base_offset, config.segment_index_bytes
        )
        self.transaction_index = TransactionIndex(
            prefix + names.TRANSACTION_INDEX + suffix, exists=has_transaction_index
        )
        self.offset_index.owner = self.time_index.owner = weakref.ref(self)
        self._indexes_rebuilt = False
        self.bytes_since_index_entry = 0
        self.index_room = 0  # entries that surely fit; 0: unknown, like the segment's limits
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._max_timestamp_known = False
        self._rolling_timestamp: int | None = None
        self._positions: dict[int, int] | None = None

    def release(self) -> None:
        """Called by OpenFiles: close the descriptor and unload the indexes."""
        self.file = None
        self.offset_index.unload()
        self.time_index.unload()

    # -- by offset --------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """The position of the batch that contains offset, or else of the first batch after it;
        `size` if there is none.
        """
        if offset <= self.base_offset:
            return 0
        positions = self._positions
        if positions is not None:
            known = positions.get(offset)
            if known is not None:
                return known
        try:
            position = self._position_from(offset)
        except KafkaError as error:
            if not self.rebuild_indexes(self._misled(error)):
                raise
            position = self._position_from(offset)
        if position < self.size:
            self.remember(offset, position)
        return position

    def _position_from(self, offset: int) -> int:
        for position, _, last_offset, _, _ in self._scan_entry(*self.offset_index.lookup(offset)):
            if last_offset >= offset:
                return position
        return self.size

    def _scan_entry(
        self, offset: int, position: int, end: int | None = None
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """`scan` from an entry of the offset index on, whose offset must be the last offset of the
        batch there. (Before version 4 Kafka stored the last offset of one append, or of the last
        record that a compaction kept.) Raises KafkaError if it is not.
        """
        found = self.scan(position, end)
        if position:
            first = next(found, None)
            if first is None or not self._is_entry(offset, *first):
                raise self._corrupt(position, MAGIC, self.size - position)
            yield first
        yield from found

    def _is_entry(
        self, offset: int, position: int, base_offset: int, last_offset: int, size: int, _: int
    ) -> bool:
        if not self.base_offset <= base_offset <= min(offset, last_offset):
            return False
        if last_offset == offset:
            return True
        batch = self.log_file().read_at(position, size)
        return check_any_crc(batch, 0, read_any_header(batch))

    def remember(self, offset: int, position: int) -> None:
        """Remember the position of the batch of offset, for the next reader."""
        positions = self._positions
        if positions is None:
            positions = self._positions = {}
        elif len(positions) >= MAX_POSITIONS and offset not in positions:
            del positions[next(iter(positions))]
        positions[offset] = position

    def read(
        self,
        fetch_offset: int,
        *,
        max_bytes: int,
        end_position: int,
        end_offset: int,
        min_one_batch: bool,
    ) -> tuple[FileSlice | None, int]:
        """(slice of whole batches from the one that contains fetch_offset, its end offset
        (exclusive)).

        end_position, end_offset: the upper bound, a batch boundary. A first batch larger than
        max_bytes is returned alone with min_one_batch, otherwise not. None if there are no batches.
        """
        start = self.position_of(fetch_offset)
        if end_position - start <= max_bytes:
            if start >= end_position:
                return None, end_offset
            self.remember(end_offset, end_position)
            return FileSlice(self.log_file(), start, end_position - start), end_offset
        limit = start + max(max_bytes, 0)
        floor = self.offset_index.floor_of_position(limit)
        try:
            end, end_offset = self._cut_at(floor, start, limit, end_position, end_offset)
        except KafkaError as error:
            if floor[1] <= start or not self.rebuild_indexes(self._misled(error)):
                raise
            floor = self.offset_index.floor_of_position(limit)
            end, end_offset = self._cut_at(floor, start, limit, end_position, end_offset)
        if end > limit and not min_one_batch:
            return None, fetch_offset
        self.remember(end_offset, end)
        file = self.file or self.log_file()  # `_cut_at` has opened and marked it
        return FileSlice(file, start, end - start), end_offset

    def _cut_at(
        self, floor: tuple[int, int], start: int, limit: int, end_position: int, end_offset: int
    ) -> tuple[int, int]:
        """(position, offset) of the last batch boundary at or before limit, or of the end of the
        batch at start if that is larger. floor: an index entry that is not after limit.
        """
        end = start
        batches = (
            self._scan_entry(*floor, end_position)
            if floor[1] > start
            else self.scan(start, end_position)
        )
        for position, base_offset, last_offset, size, _ in batches:
            end, end_offset = position, base_offset
            if position + size > limit:
                if position == start:
                    end, end_offset = position + size, last_offset + 1
                break
        return end, end_offset

    def next_offset(self) -> int:
        """The offset after the last batch; the base offset of an empty segment."""
        if not self.size:
            return self.base_offset
        try:
            return self._next_offset()
        except KafkaError as error:
            if not self.rebuild_indexes(self._misled(error)):
                raise
            return self._next_offset()

    def _next_offset(self) -> int:
        offset, position = self.offset_index.last_entry
        next_offset = self.base_offset
        for _, _, last_offset, _, _ in self._scan_entry(offset, position):
            next_offset = last_offset + 1
        if offset >= next_offset:
            raise self._corrupt(position, MAGIC, self.size - position)
        return next_offset

    # -- by time ----------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all batches, -1 without any."""
        if not self._max_timestamp_known:
            self._load_max_timestamp()
        return self._max_timestamp

    @property
    def knows_max_timestamp(self) -> bool:
        """Whether `max_timestamp` is known without reading the files."""
        return self._max_timestamp_known

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch with that timestamp."""
        if not self._max_timestamp_known:
            self._load_max_timestamp()
        return self._max_timestamp_offset

    def _load_max_timestamp(self) -> None:
        timestamp, offset = self._checked_time_entry(*self.time_index.last_entry)
        if self._max_timestamp_known:
            return  # the indexes were rebuilt
        if self.size:
            for _, _, last_offset, _, max_timestamp in self.scan(self.position_of(offset)):
                if max_timestamp > timestamp:
                    timestamp, offset = max_timestamp, last_offset
        self._max_timestamp = timestamp
        self._max_timestamp_offset = offset
        self._max_timestamp_known = True

    def largest_timestamp(self) -> int:
        """For retention: the largest timestamp, or the file's modification time if the records have
        none. For a segment with a damaged batch the last entry of its time index counts, or it
        would never be deleted.
        """
        try:
            timestamp = self.max_timestamp
        except KafkaError as error:
            logger.debug(
                "%s: using the time index for the age of the segment: %s", self.path, error
            )
            timestamp, _ = self.time_index.last_entry
        return timestamp if timestamp >= 0 else self.modified_ms()

    def index_file_bytes(self) -> tuple[int, int]:
        """File sizes in bytes of the offset index and of the time index. Raises
        LogDirectoryError.
        """
        return file_size(self.offset_index.path), file_size(self.time_index.path)

    @property
    def first_timestamp(self) -> int:
        """The max timestamp of the first batch, from which the segment's age counts; -1 for an
        empty segment.
        """
        if self._rolling_timestamp is None and self.size:
            for _, _, _, _, timestamp in self.scan(0):
                self._rolling_timestamp = timestamp if timestamp >= 0 else None
                break
        return NO_TIMESTAMP if self._rolling_timestamp is None else self._rolling_timestamp

    def position_for_timestamp(self, timestamp: int, start_offset: int) -> int:
        """The position at which to begin the search for the first record with this timestamp or a
        later one.
        """
        entry = self._checked_time_entry(*self.time_index.lookup(timestamp))
        if self._indexes_rebuilt:
            entry = self.time_index.lookup(timestamp)
        return self.position_of(max(entry[1], start_offset))

    def _checked_time_entry(self, timestamp: int, offset: int) -> tuple[int, int]:
        """An entry of the time index, after a check that its batch has that timestamp; if it has
        not, the indexes are rebuilt.
        """
        if timestamp >= 0 and not self._indexes_rebuilt:
            position = self.position_of(offset)
            found = next(self.scan(position), None) if position < self.size else None
            if found is None or found[4] != timestamp:
                self.rebuild_indexes(
                    CorruptIndexError(
                        f"{self.time_index.path}: the batch with offset {offset} does not have the "
                        f"timestamp {timestamp}"
                    )
                )
        return timestamp, offset

    # -- damaged indexes --------------------------------------------------------------------------

    def _misled(self, error: KafkaError) -> CorruptIndexError:
        return CorruptIndexError(f"{self.offset_index.path}: following it, {error.message}")

    def rebuild_indexes(self, error: CorruptIndexError) -> bool:
        """Rebuild both indexes from the batch headers of the log; once. Returns whether they were
        rebuilt: not if the log itself is damaged, or if they had been rebuilt before.
        """
        if self._indexes_rebuilt:
            return False
        self._indexes_rebuilt = True
        entries: list[tuple[int, int, int, int]] = []
        since, timestamp, timestamp_offset = 0, NO_TIMESTAMP, self.base_offset
        try:
            for position, _, last_offset, size, max_timestamp in self.scan(0):
                if max_timestamp > timestamp:
                    timestamp, timestamp_offset = max_timestamp, last_offset
                if since > self.index_interval_bytes:
                    entries.append((last_offset, position, timestamp, timestamp_offset))
                    since = 0
                since += size
        except KafkaError:
            return False
        logger.warning("%s; rebuilt the indexes of the segment", error)
        self.offset_index.reset()
        self.time_index.reset()
        for last_offset, position, max_timestamp, max_timestamp_offset in entries:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(max_timestamp, max_timestamp_offset)
        self._positions = None
        self.index_room = 0
        self.bytes_since_index_entry = since
        self._max_timestamp, self._max_timestamp_offset = timestamp, timestamp_offset
        self._max_timestamp_known = True
        self._add_last_time_entry()
        self.offset_index.trim()
        self.time_index.trim()
        return True

    def _add_last_time_entry(self) -> None:
        self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset, last=True)
