"""Message sets of magic 0 and 1, the formats before record batches. KIP-31, KIP-32.

    0  offset    int64           17  attributes  int8 (bits 0-2 codec, 3 LogAppendTime in magic 1)
    8  size      int32           18  timestamp   int64, magic 1 only
   12  CRC-32    uint32          ..  key         int32 length (-1 null), bytes
   16  magic     int8            ..  value       int32 length (-1 null), bytes

The CRC covers the message from the magic on. With a codec, the value is a whole compressed message
set and the message around it is a wrapper: its offset is that of the last message in it, its
timestamp the largest one. Offsets inside are absolute in magic 0 and relative, from 0 on, in magic
1 (KIP-31); with LogAppendTime the wrapper's timestamp applies to every message in it (KIP-32). Sets
do not nest deeper.

This module alone knows the layout. any_magic.py reads both message sets and record batches,
record_conversion.py converts between them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from kbroker.protocol.batches.batch_header import (
    CODEC_MASK,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    OFFSET_AND_LENGTH,
    BatchHeader,
)
from kbroker.protocol.batches.compression import Buffer, Compression, decompress, unpacked_size
from kbroker.protocol.batches.legacy_lz4 import FRAME_DESCRIPTOR, with_lz4_checksum
from kbroker.protocol.batches.records import DEFAULT_MAX_DECOMPRESSED_BYTES, invalid_record
from kbroker.protocol.errors import ErrorCode, KafkaError

HEAD_BYTES: Final = 17
"""Offset, size, CRC and magic: enough to tell the formats apart."""
MIN_MESSAGE_BYTES: Final = 26
"""The shortest message: magic 0, null key, null value."""

_CRC_COVERS_FROM: Final = 16
_TIMESTAMP_POSITION: Final = 18
_KEY_POSITIONS: Final = (18, 26)
"""Position of the key's length, by magic."""
_EMPTY_BYTES: Final = 8
"""A null key and a null value."""
_HEAD: Final = struct.Struct(">qiIbb")
_WRITTEN_HEAD: Final = struct.Struct(">qiI")
_MAGIC_1_FIELDS: Final = struct.Struct(">bbq")
"""Magic, attributes, timestamp."""
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")


class Message:
    """One message, or a wrapper whose set is still compressed. timestamp: -1 in magic 0."""

    __slots__ = ("attributes", "crc", "is_valid", "key", "magic", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int,
        magic: int,
        crc: int,
        is_valid: bool,
        attributes: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        self.offset = offset
        self.magic = magic
        self.crc = crc
        self.is_valid = is_valid
        self.attributes = attributes
        self.timestamp = timestamp
        self.key = key
        self.value = value

    @property
    def is_log_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def codec(self) -> Compression:
        """Raises KafkaError(CORRUPT_MESSAGE) for zstd and unknown codecs."""
        codec = self.attributes & CODEC_MASK
        if codec > Compression.LZ4:
            raise corrupt_message(f"compression type {codec} in a message of magic {self.magic}")
        return Compression(codec)


def corrupt_message(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, why)


def is_legacy(buffer: Buffer, position: int = 0) -> bool:
    """Whether the magic of the message or batch at position is 0 or 1."""
    return len(buffer) - position >= HEAD_BYTES and buffer[position + MAGIC_POSITION] < MAGIC


def read_message(buffer: Buffer, position: int = 0) -> tuple[Message, int]:
    """(the message at position, position after it). A wrong CRC sets `is_valid` to False and does
    not raise.

    Raises KafkaError(CORRUPT_MESSAGE) if the bytes are not a whole message.
    """
    left = len(buffer) - position
    if left < MIN_MESSAGE_BYTES:
        raise corrupt_message(f"{left} bytes are no message")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(buffer, position)
    if not 0 <= magic < MAGIC:
        raise corrupt_message(f"magic {magic} in a message set")
    if not _KEY_POSITIONS[magic] + _EMPTY_BYTES - LENGTH_OVERHEAD <= size <= left - LENGTH_OVERHEAD:
        raise corrupt_message(f"a message of {size} bytes, {left - LENGTH_OVERHEAD} left")
    end = position + LENGTH_OVERHEAD + size
    covered = memoryview(buffer)[position + _CRC_COVERS_FROM : end]
    timestamp = NO_TIMESTAMP
    if magic:
        (timestamp,) = _INT64.unpack_from(buffer, position + _TIMESTAMP_POSITION)
    key, at = _read_bytes(buffer, position + _KEY_POSITIONS[magic], end)
    value, at = _read_bytes(buffer, at, end)
    if at != end:
        raise corrupt_message(f"{end - at} bytes after the value of a message")
    is_valid = zlib.crc32(covered) == crc
    return Message(offset, magic, crc, is_valid, attributes, timestamp, key, value), end


def _read_bytes(buffer: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    if end - position < 4:
        raise corrupt_message("a message is cut short")
    (length,) = _INT32.unpack_from(buffer, position)
    position += 4
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise corrupt_message(f"a key or value of {length} bytes, {end - position} left")
    return bytes(memoryview(buffer)[position : position + length]), position + length


def iter_messages(buffer: Buffer) -> Iterator[Message]:
    """The messages of the whole set in buffer, wrappers as they are. Raises as `read_message`."""
    position = 0
    while position < len(buffer):
        message, position = read_message(buffer, position)
        yield message


def iter_unpacked(
    message: Message, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[Message]:
    """The messages in a wrapper, with absolute offsets and effective timestamps; a message without
    codec itself.

    Raises KafkaError(CORRUPT_MESSAGE; MESSAGE_TOO_LARGE if the set decompresses to
    more than max_decompressed_bytes; INVALID_RECORD for an empty set, a set within the set, another
    magic).
    """
    codec = message.codec
    if codec is Compression.NONE:
        yield message
        return
    plain = _unpack(codec, message, max_decompressed_bytes)
    shift = 0
    if message.magic:
        last_offset = _last_offset(plain)
        if message.offset and message.offset < last_offset:
            raise invalid_record(
                f"a set up to offset {last_offset} in a wrapper of {message.offset}"
            )
        # some librdkafka versions send wrappers with offset 0
        shift = message.offset - last_offset if message.offset else 0
    append_time = message.timestamp if message.is_log_append_time else None
    for inner in iter_messages(plain):
        if inner.magic != message.magic:
            raise invalid_record(f"magic {inner.magic} within a wrapper of magic {message.magic}")
        if inner.attributes & CODEC_MASK:
            raise invalid_record("a compressed message set within a compressed message set")
        inner.offset += shift
        if append_time is not None:
            inner.timestamp = append_time
        yield inner


def unpacked_set_size(message_set: Buffer, *, limit: int) -> int:
    """Bytes of a message set with its wrappers decompressed, at most limit + 1, which bounds the
    work too. An invalid message ends the set.
    """
    size = position = 0
    try:
        while position < len(message_set) and size <= limit:
            start = position
            message, position = read_message(message_set, position)
            codec = message.codec
            if codec is Compression.NONE:
                size += position - start
            else:
                size += unpacked_size(codec, _packed(codec, message), limit=limit - size)
    except KafkaError:
        return size
    return min(size, limit + 1)


def _packed(codec: Compression, message: Message) -> bytes:
    """The compressed set in a wrapper, in the form that the codec's library reads."""
    value = message.value
    if not value:
        raise invalid_record("a compressed message set without bytes")
    if codec is Compression.LZ4 and message.magic == 0:
        value = with_lz4_checksum(value, FRAME_DESCRIPTOR)
    return value


def _unpack(codec: Compression, message: Message, max_bytes: int) -> Buffer:
    plain = decompress(codec, _packed(codec, message), max_bytes=max_bytes)
    if not plain:
        raise invalid_record("an empty compressed message set")
    return plain


def _last_offset(message_set: Buffer) -> int:
    """The offset of the last message; only sizes are read."""
    position = offset = 0
    end = len(message_set)
    while position < end:
        if end - position < MIN_MESSAGE_BYTES:
            raise corrupt_message(f"{end - position} bytes are no message")
        offset, size = OFFSET_AND_LENGTH.unpack_from(message_set, position)
        if size < MIN_MESSAGE_BYTES - LENGTH_OVERHEAD:
            raise corrupt_message(f"a message of {size} bytes")
        position += LENGTH_OVERHEAD + size
    return offset


def read_message_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The message at position as the header of a batch of one record; a wrapper as if its last
    message were its only one. The key and value need not be in buffer.

    Raises KafkaError(CORRUPT_MESSAGE) as `read_batch_header` does.
    """
    left = len(buffer) - position
    if left < MIN_MESSAGE_BYTES:
        raise corrupt_message(f"a message needs {MIN_MESSAGE_BYTES} bytes, {left} left")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(buffer, position)
    if not 0 <= magic < MAGIC or size < _KEY_POSITIONS[magic] + _EMPTY_BYTES - LENGTH_OVERHEAD:
        raise corrupt_message(f"a message of {size} bytes, magic {magic}")
    timestamp = NO_TIMESTAMP
    if magic:
        (timestamp,) = _INT64.unpack_from(buffer, position + _TIMESTAMP_POSITION)
        attributes &= CODEC_MASK | LOG_APPEND_TIME_FLAG
    else:
        attributes &= CODEC_MASK
    return BatchHeader(
        offset,
        size,
        -1,
        magic,
        crc,
        attributes,
        0,
        timestamp,
        timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        1,
    )


def check_message_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether buffer holds the whole message at position and its bytes have the header's CRC."""
    end = position + header.size_bytes
    if end > len(buffer):
        return False
    return zlib.crc32(memoryview(buffer)[position + _CRC_COVERS_FROM : end]) == header.crc


def write_message(
    out: bytearray,
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> None:
    """Append one message to out. timestamp: not written in magic 0."""
    start = len(out)
    body = _MAGIC_1_FIELDS.pack(magic, attributes, timestamp) if magic else bytes((0, attributes))
    body += _INT32.pack(-1) if key is None else _INT32.pack(len(key)) + key
    body += _INT32.pack(-1) if value is None else _INT32.pack(len(value)) + value
    out += bytes(_CRC_COVERS_FROM)
    out += body
    size = len(out) - start - LENGTH_OVERHEAD
    _WRITTEN_HEAD.pack_into(out, start, offset, size, zlib.crc32(body))
