"""Reads record batches of magic 2 and message sets of magic 0 and 1 through the same functions.

A log or a Fetch response may have both. A message is represented as the header of a batch with one
record, a wrapper as if its last message were its only one: its first offset is only known after
decompression. The formats are in batch_header.py and legacy_records.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.protocol.batches.batch_header import (
    LENGTH_FIELD,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    check_crc,
    read_batch_header,
)
from kbroker.protocol.batches.compression import Buffer
from kbroker.protocol.batches.legacy_records import (
    MIN_MESSAGE_BYTES,
    check_message_crc,
    corrupt_message,
    is_legacy,
    iter_unpacked,
    read_message,
    read_message_header,
)
from kbroker.protocol.batches.records import DEFAULT_MAX_DECOMPRESSED_BYTES, Record, iter_records
from kbroker.protocol.errors import KafkaError


def read_any_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch or message at position; the records after it need not be in buffer.

    Raises KafkaError(CORRUPT_MESSAGE) as `read_batch_header` does.
    """
    if is_legacy(buffer, position):
        return read_message_header(buffer, position)
    return read_batch_header(buffer, position)


def iter_any_batches(
    buffer: Buffer, *, partial_ok: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """As `iter_batches`, of batches and messages of any magic."""
    position = 0
    end = len(buffer)
    while position < end:
        if partial_ok and end - position < MIN_MESSAGE_BYTES:
            return
        try:
            header = read_any_header(buffer, position)
        except KafkaError:
            if partial_ok and not is_legacy(buffer, position) and _is_cut(buffer, position):
                return
            raise
        following = position + header.size_bytes
        if following > end:
            if partial_ok:
                return
            raise corrupt_message(f"a batch of {header.size_bytes} bytes, {end - position} left")
        yield position, header
        position = following


def _is_cut(buffer: Buffer, position: int) -> bool:
    (size,) = LENGTH_FIELD.unpack_from(buffer, position)
    return bool(size > len(buffer) - position - LENGTH_OVERHEAD)


def iter_any_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """As `iter_records`, of one whole batch or message of any magic."""
    if header.magic >= MAGIC:
        return iter_records(batch, header, max_decompressed_bytes=max_decompressed_bytes)
    return _message_records(batch, max_decompressed_bytes)


def _message_records(batch: Buffer, max_decompressed_bytes: int) -> Iterator[Record]:
    message, _ = read_message(batch)
    for inner in iter_unpacked(message, max_decompressed_bytes=max_decompressed_bytes):
        yield Record(inner.offset, inner.timestamp, inner.key, inner.value)


def check_any_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """As `check_crc`, of a batch or message of any magic."""
    if header.magic >= MAGIC:
        return check_crc(buffer, position, header)
    return check_message_crc(buffer, position, header)
