"""Searches a log for the first record at or after a timestamp, and for the record with the largest
timestamp.

Indexes and headers lead to a batch that may contain the record; only its records can confirm that.
Headers come from producers, and appends do not compare them with the records (docs/adr/0002): a
header may claim a timestamp that no record has, in many batches, each of which decompresses to
megabytes. A search is therefore a generator. It reads headers on the loop, yields None from time to
time to let the loop continue, and yields a `Candidate` for each batch that has to be read and
decompressed, in any thread. The caller sends back the record that it found in the batch.

Between two steps the log may change. A search whose segment was removed starts again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

from kbroker.log.storage.files import FileSlice
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.protocol.batches.any_magic import iter_any_records, read_any_header
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, MAGIC, BatchHeader
from kbroker.protocol.batches.compression import Compression, decompress
from kbroker.protocol.batches.records import Record, iter_unpacked_records
from kbroker.protocol.errors import ErrorCode, KafkaError

LOOKED_AT_BYTES: Final = 8 * 1024 * 1024
"""The largest size in bytes that a batch may decompress to; of a larger batch only the header is
used.
"""

HEADERS_PER_STEP: Final = 64
SEGMENTS_PER_STEP: Final = 8


class TimestampOffset(NamedTuple):
    """A record found by timestamp. leader_epoch: that of its batch, -1 unknown."""

    timestamp: int
    offset: int
    leader_epoch: int


class Candidate:
    """A batch whose header says that it may contain the record. `look` reads and decompresses it,
    in any thread: a candidate has a range of an open file and numbers, but no reference to the log.

    unpacked_bytes: how many bytes `look` decompressed.
    """

    __slots__ = ("_is_largest", "_source", "_start_offset", "_timestamp", "unpacked_bytes")

    def __init__(
        self, source: FileSlice, timestamp: int, start_offset: int, *, is_largest: bool
    ) -> None:
        self._source = source
        self._timestamp = timestamp
        self._start_offset = start_offset
        self._is_largest = is_largest
        self.unpacked_bytes = 0

    @property
    def size(self) -> int:
        """Size of the stored batch in bytes."""
        return self._source.size

    def look(self, max_bytes: int) -> TimestampOffset | None:
        """The record, if the batch contains it.

        Raises KafkaError(MESSAGE_TOO_LARGE) if the batch decompresses to more than max_bytes,
        KafkaError for a damaged batch, OSError.
        """
        batch = self._source.read()
        header = read_any_header(batch)
        for record in self._records(batch, header, max_bytes):
            if self._is_it(record.timestamp, record.offset):
                epoch = header.partition_leader_epoch
                return TimestampOffset(record.timestamp, record.offset, epoch)
        return None

    def believe(self) -> TimestampOffset | None:
        """The result from the header alone: the base offset of the batch, or its last offset if the
        base offset is before the start of the search.
        """
        header = read_any_header(self._source.read(0, BATCH_OVERHEAD * 2))
        for offset in (header.base_offset, header.last_offset):
            if self._is_it(header.max_timestamp, offset):
                return TimestampOffset(header.max_timestamp, offset, header.partition_leader_epoch)
        return None

    def _records(self, batch: bytes, header: BatchHeader, max_bytes: int) -> Iterator[Record]:
        if header.magic < MAGIC:
            self.unpacked_bytes = max_bytes
            return iter_any_records(batch, header, max_decompressed_bytes=max_bytes)
        if header.codec is Compression.NONE:
            self.unpacked_bytes = len(batch)
            return iter_any_records(batch, header)
        self.unpacked_bytes = max_bytes
        body = memoryview(batch)[BATCH_OVERHEAD : header.size_bytes]
        if not header.record_count and not body:
            self.unpacked_bytes = 0
            return iter(())
        plain = bytes(decompress(header.codec, body, max_bytes=max_bytes))
        self.unpacked_bytes = len(plain)
        return iter_unpacked_records(plain, header)

    def _is_it(self, timestamp: int, offset: int) -> bool:
        if self._is_largest:
            return timestamp == self._timestamp
        return timestamp >= self._timestamp and offset >= self._start_offset


Search = Generator[Candidate | None, TimestampOffset | None, TimestampOffset | None]
"""Yields the batches to look into, or None for a pause; is sent the record found in the batch, or
None; returns the record, or None if there is none.
"""


def search_time(segments: Segments, timestamp: int, start_offset: Callable[[], int]) -> Search:
    """The first record from start_offset on whose timestamp is timestamp or later."""
    while True:
        yield from _load_timestamps(segments)
        first = max(
            segments.floor_index(start_offset()),
            bisect_left(segments.latest_timestamps(), timestamp),
        )
        for segment in segments.at_or_after(segments.base_offsets[first]):
            if not segments.has(segment):
                break  # start again
            if segment.max_timestamp < timestamp:
                continue
            begin = start_offset()
            position = segment.position_for_timestamp(timestamp, begin)
            found = yield from _search_segment(
                segments, segment, position, timestamp, begin, is_largest=False
            )
            if found is not None:
                return found
            if not segments.has(segment):
                break
        else:
            return None


def search_max_timestamp(segments: Segments) -> Search:
    """The first record that has the largest timestamp of the log."""
    while True:
        yield from _load_timestamps(segments)
        segment = max(segments, key=lambda candidate: candidate.max_timestamp)
        timestamp = segment.max_timestamp
        if timestamp < 0:
            return None
        position = segment.position_of(segment.max_timestamp_offset)
        found = yield from _search_segment(
            segments, segment, position, timestamp, segment.base_offset, is_largest=True
        )
        if found is not None or segments.has(segment):
            return found


def find_now(search: Search) -> TimestampOffset | None:
    """Run a search to its end in the caller's thread. Raises as `Candidate.look` does."""
    found: TimestampOffset | None = None
    while True:
        try:
            candidate = search.send(found)
        except StopIteration as end:
            result: TimestampOffset | None = end.value
            return result
        found = None if candidate is None else look_or_believe(candidate, LOOKED_AT_BYTES)


def look_or_believe(candidate: Candidate, max_bytes: int) -> TimestampOffset | None:
    """Search the batch's records, or use its header if they decompress to more than max_bytes."""
    try:
        return candidate.look(max_bytes)
    except KafkaError as error:
        if error.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise
        return candidate.believe()


def _load_timestamps(segments: Segments) -> Generator[None, None, None]:
    """Determine the largest timestamp of every segment: each takes a read of an index and a
    header.
    """
    loaded = 0
    # a log may have thousands of closed segments: read once, not for each search
    for segment in [segments.active] if segments.knows_latest_timestamps else list(segments):
        if not segment.knows_max_timestamp and segments.has(segment):
            _ = segment.max_timestamp
            loaded += 1
            if loaded % SEGMENTS_PER_STEP == 0:
                yield


def _search_segment(
    segments: Segments,
    segment: Segment,
    position: int,
    timestamp: int,
    start_offset: int,
    *,
    is_largest: bool,
) -> Search:
    """Search one segment from position on; None also if it was deleted in the meantime."""
    for count, (at, _, last_offset, size, max_timestamp) in enumerate(segment.scan(position), 1):
        is_candidate = (
            max_timestamp == timestamp
            if is_largest
            else max_timestamp >= timestamp and last_offset >= start_offset
        )
        if is_candidate:
            found = yield Candidate(
                FileSlice(segment.log_file(), at, size),
                timestamp,
                start_offset,
                is_largest=is_largest,
            )
            if found is not None:
                return found
        elif count % HEADERS_PER_STEP == 0:
            yield None
        else:
            continue
        if not segments.has(segment):
            return None
    return None
