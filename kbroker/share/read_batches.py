"""The record batches that a share fetch has read, before and after acquisition.

`ReadBatches` reads batch headers only. It tells `SharePartition.acquire` which offsets each batch
covers, archives the offsets that no batch covers and those of aborted transactions, and limits the
file range to the batches that contain acquired records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbroker.log.storage.files import FileSlice
from kbroker.model import TopicIdPartition
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_batch_header,
)
from kbroker.protocol.codecs.schema import Records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.share.acquisition import Acquired
from kbroker.share.partitions import OpenSharePartition


class Readable(NamedTuple):
    """Batches from the next fetch offset of a share partition on. size_bytes: of all batches."""

    place: TopicIdPartition
    found: OpenSharePartition
    offset: int
    records: Records
    end_offset: int
    size_bytes: int


class ReadBatches:
    """The batches that were read; only headers are decoded, on demand."""

    def __init__(self, readable: Readable, aborted: list[tuple[int, int]]) -> None:
        self._readable = readable
        self._aborted = sorted(aborted)
        self._seen: list[tuple[int, int, int]] = []
        """(last offset, position, end position) of each batch."""

    def wanted(self) -> Iterator[tuple[int, int]]:
        """(first, last) of each batch to deliver. Offsets between them, including those of aborted
        transactions, are skipped permanently.
        """
        readable = self._readable
        core = readable.found.core
        expected = readable.offset
        ended: set[int] = set()
        for header, first, last in self._headers():
            if first > expected:
                core.skip(expected, first - 1)
            expected = last + 1
            if header is not None and self._is_aborted(header, last, ended):
                core.skip(max(first, readable.offset), last)
            else:
                yield max(first, readable.offset), last

    def _is_aborted(self, header: BatchHeader, last: int, ended: set[int]) -> bool:
        """ended: starts of aborted transactions whose marker has been reached."""
        if not self._aborted or not header.is_transactional:
            return False
        for start, producer_id in self._aborted:
            if start > last:
                break
            if producer_id == header.producer_id and start not in ended:
                if header.is_control:
                    ended.add(start)
                return True
        return False

    def _headers(self) -> Iterator[tuple[BatchHeader | None, int, int]]:
        """(header, first, last) in order. Messages of an older format, and everything after them,
        are one batch without a header.
        """
        records, position = self._readable.records, 0
        size, next_offset = self._readable.size_bytes, self._readable.offset
        while position + MAGIC_POSITION < size:
            data = _bytes_of(records, position, min(BATCH_OVERHEAD, size - position))
            if data[MAGIC_POSITION] < MAGIC:
                self._seen.append((self._readable.end_offset - 1, position, size))
                yield None, next_offset, self._readable.end_offset - 1
                return
            if len(data) < BATCH_OVERHEAD:
                return
            header = read_batch_header(data)
            end = position + header.size_bytes
            self._seen.append((header.last_offset, position, end))
            yield header, header.base_offset, header.last_offset
            position, next_offset = end, header.next_offset

    def around(self, acquired: Sequence[Acquired]) -> Records:
        """The range from the batch of the first acquired record to that of the last."""
        first, last = acquired[0].first, acquired[-1].last
        begin = next((start for end, start, _ in self._seen if end >= first), 0)
        stop = next((end for until, _, end in self._seen if until >= last), self._seen[-1][2])
        records = self._readable.records
        if isinstance(records, FileSlice):
            return FileSlice(records.file, records.position + begin, stop - begin)
        return memoryview(records)[begin:stop] if isinstance(records, bytes) else records


def _bytes_of(records: Records, position: int, count: int) -> bytes:
    if isinstance(records, FileSlice):
        return records.read(position, count)
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records[position : position + count])
    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
