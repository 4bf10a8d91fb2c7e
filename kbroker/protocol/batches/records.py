"""Decodes, scans and encodes the records of a batch of magic 2. KIP-98, 82.

A record is its length, an attributes byte (unused), timestamp delta, offset delta, key and value,
each with its length (-1 for null), and the headers with their count. All numbers are zigzag
varints. Batch headers are in batch_header.py, new batches in batch_builder.py, codecs in
compression.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    LENGTH_OVERHEAD,
    BatchHeader,
    read_batch_header,
)
from kbroker.protocol.batches.compression import LARGEST_RATIO, Buffer, Compression, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError

Header = tuple[bytes, bytes | None]

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, two lengths and the header count at one byte each."""

_LARGEST_RATIOS: Final = tuple(LARGEST_RATIO[codec] for codec in Compression)


class Record:
    """One decoded record. offset: absolute. timestamp: in ms, -1 for none. headers: in order,
    duplicate names kept.
    """

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.offset == other.offset
            and self.timestamp == other.timestamp
            and self.key == other.key
            and self.value == other.value
            and list(self.headers) == list(other.headers)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable, and never a key

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


def invalid_record(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)


def most_records(attributes: int, size_bytes: int) -> int:
    """An upper bound of the records in a batch of size_bytes with these attributes: the number of
    smallest records that fit if the codec reached its largest ratio.

    A header with a larger record count is invalid. Raises KafkaError(CORRUPT_MESSAGE) for an
    unknown codec.
    """
    codec = attributes & CODEC_MASK
    if codec > Compression.ZSTD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown compression type {codec}")
    return (size_bytes - BATCH_OVERHEAD) * _LARGEST_RATIOS[codec] // MIN_RECORD_BYTES


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, 5 bytes at most. KafkaError(INVALID_RECORD); IndexError at the end."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFF
            return (value >> 1) ^ -(value & 1), position
    raise invalid_record("a varint is longer than 5 bytes")


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of at most 10 bytes. Raises as read_varint does."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFFFFFFFFFF
            return (value >> 1) ^ -(value & 1), position
    raise invalid_record("a varlong is longer than 10 bytes")


StoredRecord = tuple[int, int, int, int, int, int, bytes | None]
"""Where a record is in the decompressed records of its batch, and the fields before its value:
start, end of the timestamp delta, position of the value's length, end, timestamp delta, offset
delta, key (None for null). A plain tuple, since compaction reads millions of them.
"""


def check_record_count(count: int, size_bytes: int) -> None:
    """Raises KafkaError(INVALID_RECORD) if so many records do not fit into size_bytes."""
    if not 0 <= count <= size_bytes // MIN_RECORD_BYTES:
        raise invalid_record(f"{count} records in {size_bytes} bytes")


def scan_records(data: bytes, count: int) -> Iterator[StoredRecord]:
    """The count records in data up to their values; values and headers are not read.

    Raises KafkaError(INVALID_RECORD) for bytes that are no record or that follow the last record.
    One loop: short varints, which nearly all are, are decoded without a call.
    """
    check_record_count(count, len(data))
    position = 0
    size = len(data)
    try:
        for _ in range(count):
            start = position
            byte = data[position]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                position += 1
            elif (second := data[position + 1]) < 0x80:
                byte += (second << 7) - 0x80
                length = (byte >> 1) ^ -(byte & 1)
                position += 2
            else:
                length, position = read_varint(data, position)
            end = position + length
            if length < 0 or end > size:
                raise invalid_record(f"a record of {length} bytes, {size - position} left")
            position += 1  # attributes: Kafka defines none and ignores the byte
            byte = data[position]
            if byte < 0x80:
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                timestamp_delta, position = read_varlong(data, position)
            timestamp_end = position
            byte = data[position]
            if byte < 0x80:
                offset_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                offset_delta, position = read_varint(data, position)
            byte = data[position]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                length, position = read_varint(data, position)
            key = None
            if length >= 0:
                key = data[position : position + length]
                position += length
            if position >= end:
                raise invalid_record(f"a record's key runs past its end at byte {end}")
            yield start, timestamp_end, position, end, timestamp_delta, offset_delta, key
            position = end
    except IndexError:
        raise invalid_record("a record runs past the end of its batch") from None
    if position != size:
        raise invalid_record(f"{size - position} bytes after the last record")


def iter_records(
    batch: Buffer,
    header: BatchHeader | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """The records of one whole batch, in order, with absolute offsets and their timestamps.

    batch: begins at the batch and holds all of it. header: the batch's, if the caller has read it.
    The CRC is not checked. Raises KafkaError(CORRUPT_MESSAGE) if decompression fails,
    KafkaError(MESSAGE_TOO_LARGE) if the records decompress to more than max_decompressed_bytes,
    KafkaError(INVALID_RECORD), during the iteration, for bytes that are no record or that follow
    the last record.
    """
    if header is None:
        header = read_batch_header(batch)
    if len(batch) < header.batch_length + LENGTH_OVERHEAD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch is cut short")
    body = memoryview(batch)[BATCH_OVERHEAD : header.batch_length + LENGTH_OVERHEAD]
    count = header.record_count
    if count == 0 and not body:
        return iter(())  # emptied by compaction; no stream, with any codec
    data = bytes(decompress(header.codec, body, max_bytes=max_decompressed_bytes))
    return iter_unpacked_records(data, header)


def iter_unpacked_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """As `iter_records`, of the decompressed records of a batch."""
    check_record_count(header.record_count, len(data))
    return _decode_records(data, header)


def _decode_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        for _, _, position, end, timestamp_delta, offset_delta, key in scan_records(
            data, header.record_count
        ):
            byte = data[position]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                length, position = read_varint(data, position)
            value = None
            if length >= 0:
                value = data[position : position + length]
                position += length
            headers: list[Header] = []
            if data[position] == 0:
                position += 1
            else:
                headers, position = _decode_headers(data, position, end)
            if position != end:
                raise invalid_record(f"a record ends at byte {position}, its length says {end}")
            yield Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except IndexError:
        raise invalid_record("a record runs past the end of its batch") from None


def _decode_headers(data: bytes, position: int, end: int) -> tuple[list[Header], int]:
    count, position = read_varint(data, position)
    if not 0 <= count <= (end - position) // 2:
        raise invalid_record(f"{count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        length, position = read_varint(data, position)
        if length < 0 or length > end - position:
            raise invalid_record(f"a header key of {length} bytes")
        key = data[position : position + length]
        length, position = read_varint(data, position + length)
        if length > end - position:
            raise invalid_record(f"a header value of {length} bytes")
        value = None
        if length >= 0:
            value = data[position : position + length]
            position += length
        headers.append((key, value))
    return headers, position


def append_varint(out: bytearray, value: int) -> None:
    """Append value, at most 64 bits, as a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def encode_record(
    out: bytearray,
    *,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> None:
    """Append one record, with its length before it."""
    body = bytearray(1)  # attributes
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    if key is None:
        body.append(1)
    else:
        append_varint(body, len(key))
        body += key
    if value is None:
        body.append(1)
    else:
        append_varint(body, len(value))
        body += value
    append_varint(body, len(headers))
    for name, content in headers:
        append_varint(body, len(name))
        body += name
        if content is None:
            body.append(1)
        else:
            append_varint(body, len(content))
            body += content
    append_varint(out, len(body))
    out += body
