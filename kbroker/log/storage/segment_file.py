"""The file of a segment, `<base offset>.log`: its descriptor, and a scan of its batch headers.

The file is opened on first use and closed when `OpenFiles` requests it; reads in progress keep the
descriptor. Neighbours: `indexed_segment` finds positions in it, `segment` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from kbroker.log.storage.files import (
    LogFile,
    modified_ms,
)
from kbroker.log.storage.open_files import LoadedIndexes, OpenFiles
from kbroker.protocol.batches.any_magic import read_any_header
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    SCAN_FIELDS,
)
from kbroker.protocol.batches.legacy_records import is_legacy
from kbroker.protocol.errors import ErrorCode, KafkaError

SCAN_CHUNK_BYTES: Final = 8 * 1024
"""Bytes of one read of headers: covers the default index interval and the batch after it."""


class SegmentFile:
    """base_offset: from the file's name. size: bytes of whole batches in the file. used: set on
    each use, cleared by `open_files`.
    """

    __slots__ = ("base_offset", "file", "open_files", "path", "size", "used")

    def __init__(self, path: str, base_offset: int, *, size: int, open_files: OpenFiles) -> None:
        self.base_offset = base_offset
        self.path = path
        self.size = size
        self.file: LogFile | None = None
        self.used = False
        self.open_files = open_files

    def log_file(self) -> LogFile:
        """The open file; opened first if necessary."""
        file = self.file
        if file is None:
            file = self.file = LogFile(self.path)
            self.open_files.opened(self)
        self.used = True
        return file

    def modified_ms(self) -> int:
        """When the log file was last written, ms. An open file is asked by its descriptor, not by
        its name: see `swap`.
        """
        return modified_ms(self.path) if self.file is None else self.file.modified_ms()

    @property
    def loaded_indexes(self) -> LoadedIndexes:
        """The limit on the memory of indexes."""
        return self.open_files.indexes

    def release(self) -> None:
        """Called by OpenFiles: close the descriptor."""
        self.file = None

    def close_file(self) -> None:
        """Close the file; a FileSlice in use still holds the descriptor."""
        if self.file is not None:
            self.open_files.forget(self)
            self.release()

    # -- batch headers ----------------------------------------------------------------------------

    def scan(
        self, position: int, end: int | None = None
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """(position, base offset, last offset, size, max timestamp) of the batches from position
        on.

        position: where a batch begins. Reads chunks of bounded size, and skips the records of large
        batches. Raises KafkaError(CORRUPT_MESSAGE) for bytes that are no batch.
        """
        if end is None:
            end = self.size
        file = self.log_file()
        unpack = SCAN_FIELDS.unpack_from
        while position < end:
            data = file.read_at(position, min(SCAN_CHUNK_BYTES, end - position))
            at = 0
            last = len(data) - SCAN_FIELDS.size
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
            if at == 0:  # too short for a batch; messages of magic 0 and 1 are shorter
                message = self._message_at(data, 0, position, end)
                yield message
                at = message[3]
            position += at

    def _message_at(
        self, data: bytes, at: int, start: int, end: int
    ) -> tuple[int, int, int, int, int]:
        """The fields that `scan` yields for a message of magic 0 or 1; the base offset of a
        compressed message set is unknown. start, end: positions of data and of the last byte to
        read.
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
