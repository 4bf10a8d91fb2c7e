"""Checks one segment: its batches one by one, then its indexes against them. Part of `verify`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kbroker.log.producer.markers import marker_of
from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.producer.replay import replay_producer
from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError, read_file, written_bytes
from kbroker.log.storage.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    CorruptIndexError,
    OffsetIndex,
    TimeIndex,
)
from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET, AbortedTransaction
from kbroker.log.storage.transaction_index import TransactionIndex
from kbroker.log.tools.dump import DumpError, batches_of
from kbroker.protocol.batches.any_magic import check_any_crc, iter_any_records
from kbroker.protocol.batches.batch_header import MAGIC, BatchHeader
from kbroker.protocol.errors import KafkaError

Wrong = tuple[Path, str]
MAX_PER_FILE: Final = 5
"""The maximum number of findings per file: a shifted index would fill the screen."""


class SegmentCheck:
    """Iterate over batches(), calling take() for each, then call the other methods. aborted: the
    expected entries of the transaction index. is_in_use: the folder had no clean shutdown; a broker
    may append meanwhile.
    """

    INDEX_KINDS: Final = (names.INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX)

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        *,
        following: int | None,
        producers: ProducerStateManager,
        records: bool,
        is_in_use: bool = False,
    ) -> None:
        self._grows = is_in_use and following is None
        self.folder = folder
        self.base_offset = base_offset
        self.path = folder / names.offset_name(base_offset, names.LOG)
        self.problems: list[Wrong] = []
        self.aborted: list[AbortedTransaction] = []
        self.size_bytes = 0
        self._following = following
        self._producers = producers
        self._records = records
        self._batch = b""
        self._positions: list[int] = []
        self._last_offsets: list[int] = []
        self._base_offsets: list[int] = []
        self._timestamps: list[int] = []  # the largest so far at each batch
        self._markers: set[int] = set()

    # -- batches ----------------------------------------------------------------------------------

    def batches(self) -> Iterator[BatchHeader]:
        """The valid batches in order; `take` must be called for each before the next. Stops at the
        first invalid one, which is reported in `problems`.
        """
        try:
            while True:
                try:
                    yield from self._batches_left()
                    return
                except DumpError as error:
                    if self._is_being_appended():
                        continue
                    if self._following is not None or not self._only_zeros_left():
                        self._add(self.path, str(error).removeprefix(f"{self.path}: "))
                    return
        except LogDirectoryError as error:
            self._add(self.path, str(error))

    def _batches_left(self) -> Iterator[BatchHeader]:
        """The batches from `size_bytes` on."""
        next_offset = self._last_offsets[-1] + 1 if self._last_offsets else self.base_offset
        for position, header, batch in batches_of(self.path, self.size_bytes):
            wrong = self._wrong_batch(header, batch, next_offset)
            if wrong and self._grows:  # it may have been read during its write
                _, header, batch = next(batches_of(self.path, position))
                wrong = self._wrong_batch(header, batch, next_offset)
            if wrong:
                self._add(self.path, f"position {position}: {wrong}")
                return
            self._batch = batch
            self.size_bytes = position + header.size_bytes
            self._positions.append(position)
            self._base_offsets.append(header.base_offset)
            self._last_offsets.append(header.last_offset)
            so_far = self._timestamps[-1] if self._timestamps else -1
            self._timestamps.append(max(so_far, header.max_timestamp))
            next_offset = header.next_offset
            yield header

    def _is_being_appended(self) -> bool:
        """Whether an incomplete batch has become complete since it was read."""
        try:
            return self._grows and next(batches_of(self.path, self.size_bytes), None) is not None
        except DumpError:
            return False

    def _only_zeros_left(self) -> bool:
        """Whether the rest of the file is zeros: with log.preallocate the active segment ends with
        them.
        """
        return written_bytes(self.path) <= self.size_bytes

    def _wrong_batch(self, header: BatchHeader, batch: bytes, next_offset: int) -> str | None:
        if header.base_offset < next_offset:
            return f"offset {header.base_offset} comes after {next_offset - 1}"
        if header.last_offset_delta < 0 or header.record_count < 0:
            return f"negative counts: {header!r}"
        if header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return f"offset {header.last_offset} is too far from the segment's base"
        if self._following is not None and header.last_offset >= self._following:
            return f"offset {header.last_offset} belongs into segment {self._following}"
        if not check_any_crc(batch, 0, header):
            return f"wrong CRC of the batch with offsets {header.base_offset}-{header.last_offset}"
        return self._wrong_records(header, batch) if self._records else None

    def _wrong_records(self, header: BatchHeader, batch: bytes) -> str | None:
        # the base offset of a compressed message set is known only now
        offset = header.base_offset - 1 if header.magic >= MAGIC else -1
        try:
            for record in iter_any_records(batch, header):
                if not offset < record.offset <= header.last_offset:
                    return f"record offset {record.offset} comes after {offset}"
                offset = record.offset
        except KafkaError as error:
            return error.message
        return None

    def take(self, header: BatchHeader) -> None:
        """Replay a batch that `batches` yielded into the producer state."""
        if header.producer_id < 0:
            self._producers.map_end_offset = header.next_offset
            return
        try:
            marker = marker_of(header, self._batch)
        except KafkaError as error:
            self._add(self.path, f"marker at offset {header.base_offset}: {error.message}")
            return
        if marker is not None:
            self._markers.add(header.base_offset)
        completed = replay_producer(self._producers, header, marker)
        if completed is None:
            return
        if completed.is_aborted:
            stable = self._producers.last_stable_offset(completed)
            self.aborted.append(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
            )
        self._producers.complete_transaction(completed)
        self._producers.on_high_watermark(header.next_offset)

    # -- indexes ----------------------------------------------------------------------------------

    def index_problems(self, found: Mapping[tuple[int, str], int]) -> list[Wrong]:
        """Findings in the offset index and the time index."""
        before = len(self.problems)
        for kind, entry_bytes in (
            (names.INDEX, OFFSET_ENTRY_BYTES),
            (names.TIME_INDEX, TIME_ENTRY_BYTES),
        ):
            path = self.folder / names.offset_name(self.base_offset, kind)
            size = found.get((self.base_offset, kind))
            if size is None:
                self._add(path, "it is missing")
            elif size % entry_bytes:
                self._add(path, f"{size} bytes are no whole entries of {entry_bytes}")
            else:
                try:
                    self._check_index(path, kind, size)
                except LogDirectoryError as error:
                    self._add(path, str(error))
        added, self.problems = self.problems[before:], self.problems[:before]
        return added

    def _check_index(self, path: Path, kind: str, size: int) -> None:
        if kind == names.INDEX:
            offsets = OffsetIndex(str(path), self.base_offset, size).without_padding()
            self._check_offsets(path, offsets.entries())
        else:
            times = TimeIndex(str(path), self.base_offset, size).without_padding()
            self._check_times(path, times.entries())

    def _slot(self, offset: int) -> int | None:
        slot = bisect_left(self._last_offsets, offset)
        return slot if slot < len(self._last_offsets) else None

    def _check_offsets(self, path: Path, entries: list[tuple[int, int]]) -> None:
        before = (self.base_offset - 1, -1)
        for number, (offset, position) in enumerate(entries):
            if self._grows and position >= self.size_bytes:
                return  # an entry of a batch appended after the log was read
            slot = bisect_left(self._positions, position)
            if offset <= before[0] or position <= before[1]:
                self._add(path, f"entry {number}: {offset} at {position} comes after {before}")
            elif slot == len(self._positions) or self._positions[slot] != position:
                self._add(path, f"entry {number}: no batch begins at position {position}")
            elif self._last_offsets[slot] != offset:
                self._add(
                    path,
                    f"entry {number}: the batch at {position} ends with offset "
                    f"{self._last_offsets[slot]}, not {offset}",
                )
            before = (offset, position)

    def _check_times(self, path: Path, entries: list[tuple[int, int]]) -> None:
        if not entries and self._following is not None and max(self._timestamps, default=-1) >= 0:
            self._add(path, "it has no entry, not even that of the roll")
        before = (-1, self.base_offset - 1)
        for number, (timestamp, offset) in enumerate(entries):
            slot = self._slot(offset)
            if self._grows and slot is None:
                return
            if timestamp <= before[0] or offset < before[1]:
                self._add(path, f"entry {number}: {timestamp} at {offset} comes after {before}")
            elif slot is None or not self._base_offsets[slot] <= offset:
                self._add(path, f"entry {number}: offset {offset} is in no batch")
            elif self._timestamps[slot] != timestamp:
                self._add(
                    path,
                    f"entry {number}: the largest timestamp up to offset {offset} is "
                    f"{self._timestamps[slot]}, not {timestamp}",
                )
            before = (timestamp, offset)

    def aborted_in_file(self, path: Path) -> list[AbortedTransaction]:
        """The entries of the transaction index. Raises CorruptIndexError, LogDirectoryError."""
        index = TransactionIndex(str(path), exists=True)
        index.check(len(read_file(path) or b""))
        for item in index.entries():
            if item.first_offset > item.last_offset:
                raise CorruptIndexError(f"{path}: first offset after the last in {item}")
        return index.entries()

    def may_have_aborted(self, item: AbortedTransaction) -> bool:
        """Whether the marker of an entry is in the log, or compaction may have removed it."""
        if item.last_offset in self._markers:
            return True
        slot = self._slot(item.last_offset)
        return slot is None or self._base_offsets[slot] > item.last_offset

    def _add(self, path: Path, what: str) -> None:
        count = sum(1 for known, _ in self.problems if known == path)
        if count < MAX_PER_FILE:
            self.problems.append((path, what))
        elif count == MAX_PER_FILE:
            self.problems.append((path, "and more"))
