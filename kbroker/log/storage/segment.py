"""One segment: a run of record batches in `<base offset>.log`, and its indexes.

The file is opened when first needed and given back when `OpenFiles` says so; reads that are under
way keep it. Positions are found without system calls where they can be: readers that go on where
they stopped, or wait at the end, find their offset in `_positions`; else the offset index gives a
floor and at most an index interval of headers is scanned.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from struct import Struct
from typing import Final

from kbroker.log.producer.producer_state import REMEMBERED_BATCHES
from kbroker.log.storage import names
from kbroker.log.storage.files import (
    FileSlice,
    LoadedIndexes,
    LogDirectoryError,
    LogFile,
    OpenFiles,
    create_file,
    modified_ms,
)
from kbroker.log.storage.index import (
    MAX_RELATIVE_OFFSET,
    CorruptIndexError,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    Trim,
)
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.legacy_records import check_any_crc, is_legacy, read_any_header
from kbroker.protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL_FLAG,
    HEADER,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

SCAN_CHUNK_BYTES: Final = 8 * 1024
"""One read of headers: covers the default index interval and the batch behind it."""
MAX_POSITIONS: Final = 64
NO_TIMESTAMP: Final = -1
NOT_ORDINARY: Final = TRANSACTIONAL_FLAG | CONTROL_FLAG

_random: Final = Random()

_SCAN = Struct(">qi4xb6xi8xq")
"""base offset, length, magic, last offset delta, max timestamp: the first 43 bytes of a batch."""


def roll_jitter_ms(config: LogConfig) -> int:
    """How much sooner than its age says one segment rolls, so that not all do at once."""
    jitter = min(config.segment_jitter_ms, config.segment_ms)
    return _random.randrange(jitter) if jitter > 0 else 0


class Segment:
    """base_offset: the offset in its name. size: bytes of whole batches in the file."""

    __slots__ = (
        "__weakref__",
        "_indexes_rebuilt",
        "_max_timestamp",
        "_max_timestamp_known",
        "_max_timestamp_offset",
        "_positions",
        "_rolling_timestamp",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "file",
        "index_interval_bytes",
        "index_room",
        "largest_offset",
        "latest_timestamp",
        "offset_index",
        "open_files",
        "path",
        "preallocated",
        "roll_jitter_ms",
        "settings",
        "size",
        "time_index",
        "transaction_index",
        "used",
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
        """Describes files that are there; `create` makes them. suffix: behind each file's name."""
        prefix = os.path.join(directory, names.offset_name(base_offset, ""))
        self.base_offset = base_offset
        self.largest_offset = base_offset + MAX_RELATIVE_OFFSET  # that fits into an index entry
        self.path = prefix + names.LOG + suffix
        self.size = size
        self.preallocated = False
        self.file: LogFile | None = None
        self.used = False
        self.open_files = open_files
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
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._max_timestamp_known = False
        self._rolling_timestamp: int | None = None
        self.index_room = 0  # entries that fit for certain; looked up again at 0
        self.settings: LogConfig | None = None  # those that `latest_timestamp` was found with
        self.latest_timestamp = NO_TIMESTAMP
        """What is later belongs into a new segment; known while `settings` are."""
        self._positions: dict[int, int] | None = None

    @classmethod
    def create(
        cls,
        directory: str,
        base_offset: int,
        *,
        config: LogConfig,
        open_files: OpenFiles,
        now_ms: int,
        suffix: str = "",
    ) -> Segment:
        """Make the files of a new active segment: an empty log and two preallocated indexes."""
        segment = cls(
            directory,
            base_offset,
            size=0,
            config=config,
            open_files=open_files,
            created_ms=now_ms,
            roll_jitter_ms=roll_jitter_ms(config),
            suffix=suffix,
        )
        # internal.segment.bytes may be negative: no batch fits then, nothing is to be reserved
        create_file(segment.path, max(config.segment_bytes, 0) if config.preallocate else 0)
        segment.preallocated = config.preallocate
        segment.offset_index.create(config.segment_index_bytes)
        segment.time_index.create(config.segment_index_bytes)
        segment.transaction_index.delete()
        segment._max_timestamp_known = True
        return segment

    # -- the file ---------------------------------------------------------------------------------

    def log_file(self) -> LogFile:
        """The open file; opened if it is not."""
        file = self.file
        if file is None:
            file = self.file = LogFile(self.path)
            self.open_files.opened(self)
        self.used = True
        return file

    def modified_ms(self) -> int:
        """When the log was last written. By its name only if it isn't open: see `swap`."""
        return modified_ms(self.path) if self.file is None else self.file.modified_ms()

    @property
    def loaded_indexes(self) -> LoadedIndexes:
        """Who bounds the memory of indexes."""
        return self.open_files.indexes

    def release(self) -> None:
        """Called by OpenFiles: do without the descriptor and the loaded index."""
        self.file = None
        self.offset_index.unload()
        self.time_index.unload()

    def close_file(self) -> None:
        """Let the descriptor go; a FileSlice in flight still holds it."""
        if self.file is not None:
            self.open_files.forget(self)
            self.release()

    # -- appending --------------------------------------------------------------------------------

    def append(
        self, batches: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]
    ) -> None:
        """Write whole batches at the end: one system call; then the index entries that are due.

        headers: of those batches, with the offsets they have now. After a fault the file is cut
        back to what it was. Raises LogDirectoryError.
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
        """The same. sized: of each batch its bytes, last offset and max timestamp."""
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
        except LogDirectoryError:
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
        """Whether these batches belong into a new segment: size, age, full index, or an offset too
        far away. `next_batch` asks only where what was found here last does not say so.
        """
        size = self.size
        if (
            size > config.segment_bytes - incoming_bytes
            or not self.base_offset <= last_offset <= self.largest_offset
        ):
            return True
        if self.index_room <= 0:
            self.index_room = min(self.offset_index.room, self.time_index.room)
            if self.index_room <= 0:
                return True
        if not size:
            return False
        first = self._rolling_timestamp
        if first is None:
            first = self.first_timestamp
        longest_ms = config.max_segment_ms - self.roll_jitter_ms
        if first < 0:
            return now_ms - self.created_ms > longest_ms
        self.settings, self.latest_timestamp = config, first + longest_ms
        return max_timestamp > self.latest_timestamp

    def become_inactive(self) -> None:
        """At a roll: add the closing time entry, cut files to size."""
        trims = self.begin_closing()
        for trim in trims:
            trim.work()
        self.end_closing(trims)

    def begin_closing(self) -> tuple[Trim, Trim]:
        """Add the closing time entry and take no batch any more: `should_roll` says so. What cuts
        the indexes to size, for any thread.
        """
        self._add_last_time_entry()
        self.largest_offset = self.base_offset - 1
        return self.offset_index.begin_trim(), self.time_index.begin_trim()

    def end_closing(self, trims: tuple[Trim, Trim]) -> None:
        """Those are done."""
        self.largest_offset = self.base_offset + MAX_RELATIVE_OFFSET
        self.offset_index.end_trim(trims[0])
        self.time_index.end_trim(trims[1])
        self._cut_to_size()

    def _cut_to_size(self) -> None:
        """What a preallocated file has behind its batches goes, also if it isn't open now."""
        file = self.log_file() if self.preallocated else self.file
        if file is not None and file.size() > self.size:
            file.truncate(self.size)
        self.preallocated = False

    def _add_last_time_entry(self) -> None:
        self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset, last=True)

    # -- finding and reading ----------------------------------------------------------------------

    def scan(
        self, position: int, end: int | None = None
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """(position, base offset, last offset, size, max timestamp) of the batches from position
        on.

        position: where a batch begins. Reads bounded chunks, never a batch's records as such.
        Raises KafkaError(CORRUPT_MESSAGE) for bytes that are no batch.
        """
        if end is None:
            end = self.size
        file = self.log_file()
        unpack = _SCAN.unpack_from
        while position < end:
            data = file.read_at(position, min(SCAN_CHUNK_BYTES, end - position))
            at = 0
            last = len(data) - _SCAN.size
            while at <= last:
                base_offset, length, magic, last_offset_delta, max_timestamp = unpack(data, at)
                size = length + LENGTH_OVERHEAD
                if magic != MAGIC or size < BATCH_OVERHEAD or position + at + size > end:
                    message = self._message_at(data, at, position, end)
                    yield message
                    at += message[3]
                    continue
                yield (
                    position + at,
                    base_offset,
                    base_offset + last_offset_delta,
                    size,
                    max_timestamp,
                )
                at += size
            if at == 0:  # too short for a batch, but messages of old are short
                message = self._message_at(data, 0, position, end)
                yield message
                at = message[3]
            position += at

    def _message_at(
        self, data: bytes, at: int, start: int, end: int
    ) -> tuple[int, int, int, int, int]:
        """What `scan` says of a message of magic 0 or 1; of a wrapper it knows the last offset
        only. start, end: positions of data and of the last byte to read.
        """
        if is_legacy(data, at):
            with suppress(KafkaError):
                header = read_any_header(data, at)
                if start + at + header.size_bytes <= end:
                    offset = header.base_offset
                    return start + at, offset, offset, header.size_bytes, header.max_timestamp
        magic = data[at + MAGIC_POSITION] if len(data) - at > MAGIC_POSITION else -1
        raise self._corrupt(start + at, magic, len(data) - at)

    def _corrupt(self, position: int, magic: int, size: int) -> KafkaError:
        what = f"magic {magic}, {size} bytes" if size > 0 else f"it has {self.size} bytes"
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self.path}: no record batch at position {position} ({what})",
        )

    def position_of(self, offset: int) -> int:
        """Where the batch begins that contains offset, or else the first one after it; `size` if
        there is none.
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
        """`scan` from an entry of the offset index on: its batch ends with that offset. (Before
        version 4 Kafka put the last offset of what it appended at once there, or that of the last
        record a compaction left.) Raises KafkaError if that is not what is there.
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
        """Keep where the batch of offset begins, for the reader that comes next."""
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
        """(slice of whole batches from the one with fetch_offset on, offset up to which it
        reaches).

        end_position, end_offset: what must not be passed, a batch boundary. A first batch larger
        than max_bytes comes alone with min_one_batch, else not. None if there is nothing.
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
        return FileSlice(self.log_file(), start, end - start), end_offset

    def _cut_at(
        self, floor: tuple[int, int], start: int, limit: int, end_position: int, end_offset: int
    ) -> tuple[int, int]:
        """(position, offset) of the last batch boundary at or before limit, or of the one after the
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

    # -- timestamps -------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """The largest of all batches, -1 without any."""
        if not self._max_timestamp_known:
            self._load_max_timestamp()
        return self._max_timestamp

    @property
    def knows_max_timestamp(self) -> bool:
        """Whether `max_timestamp` is at hand, without a look at the files."""
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
        """For retention: the largest timestamp, or the file's time if the records have none. Of a
        segment with a damaged batch what its time index says: it must not stay for ever.
        """
        try:
            timestamp = self.max_timestamp
        except KafkaError as error:
            logger.debug("%s: its age is taken from its time index: %s", self.path, error)
            timestamp, _ = self.time_index.last_entry
        return timestamp if timestamp >= 0 else self.modified_ms()

    @property
    def first_timestamp(self) -> int:
        """The max timestamp of the first batch: what the segment's age counts from; -1 without."""
        if self._rolling_timestamp is None and self.size:
            for _, _, _, _, timestamp in self.scan(0):
                self._rolling_timestamp = timestamp if timestamp >= 0 else None
                break
        return NO_TIMESTAMP if self._rolling_timestamp is None else self._rolling_timestamp

    def position_for_timestamp(self, timestamp: int, start_offset: int) -> int:
        """Where to begin to look for the first record with this timestamp or a later one."""
        entry = self._checked_time_entry(*self.time_index.lookup(timestamp))
        if self._indexes_rebuilt:
            entry = self.time_index.lookup(timestamp)
        return self.position_of(max(entry[1], start_offset))

    def _checked_time_entry(self, timestamp: int, offset: int) -> tuple[int, int]:
        """An entry of the time index, once it is known that its batch has that timestamp: else the
        indexes are rebuilt.
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
        """Make both indexes anew from the log, whose batch headers are read; once. Returns whether
        that was done: not if the log itself is damaged, or it was done before.
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
        logger.warning("%s; the segment's indexes are rebuilt", error)
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

    # -- cutting ----------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, index_bytes: int, now_ms: int) -> None:
        """Cut before the batch that contains offset; the segment is the active one afterwards."""
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
        self._rolling_timestamp = self.settings = None
        self.index_room = 0
        self.bytes_since_index_entry = 0
        self._max_timestamp_known = False

    def begin_recovery(self) -> None:
        """Forget what the indexes say: the log is about to be scanned."""
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self._positions = None
        self._rolling_timestamp = self.settings = None
        self.index_room = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._max_timestamp_known = True
        self.bytes_since_index_entry = 0

    def recovered_batch(self, header: BatchHeader, position: int) -> None:
        """Account for a sound batch found at position, as the append did; counts bytes from the
        last entry on.
        """
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset
        if self.bytes_since_index_entry > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += header.batch_length + LENGTH_OVERHEAD

    def recover_run(
        self,
        data: memoryview,
        at: int,
        position: int,
        next_offset: int,
        leader_epoch: int | None,
        last_of_producers: dict[int, deque[tuple[int, ...]]],
    ) -> tuple[int, int]:
        """Check and account for ordinary batches, one after the other from `at` in data on, which
        lies at position in the file: no marker, no transaction, no new epoch. Most are.

        Stops before the first batch that is anything else, unsound, or not whole in data. Returns
        (where that is in data, next offset). last_of_producers: gets the headers of each producer's
        last batches. All in one loop, since it runs once per batch of what is recovered.
        """
        unpack, size_of_header = HEADER.unpack_from, BATCH_OVERHEAD
        crc_position, interval = ATTRIBUTES_POSITION, self.index_interval_bytes
        since = self.bytes_since_index_entry
        max_timestamp, max_timestamp_offset = self._max_timestamp, self._max_timestamp_offset
        highest = self.base_offset + MAX_RELATIVE_OFFSET
        end = len(data)
        while end - at >= size_of_header:
            header = unpack(data, at)
            base_offset, length, epoch, magic, crc, attributes, delta, _, timestamp, producer = (
                header[:10]
            )
            following = at + length + LENGTH_OVERHEAD
            last_offset = base_offset + delta
            if (
                magic != MAGIC
                or attributes & NOT_ORDINARY
                or epoch != leader_epoch
                or base_offset < next_offset
                or not base_offset <= last_offset <= highest
                or length < size_of_header - LENGTH_OVERHEAD
                or following > end
                or crc32c(data[at + crc_position : following]) != crc
            ):
                break
            if timestamp > max_timestamp:
                max_timestamp, max_timestamp_offset = timestamp, last_offset
            if since > interval:
                self.offset_index.append(last_offset, position + at)
                self.time_index.maybe_append(max_timestamp, max_timestamp_offset)
                since = 0
            if producer >= 0:
                last = last_of_producers.get(producer)
                if last is None:
                    last = last_of_producers[producer] = deque(maxlen=REMEMBERED_BATCHES)
                last.append(header)
            since += following - at
            next_offset = last_offset + 1
            at = following
        self.bytes_since_index_entry = since
        self._max_timestamp, self._max_timestamp_offset = max_timestamp, max_timestamp_offset
        return at, next_offset

    def end_recovery(self, valid_bytes: int) -> None:
        """Cut what is no batch, close the indexes."""
        file = self.log_file()
        if file.size() > valid_bytes:
            file.truncate(valid_bytes)
        self.size = valid_bytes
        self.bytes_since_index_entry = 0
        self._add_last_time_entry()
        self.offset_index.trim()
        self.time_index.trim()

    # -- the end ----------------------------------------------------------------------------------

    def write_pending(self) -> None:
        """Bring the index files up to date (no fsync)."""
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def close(self) -> None:
        """Clean close: closing time entry, files cut to size. Idle segments that nobody touched
        stay untouched.
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
