"""The sparse indexes of one segment: offset -> position, and timestamp -> offset.

Entries are held in arrays (binary search runs in C, without system calls) that are loaded from the
file on first use, and unloaded when the indexes of closed segments together take too much memory.
The files of the active segment are preallocated with zeros to segment.index.bytes, like Kafka's
memory-mapped ones, and get new entries in groups: at a flush, a roll, a close, or when
`PENDING_LIMIT` entries are pending. Entries that a crash loses lie after the recovery point and are
rebuilt from the log. Why the files equal Kafka's byte for byte: docs/adr/0006.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from operator import le, lt
from struct import Struct
from typing import ClassVar, Final, Literal, Protocol, Self
from weakref import ReferenceType

from kbroker.log.storage.disk_jobs import DiskJob
from kbroker.log.storage.files import (
    LogDirectoryError,
    create_file,
    file_size,
    read_file,
    resize_file,
    write_range,
    written_bytes,
)
from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET
from kbroker.log.storage.open_files import LoadedIndexes

logger = logging.getLogger(__name__)

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
PENDING_LIMIT: Final = 256
"""Entries that may be pending before they are written: about 1 MB of log at the default
index.interval.bytes.
"""

_TIME_ENTRY = Struct(">qi")
_LITTLE: Final = sys.byteorder == "little"


class CorruptIndexError(Exception):
    """An index file whose content is invalid: the segment's indexes are rebuilt from its log."""


class IndexOwner(Protocol):
    """The segment of an index: rebuilds its indexes, and is told when they are loaded."""

    @property
    def loaded_indexes(self) -> LoadedIndexes: ...
    def rebuild_indexes(self, error: CorruptIndexError) -> bool: ...


class IndexTrim(DiskJob):
    """Trims an index file to its last entry, at a roll. data: the entries that the file lacks, from
    start on; both and size in bytes. settle: called with the array of the entries.
    """

    __slots__ = ("_data", "_offsets", "_path", "_settle", "_size", "_start")

    def __init__(
        self,
        path: str,
        data: bytes,
        start: int,
        size: int,
        offsets: array[int],
        settle: Callable[[array[int]], None],
    ) -> None:
        self._path = path
        self._data = data
        self._start = start
        self._size = size
        self._offsets = offsets
        self._settle = settle

    def run(self) -> None:
        write_range(self._path, self._data, self._start, size=self._size)

    def settle(self) -> None:
        self._settle(self._offsets)


class _SparseIndex(ABC):
    """Base of the two preallocated indexes: ascending entries of an offset and one more value.

    entry_bytes: size of an entry in the file. value_type: array type code of the other value.
    owner: rebuilds the index if the entries in the file are out of order; without an owner they are
    not checked.
    """

    __slots__ = (
        "_is_active",
        "_loaded",
        "_offsets",
        "_values",
        "_written",
        "base_offset",
        "max_entries",
        "owner",
        "path",
    )

    entry_bytes: ClassVar[int]
    value_type: ClassVar[Literal["i", "q"]]

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry_bytes
        self._offsets: array[int] = array("i")
        self._values: array[int] = array(self.value_type)
        self._written = -1  # entries in the file; unknown until it is loaded
        self._loaded = False
        self._is_active = False
        self.owner: ReferenceType[IndexOwner] | None = None

    @abstractmethod
    def _parse(self, data: bytes) -> None:
        """Fill the arrays from the whole file, without the zeros behind its entries."""

    @abstractmethod
    def _pending(self) -> bytes:
        """The entries that are not in the file yet, encoded."""

    def _load(self) -> None:
        limit = self._written * self.entry_bytes if self._written >= 0 else -1
        self._parse(read_file(self.path, limit) or b"")
        self._written = len(self._offsets)
        self._loaded = True
        owner = None if self.owner is None else self.owner()
        if owner is not None and not self._is_in_order():
            owner.rebuild_indexes(CorruptIndexError(f"{self.path}: its entries are out of order"))
        self._account()

    def without_padding(self) -> Self:
        """Load the index without reading the zeros of a preallocated file, which may be megabytes,
        and return it: for tools that read many indexes once.
        """
        size = -(-written_bytes(self.path) // self.entry_bytes) * self.entry_bytes
        self._parse(read_file(self.path, size) or b"")
        self._written = len(self._offsets)
        self._loaded = True
        return self

    @property
    def held_bytes(self) -> int:
        """Memory that the entries take."""
        return len(self._offsets) * self._offsets.itemsize + len(self._values) * (
            self._values.itemsize
        )

    def _account(self) -> None:
        """Report to the owner whether this is a loaded index of a closed segment, which may be
        unloaded.
        """
        owner = None if self.owner is None else self.owner()
        if owner is None:
            return
        if self._loaded and not self._is_active:
            owner.loaded_indexes.add(self)
        else:
            owner.loaded_indexes.forget(self)

    def _is_in_order(self) -> bool:
        """Whether the entries ascend, as entries appended one after the other do."""
        offsets, values = self._offsets, self._values
        return not offsets or (
            offsets[0] >= 0
            and values[0] >= 0
            and all(map(lt, values, islice(values, 1, None)))
            and all(map(le, offsets, islice(offsets, 1, None)))
        )

    def check(self, file_bytes: int) -> None:
        """Check the file's size on opening, without reading the file. Raises CorruptIndexError."""
        if file_bytes % self.entry_bytes:
            raise CorruptIndexError(f"{self.path}: {file_bytes} bytes are no whole entries")

    @property
    def entry_count(self) -> int:
        if not self._loaded:
            self._load()
        return len(self._offsets)

    def write_pending(self) -> None:
        """Write the pending entries to the file (no fsync)."""
        if self._loaded and self._written < len(self._offsets):
            write_range(self.path, self._pending(), self._written * self.entry_bytes)
            self._written = len(self._offsets)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or above offset."""
        if not self._loaded:
            self._load()
        slot = bisect_right(self._offsets, min(offset - self.base_offset, MAX_RELATIVE_OFFSET))
        if slot and self.base_offset + self._offsets[slot - 1] == offset:
            slot -= 1
        del self._offsets[slot:], self._values[slot:]
        self._written = min(self._written, slot)

    def reset(self) -> None:
        """Remove all entries: the segment is about to be scanned."""
        self._offsets = array("i")
        self._values = array(self.value_type)
        self._written = 0
        self._loaded = True

    def preallocate(self, max_bytes: int) -> None:
        """Extend the file with zeros to the largest multiple of the entry size within max_bytes:
        the segment becomes active.
        """
        self._is_active = True
        self._account()
        self.max_entries = max_bytes // self.entry_bytes
        if self._loaded:
            self._rewrite(max(self.max_entries, len(self._offsets)) * self.entry_bytes)
        else:
            # a cleanly closed file: only its length changes
            size = file_size(self.path)
            if size == self.max_entries * self.entry_bytes:
                return  # as an interrupted start left it
            self._written = size // self.entry_bytes
            resize_file(self.path, max(self.max_entries, self._written) * self.entry_bytes)

    def trim(self) -> None:
        """Trim the file to its entries: at a roll and at a clean close."""
        trim = self.begin_trim()
        trim.run()
        trim.settle()

    def begin_trim(self) -> IndexTrim:
        """The job that trims the file to its entries; no entry is added until the job is
        settled.
        """
        if not self._loaded and self._written < 0:
            self._load()
        count = len(self._offsets) if self._loaded else self._written
        data = self._pending() if self._loaded else b""
        start = self._written * self.entry_bytes
        size = count * self.entry_bytes
        return IndexTrim(self.path, data, start, size, self._offsets, self._end_trim)

    def _end_trim(self, offsets: array[int]) -> None:
        """Called after the trim: the segment is closed."""
        self._is_active = False
        if self._offsets is not offsets:
            # unloaded or rebuilt meanwhile: the content of the file is unknown
            _ = self.entry_count
            self._written = 0
            self._rewrite(len(self._offsets) * self.entry_bytes)
        elif self._loaded:
            self._written = len(self._offsets)
        self._account()

    def _rewrite(self, size: int) -> None:
        write_range(self.path, self._pending(), self._written * self.entry_bytes, size=size)
        self._written = len(self._offsets)

    def unload(self) -> None:
        """Free the memory of the entries; the file is complete.

        Called when another log opens a file or loads an index. That log may be on another disk, and
        a disk fault of this one must not affect it: an index that cannot be written stays in
        memory, and its own log reports the fault at its next flush or append.
        """
        if self._loaded:
            try:
                self.write_pending()
            except LogDirectoryError as error:
                logger.debug("%s is not unloaded: %s", self.path, error)
                return
            self._offsets = array("i")
            self._values = array(self.value_type)
            self._loaded = False
            self._account()

    def create(self, max_bytes: int) -> None:
        """Create the file of a new active segment."""
        self.reset()
        self._is_active = True
        self.max_entries = max_bytes // self.entry_bytes
        create_file(self.path, self.max_entries * self.entry_bytes)


class OffsetIndex(_SparseIndex):
    """`.index`: the last offset of a batch and the position of that batch, ascending."""

    __slots__ = ()

    entry_bytes = OFFSET_ENTRY_BYTES
    value_type = "i"

    def _parse(self, data: bytes) -> None:
        # Without the zeros of a preallocated file, which are megabytes.
        end = len(data.rstrip(b"\0"))
        count = min(-(-end // OFFSET_ENTRY_BYTES), len(data) // OFFSET_ENTRY_BYTES)
        words = array("i")
        words.frombytes(memoryview(data)[: count * OFFSET_ENTRY_BYTES])
        if _LITTLE:
            words.byteswap()
        while count and not words[2 * count - 1]:
            # no entry is written for a batch at position 0
            count -= 1
        self._offsets = words[0 : 2 * count : 2]
        self._values = words[1 : 2 * count : 2]

    def _pending(self) -> bytes:
        words = array("i")
        for slot in range(self._written, len(self._offsets)):
            words.append(self._offsets[slot])
            words.append(self._values[slot])
        if _LITTLE:
            words.byteswap()
        return words.tobytes()

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return self.max_entries - self.entry_count

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry whose offset is <= offset; (base offset, 0) before
        the first entry.
        """
        if not self._loaded:
            self._load()
        return self._entry_before(
            bisect_right(self._offsets, min(offset - self.base_offset, MAX_RELATIVE_OFFSET))
        )

    @property
    def last_entry(self) -> tuple[int, int]:
        """(offset, position) of the last entry; (base offset, 0) if there is none."""
        return self._entry_before(self.entry_count)

    def floor_of_position(self, position: int) -> tuple[int, int]:
        """(offset, position) of the last entry whose position is <= position; (base offset, 0)
        before the first entry; a batch begins at that position.
        """
        if not self._loaded:
            self._load()
        return self._entry_before(bisect_right(self._values, position))

    def _entry_before(self, slot: int) -> tuple[int, int]:
        if not slot:
            return self.base_offset, 0
        return self.base_offset + self._offsets[slot - 1], self._values[slot - 1]

    def append(self, offset: int, position: int) -> None:
        """offset: the last offset of the batch at position. The caller has checked that the index
        is not full and that the offset fits.
        """
        if not self._loaded:
            self._load()
        offsets = self._offsets
        offsets.append(offset - self.base_offset)
        self._values.append(position)
        if len(offsets) - self._written >= PENDING_LIMIT:
            self.write_pending()

    def entries(self) -> list[tuple[int, int]]:
        """All entries as (offset, position)."""
        if not self._loaded:
            self._load()
        base = self.base_offset
        return [
            (base + offset, position)
            for offset, position in zip(self._offsets, self._values, strict=True)
        ]


class TimeIndex(_SparseIndex):
    """`.timeindex`: the largest timestamp so far and the last offset of the batch that has it, both
    ascending.
    """

    __slots__ = ()

    entry_bytes = TIME_ENTRY_BYTES
    value_type = "q"

    def _parse(self, data: bytes) -> None:
        whole = len(data) - len(data) % TIME_ENTRY_BYTES
        end = len(data[:whole].rstrip(b"\0"))
        count = -(-end // TIME_ENTRY_BYTES)
        if (
            whole
            and not count
            and data[:TIME_ENTRY_BYTES] == bytes(TIME_ENTRY_BYTES)
            and whole == TIME_ENTRY_BYTES
        ):
            count = 1  # one entry with timestamp 0; more zeros are preallocation
        timestamps: array[int] = array("q")
        offsets: array[int] = array("i")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data[: count * TIME_ENTRY_BYTES]):
            timestamps.append(timestamp)
            offsets.append(offset)
        self._values = timestamps
        self._offsets = offsets

    def _pending(self) -> bytes:
        start = self._written
        return b"".join(map(_TIME_ENTRY.pack, self._values[start:], self._offsets[start:]))

    @property
    def room(self) -> int:
        """How many more entries fit; one slot is reserved for the entry that a roll adds."""
        return self.max_entries - 1 - self.entry_count

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        if not self.entry_count:
            return -1, self.base_offset
        return self._values[-1], self.base_offset + self._offsets[-1]

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry whose timestamp is <= timestamp; (-1, base offset)
        before the first entry.
        """
        if not self._loaded:
            self._load()
        slot = bisect_right(self._values, timestamp)
        if not slot:
            return -1, self.base_offset
        return self._values[slot - 1], self.base_offset + self._offsets[slot - 1]

    def maybe_append(self, timestamp: int, offset: int, *, last: bool = False) -> None:
        """Add an entry if its timestamp is larger than that of the last entry. last: for the entry
        at the close, which uses the reserved slot.
        """
        if not self._loaded:
            self._load()
        offsets, values = self._offsets, self._values
        if not last and len(offsets) >= self.max_entries - 1:
            return
        if timestamp > (values[-1] if values else -1):
            offsets.append(offset - self.base_offset)
            values.append(timestamp)
            if len(offsets) - self._written >= PENDING_LIMIT:
                self.write_pending()

    def entries(self) -> list[tuple[int, int]]:
        """All entries as (timestamp, offset)."""
        if not self._loaded:
            self._load()
        base = self.base_offset
        return [
            (timestamp, base + offset)
            for timestamp, offset in zip(self._values, self._offsets, strict=True)
        ]
