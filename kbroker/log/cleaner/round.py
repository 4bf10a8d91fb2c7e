"""One cleaning round of one log: the part that runs in a worker thread.

A round indexes the keys of the dirty segments, then rewrites every segment below the end of the
indexed range, group by group, into `.cleaned` files. Each method runs in a worker, one at a time,
and gets file handles and values only; no other thread uses the round meanwhile. `cleaner` calls the
methods in order, `swap` puts the files into the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from typing import Final

from kbroker.log.cleaner.compaction import (
    BatchFilter,
    LastRecord,
    TransactionView,
    index_batch,
)
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.steps import CleanedSegment, CleaningStopped, Source
from kbroker.log.cleaner.throttle import Throttle
from kbroker.log.storage import names
from kbroker.log.storage.files import LogFile, set_modified_ns
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.protocol.batches.any_magic import check_any_crc, iter_any_records, read_any_header
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import (
    LENGTH_FIELD,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_batch_header,
)
from kbroker.protocol.batches.compression import Buffer
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

MIN_BUFFER_BYTES: Final = 4096
TURN_SECONDS: Final = 0.0005
PAUSE_SECONDS: Final = 0.00005
"""After each slice the worker sleeps: the interpreter runs one thread at a time, and the loop would
otherwise wait 5 ms to be scheduled. docs/adr/0008.
"""


class CleaningRound:
    """See the module. stop: set by the loop; the worker checks it between reads."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        producers: Mapping[int, LastRecord],
        *,
        now_ms: int,
        first_dirty_offset: int,
        upper_offset: int,
        map_bytes: int,
        buffer_bytes: int,
        throttle: Throttle,
        unpacking: AbstractContextManager[object] | None = None,
    ) -> None:
        """unpacking: a lock held while a batch is decompressed, so that only one worker does so at
        a time.
        """
        self._unpacking = unpacking or nullcontext()
        self.stop = Event()
        self.offsets = OffsetMap(map_bytes)
        self.bytes_written = 0
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._first_dirty_offset = first_dirty_offset
        self._buffer_bytes = max(buffer_bytes, MIN_BUFFER_BYTES)
        self._throttle = throttle
        self._index_view = TransactionView()
        self._view = TransactionView()
        self._filter = BatchFilter(
            self.offsets,
            self._view,
            producers,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            upper_offset=upper_offset,
            max_unpacked_bytes=config.max_unpacked_bytes,
        )
        self._cleaned: Segment | None = None

    @property
    def end_offset(self) -> int:
        """The offset up to which this round makes the log clean (exclusive)."""
        return self.offsets.latest_offset + 1

    def index_segment(self, source: Source) -> bool:
        """Index the keys of a dirty segment. Returns False if the map is full: no more segments are
        indexed.
        """
        self._index_view.add_aborted(source.aborted)
        for header, batch in self._batches(source):
            if header.last_offset < self._first_dirty_offset:
                continue
            with self._unpacking:
                has_room = index_batch(
                    self.offsets,
                    self._index_view,
                    header,
                    batch,
                    first_dirty_offset=self._first_dirty_offset,
                    max_unpacked_bytes=self._config.max_unpacked_bytes,
                )
            if not has_room:
                return False
        self.offsets.latest_offset = max(self.offsets.latest_offset, source.next_base_offset - 1)
        return True

    def begin_group(self, base_offset: int) -> None:
        """Create the `.cleaned` files for the next segments."""
        self._cleaned = Segment.create(
            self._directory,
            base_offset,
            config=self._config,
            open_files=OpenFiles(2),
            now_ms=self._now_ms,
            suffix=names.CLEANED,
        )

    def clean_segment(self, source: Source) -> None:
        """Append the batches that remain of a segment."""
        self._view.add_aborted(source.aborted)
        headers: list[BatchHeader] = []
        pieces: list[Buffer] = []
        waiting_bytes = 0
        for header, batch in self._batches(source):
            with self._unpacking:
                remains = self._filter.apply(header, batch)
            self._move_aborted()
            if remains is None:
                continue
            # copied, since a view would keep the whole read buffer alive
            piece = bytes(remains) if remains is batch else remains
            headers.append(read_batch_header(piece))
            pieces.append(piece)
            waiting_bytes += len(piece)
            if waiting_bytes >= self._buffer_bytes:
                self._write(pieces, headers)
                headers, pieces, waiting_bytes = [], [], 0
        if pieces:
            self._write(pieces, headers)

    def _move_aborted(self) -> None:
        if self._view.kept:
            for transaction in self._view.kept:
                self._group.transaction_index.append(transaction)
            self._view.kept.clear()

    @property
    def _group(self) -> Segment:
        if self._cleaned is None:
            raise RuntimeError("no group was begun")
        return self._cleaned

    def _write(self, pieces: Iterable[Buffer], headers: list[BatchHeader]) -> None:
        data = b"".join(pieces)
        self._group.append(data, headers)
        self.bytes_written += len(data)
        self._wait(self._throttle.charge(len(data)))

    def end_group(self, modified_ns: int) -> CleanedSegment:
        """Close and sync the files. modified_ns: the modification time for the new segment, that of
        the newest segment it replaces.
        """
        segment = self._group
        segment.log_file()  # opened even if no batch was kept: it may be preallocated
        segment.become_inactive()
        for path in segment.file_paths():
            LogFile(path).sync()
        segment.close_file()
        set_modified_ns(segment.path, modified_ns)
        self._cleaned = None
        return CleanedSegment(segment.base_offset, segment.size, segment.transaction_index.exists)

    # -- reading ----------------------------------------------------------------------------------

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a segment, their CRC checked: a damaged batch must not get a new, valid
        CRC.

        Raises KafkaError(CORRUPT_MESSAGE).
        """
        position, end = source.start_position, source.size
        wanted = self._buffer_bytes
        turn_began = time.perf_counter()
        while position < end:
            data = memoryview(self._read(source, position, min(wanted, end - position)))
            at = 0
            while (size := _size_at(data, at)) is not None and at + size <= len(data):
                try:
                    header = read_any_header(data, at)
                except KafkaError as error:
                    raise _damaged(source, position + at, error.message) from error
                if not check_any_crc(data, at, header):
                    raise _damaged(source, position + at, "the CRC is wrong")
                batch = data[at : at + size]
                yield (header, batch) if header.magic >= MAGIC else _converted(header, batch)
                at += size
                if time.perf_counter() - turn_began > TURN_SECONDS:
                    time.sleep(PAUSE_SECONDS)
                    turn_began = time.perf_counter()
            wanted = self._buffer_bytes
            if at == 0:
                if size is None or size <= len(data) or size > end - position:
                    raise _damaged(source, position, f"{end - position} bytes are no batch")
                wanted = size  # a batch may be larger than the buffer, but not than its segment
            position += at

    def _read(self, source: Source, position: int, count: int) -> bytes:
        data = source.file.read_at(position, count)
        self._wait(self._throttle.charge(len(data)))
        return data

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise CleaningStopped


def _size_at(data: memoryview, at: int) -> int | None:
    """The size of the batch or message at a position; None if its header is incomplete."""
    if len(data) - at <= MAGIC_POSITION:
        return None
    return int(LENGTH_FIELD.unpack_from(data, at)[0]) + LENGTH_OVERHEAD


def _converted(header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, memoryview]:
    """A message of magic 0 or 1 converted to the batch that compaction writes in its place."""
    records = list(iter_any_records(batch, header))
    new = build_batch(
        records,
        base_offset=records[0].offset if records else header.base_offset,
        compression=header.codec,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        last_offset_delta=None if records else 0,
    )
    return read_batch_header(new), memoryview(new)


def _damaged(source: Source, position: int, why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{source.file.path}: position {position}: {why}")
