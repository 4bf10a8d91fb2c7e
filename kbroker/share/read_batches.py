"""The record batches that a share fetch has read, before and after acquisition.

`BatchHeaders` reads batch headers only: on the loop while they are in the page cache, otherwise in
a worker (docs/adr/0007). From them `ReadBatches` tells `SharePartition.acquire` which offsets each
batch covers, archives the offsets that no batch covers and those of aborted transactions, and
limits the file range to the batches that contain acquired records. Headers are read in steps and
before anything is acquired: no record is locked during a pause, or when a read fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.log.storage.segment_file import SCAN_CHUNK_BYTES
from kbroker.log.time_search import HEADERS_PER_STEP
from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred, Offload
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_batch_header,
)
from kbroker.protocol.codecs.schema import Records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.leaders.replica_log import AbortedRange
from kbroker.replication.time_slices import Steps
from kbroker.share.acquisition import Acquired
from kbroker.share.open_partitions import OpenSharePartition

MAX_BATCHES: Final = 1024
"""The batches of one partition in a response, and those skipped between them: the others are left
for the next fetch.
"""


_first_offset = attrgetter("first_offset")


class Readable(NamedTuple):
    """Batches from the next fetch offset of a share partition on. size_bytes: of all batches."""

    place: TopicIdPartition
    found: OpenSharePartition
    offset: int
    records: Records
    end_offset: int
    size_bytes: int


class FoundBatch(NamedTuple):
    """A batch by its header: first and last offset, position and end position in the range. header:
    None for messages of an older format, which with everything after them are one batch.
    """

    header: BatchHeader | None
    first: int
    last: int
    position: int
    end: int


class BatchHeaders:
    """The batch headers of a range in order, some at a time, from chunks of the file.

    It knows nothing of the share partition: a worker may read on while nothing else uses it. error:
    why the header after the last one returned is damaged.
    """

    __slots__ = (
        "_chunk",
        "_chunk_position",
        "_end_offset",
        "_next_offset",
        "_position",
        "_records",
        "_size_bytes",
        "error",
        "is_over",
    )

    def __init__(self, readable: Readable) -> None:
        """Raises KafkaError if these are no bytes of batches."""
        records = readable.records
        if not isinstance(records, FileSlice | bytes | bytearray | memoryview):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._records = records
        self._size_bytes = readable.size_bytes
        self._next_offset = readable.offset
        self._end_offset = readable.end_offset
        self._position = self._chunk_position = 0
        self._chunk: bytes | bytearray | memoryview = b""
        if not isinstance(records, FileSlice):
            self._chunk = records
        self.error: KafkaError | None = None
        self.is_over = False

    def read(self, most: int, until: int, *, may_block: bool) -> list[FoundBatch]:
        """The next batches: at most this many, none after the one with offset `until`, and without
        may_block none that is not in the page cache. Raises LogDirectoryError.
        """
        batches: list[FoundBatch] = []
        while len(batches) < most and self._next_offset <= until and not self.is_over:
            if self._position + MAGIC_POSITION >= self._size_bytes:
                self.is_over = True
            elif not self._load(may_block):
                break
            elif (batch := self._next()) is None:
                self.is_over = True
            else:
                batches.append(batch)
        return batches

    def _load(self, may_block: bool) -> bool:
        """Have the next header in the chunk. Returns False if it is not cached."""
        records, position = self._records, self._position
        if not isinstance(records, FileSlice):
            return True
        needed_end = min(position + BATCH_OVERHEAD, self._size_bytes)
        if needed_end <= self._chunk_position + len(self._chunk):
            return True
        read = records.read if may_block else records.read_cached
        chunk = read(position, SCAN_CHUNK_BYTES)
        if chunk is None:
            return False
        self._chunk, self._chunk_position = chunk, position
        return True

    def _next(self) -> FoundBatch | None:
        """The batch at the position; None if it is cut off or damaged."""
        chunk, position = self._chunk, self._position
        at = position - self._chunk_position
        if len(chunk) - at > MAGIC_POSITION and chunk[at + MAGIC_POSITION] < MAGIC:
            self.is_over = True
            first = self._next_offset
            return FoundBatch(None, first, self._end_offset - 1, position, self._size_bytes)
        if len(chunk) - at < BATCH_OVERHEAD:
            return None
        try:
            header = read_batch_header(chunk, at)
        except KafkaError as error:
            self.error = error.with_traceback(None)  # its frames hold this object
            return None
        self._position = end = position + header.size_bytes
        self._next_offset = header.next_offset
        return FoundBatch(header, header.base_offset, header.last_offset, position, end)


class ReadBatches:
    """The batches that were read; only headers are decoded, as many as are needed.

    aborted: the transactions to skip.
    """

    def __init__(self, readable: Readable, aborted: Iterable[AbortedRange]) -> None:
        self.readable = readable
        self._headers = BatchHeaders(readable)
        self._aborted = sorted(aborted, key=_first_offset, reverse=True)
        """Those that begin later: the next one is the last."""
        self._aborting: set[int] = set()
        """Producers of those that have begun and whose marker has not been reached."""
        self._expected = readable.offset
        self._batches: list[tuple[int, int, bool]] = []
        """(first, last, whether to deliver it or to skip it) from the first batch to deliver on."""
        self._seen: list[tuple[int, int, int]] = []
        """(last offset, position, end position) of each batch to deliver."""
        self._available = 0

    def read(self, max_records: int, offload: Offload) -> Steps[None]:
        """Read headers in steps, until their batches have max_records that are available. Offsets
        before the first batch to deliver are skipped at once.

        Raises LogDirectoryError; KafkaError for a damaged header before which there is nothing to
        deliver.
        """
        headers, step_left = self._headers, HEADERS_PER_STEP
        while (
            not headers.is_over
            and self._available < max_records
            and len(self._batches) < MAX_BATCHES
        ):
            if step_left <= 0:
                step_left = HEADERS_PER_STEP
                yield None
            until = self._expected + max_records - self._available - 1
            batches = headers.read(step_left, until, may_block=False)
            if not batches and not headers.is_over:
                batches = yield from self._read_in_worker(until, offload)
            for batch in batches:
                self._add(batch)
            step_left -= len(batches)
        error, headers.error = headers.error, None
        if error is not None and not self._seen:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame

    def _read_in_worker(self, until: int, offload: Offload) -> Steps[list[FoundBatch]]:
        headers = self._headers
        batches: list[FoundBatch] = []
        done: Deferred[OSError | None] = Deferred()

        def work() -> None:
            batches.extend(headers.read(HEADERS_PER_STEP, until, may_block=True))

        offload(work, done.resolve)
        yield done
        failure = done.value
        if failure is None:
            return batches
        try:
            if isinstance(failure, LogDirectoryError):
                raise failure
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure))
        finally:
            del failure, done  # its traceback holds this frame

    def _add(self, batch: FoundBatch) -> None:
        header, first, last, position, end = batch
        if first > self._expected:
            self._skip(self._expected, first - 1)
        self._expected = last + 1
        first = max(first, self.readable.offset)
        if header is not None and self._is_aborted(header, last):
            self._skip(first, last)
        else:
            self._batches.append((first, last, True))
            self._seen.append((last, position, end))
            self._available += self.readable.found.core.count_available(first, last)

    def _skip(self, first: int, last: int) -> None:
        if self._seen:
            self._batches.append((first, last, False))  # in order: see `SharePartition.skip`
        else:
            self.readable.found.core.skip(first, last)

    def _is_aborted(self, header: BatchHeader, last: int) -> bool:
        aborted, aborting = self._aborted, self._aborting
        while aborted and aborted[-1].first_offset <= last:
            aborting.add(aborted.pop().producer_id)
        if not header.is_transactional or header.producer_id not in aborting:
            return False
        if header.is_control:
            aborting.remove(header.producer_id)
        return True

    def wanted(self) -> Iterator[tuple[int, int]]:
        """(first, last) of each batch to deliver. Offsets between them, including those of aborted
        transactions, are skipped permanently.
        """
        core = self.readable.found.core
        for first, last, is_delivered in self._batches:
            if is_delivered:
                yield first, last
            else:
                core.skip(first, last)

    def around(self, acquired: Sequence[Acquired]) -> Records:
        """The range from the batch of the first acquired record to that of the last."""
        first, last = acquired[0].first, acquired[-1].last
        begin = next((start for end, start, _ in self._seen if end >= first), 0)
        stop = next((end for until, _, end in self._seen if until >= last), self._seen[-1][2])
        records = self.readable.records
        if isinstance(records, FileSlice):
            return FileSlice(records.file, records.position + begin, stop - begin)
        return memoryview(records)[begin:stop] if isinstance(records, bytes) else records
