"""Message sets of magic 0 and 1, the formats before record batches; and both kinds side by side.

    0  offset    int64           17  attributes  int8 (bits 0-2 codec, 3 LogAppendTime in magic 1)
    8  size      int32           18  timestamp   int64, magic 1 only
   12  CRC-32    uint32          ..  key         int32 length (-1 null), bytes
   16  magic     int8            ..  value       int32 length (-1 null), bytes

The CRC covers all after it. With a codec the value is a whole compressed message set and the
message around it a wrapper: its offset is that of the last message in it, its timestamp the largest
one. Offsets inside are absolute in magic 0 and count from 0 in magic 1 (KIP-31); with LogAppendTime
the wrapper's timestamp is everybody's (KIP-32). Sets do not nest deeper.

Where a log or a Fetch response may hold either kind, `read_any_header` describes a message as a
batch of one, and a wrapper as if its last message were its only one: its first offset is known only
to who unpacks it. Record batches are in records.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from kbroker.protocol.compression import Compression, compress, decompress, unpacked_size
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    CODEC_MASK,
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LENGTH_OVERHEAD,
    LENGTH_POSITION,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    MAGIC_POSITION,
    MIN_RECORD_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    Record,
    build_batch,
    check_crc,
    iter_records,
    read_batch_header,
)

HEAD_BYTES: Final = 17
"""Offset, size, CRC and magic: enough to tell the formats apart."""
MIN_MESSAGE_BYTES: Final = 26
"""The shortest message: magic 0, null key, null value."""
MAX_CONVERTED_BYTES: Final = 32 * 1024 * 1024
"""What a message set may unpack to when it is converted on its way in."""

_CRC_END: Final = 16
_BODY: Final = (18, 26)
"""Where the key's length stands, by magic."""
_HEAD: Final = struct.Struct(">qiIbb")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")


class Message:
    """One message, or a wrapper with its set still packed. timestamp: -1 in magic 0."""

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
        """Raises KafkaError(CORRUPT_MESSAGE) for a codec these formats do not have, zstd too."""
        codec = self.attributes & CODEC_MASK
        if codec > Compression.LZ4:
            raise _corrupt(f"compression type {codec} in a message of magic {self.magic}")
        return Compression(codec)


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, why)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)


# -- reading --------------------------------------------------------------------------------------


def is_legacy(buffer: Buffer, position: int = 0) -> bool:
    """Whether what begins at position says it is of magic 0 or 1."""
    return len(buffer) - position >= HEAD_BYTES and buffer[position + MAGIC_POSITION] < MAGIC


def read_message(buffer: Buffer, position: int = 0) -> tuple[Message, int]:
    """(the message at position, position after it). The CRC is compared, not insisted on.

    Raises KafkaError(CORRUPT_MESSAGE) where the bytes are no whole message.
    """
    left = len(buffer) - position
    if left < MIN_MESSAGE_BYTES:
        raise _corrupt(f"{left} bytes are no message")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(buffer, position)
    if not 0 <= magic < MAGIC:
        raise _corrupt(f"magic {magic} in a message set")
    if not _BODY[magic] + 8 - LENGTH_OVERHEAD <= size <= left - LENGTH_OVERHEAD:
        raise _corrupt(f"a message of {size} bytes, {left - LENGTH_OVERHEAD} left")
    end = position + LENGTH_OVERHEAD + size
    covered = memoryview(buffer)[position + _CRC_END : end]
    timestamp = NO_TIMESTAMP
    if magic:
        (timestamp,) = _INT64.unpack_from(buffer, position + 18)
    key, at = _read_bytes(buffer, position + _BODY[magic], end)
    value, at = _read_bytes(buffer, at, end)
    if at != end:
        raise _corrupt(f"{end - at} bytes after the value of a message")
    is_valid = zlib.crc32(covered) == crc
    return Message(offset, magic, crc, is_valid, attributes, timestamp, key, value), end


def _read_bytes(buffer: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    if end - position < 4:
        raise _corrupt("a message is cut short")
    (length,) = _INT32.unpack_from(buffer, position)
    position += 4
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise _corrupt(f"a key or value of {length} bytes, {end - position} left")
    return bytes(memoryview(buffer)[position : position + length]), position + length


def iter_messages(buffer: Buffer) -> Iterator[Message]:
    """The messages of a set that lies whole in buffer, wrappers packed. Raises as read_message."""
    position = 0
    while position < len(buffer):
        message, position = read_message(buffer, position)
        yield message


def iter_unpacked(
    message: Message, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[Message]:
    """What a wrapper holds, with absolute offsets and the timestamps that count; else itself.

    Raises KafkaError(CORRUPT_MESSAGE; MESSAGE_TOO_LARGE if it unpacks to more than
    max_decompressed_bytes; INVALID_RECORD for an empty set, a set within the set, another magic).
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
            raise _invalid(f"a set up to offset {last_offset} in a wrapper of {message.offset}")
        # some librdkafka sent wrappers of offset 0
        shift = message.offset - last_offset if message.offset else 0
    append_time = message.timestamp if message.is_log_append_time else None
    for inner in iter_messages(plain):
        if inner.magic != message.magic:
            raise _invalid(f"magic {inner.magic} within a wrapper of magic {message.magic}")
        if inner.attributes & CODEC_MASK:
            raise _invalid("a compressed message set within a compressed message set")
        inner.offset += shift
        if append_time is not None:
            inner.timestamp = append_time
        yield inner


def unpacked_set_size(message_set: Buffer, *, limit: int) -> int:
    """Bytes of a message set with its wrappers unpacked; limit + 1 for more than limit, which also
    bounds the work. What is no sound message ends the set.
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
    """The compressed set in a wrapper, in a form that every reader of the codec takes."""
    value = message.value
    if not value:
        raise _invalid("a compressed message set without bytes")
    if codec is Compression.LZ4 and message.magic == 0:
        value = _with_lz4_checksum(value, _FRAME_DESCRIPTOR)
    return value


def _unpack(codec: Compression, message: Message, max_bytes: int) -> Buffer:
    plain = decompress(codec, _packed(codec, message), max_bytes=max_bytes)
    if not plain:
        raise _invalid("an empty compressed message set")
    return plain


def _last_offset(message_set: Buffer) -> int:
    """Of the last message: by sizes alone."""
    position = offset = 0
    end = len(message_set)
    while position < end:
        if end - position < MIN_MESSAGE_BYTES:
            raise _corrupt(f"{end - position} bytes are no message")
        offset, size = struct.unpack_from(">qi", message_set, position)
        if size < MIN_MESSAGE_BYTES - LENGTH_OVERHEAD:
            raise _corrupt(f"a message of {size} bytes")
        position += LENGTH_OVERHEAD + size
    return offset


# -- either kind ----------------------------------------------------------------------------------


def read_any_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch or message at position; the bytes behind it need not be there.

    Raises KafkaError(CORRUPT_MESSAGE) as read_batch_header does.
    """
    if not is_legacy(buffer, position):
        return read_batch_header(buffer, position)
    left = len(buffer) - position
    if left < MIN_MESSAGE_BYTES:
        raise _corrupt(f"a message needs {MIN_MESSAGE_BYTES} bytes, {left} left")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(buffer, position)
    if not 0 <= magic < MAGIC or size < _BODY[magic] + 8 - LENGTH_OVERHEAD:
        raise _corrupt(f"a message of {size} bytes, magic {magic}")
    timestamp = NO_TIMESTAMP
    if magic:
        (timestamp,) = _INT64.unpack_from(buffer, position + 18)
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


def iter_any_batches(
    buffer: Buffer, *, partial_ok: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """As iter_batches, over batches and messages of any magic."""
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
            raise _corrupt(f"a batch of {header.size_bytes} bytes, {end - position} left")
        yield position, header
        position = following


def _is_cut(buffer: Buffer, position: int) -> bool:
    (size,) = _INT32.unpack_from(buffer, position + LENGTH_POSITION)
    return bool(size > len(buffer) - position - LENGTH_OVERHEAD)


def iter_any_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """As iter_records, of a batch or message of any magic that lies whole in batch."""
    if header.magic >= MAGIC:
        return iter_records(batch, header, max_decompressed_bytes=max_decompressed_bytes)
    return _message_records(batch, max_decompressed_bytes)


def _message_records(batch: Buffer, max_decompressed_bytes: int) -> Iterator[Record]:
    message, _ = read_message(batch)
    for inner in iter_unpacked(message, max_decompressed_bytes=max_decompressed_bytes):
        yield Record(inner.offset, inner.timestamp, inner.key, inner.value)


def check_any_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """As check_crc, of a batch or message of any magic."""
    if header.magic >= MAGIC:
        return check_crc(buffer, position, header)
    end = position + header.size_bytes
    if end > len(buffer):
        return False
    return zlib.crc32(memoryview(buffer)[position + _CRC_END : end]) == header.crc


# -- old to new -----------------------------------------------------------------------------------


def to_record_batch(
    message_set: Buffer,
    *,
    max_message_bytes: int,
    max_decompressed_bytes: int = MAX_CONVERTED_BYTES,
    compression_level: int | None = None,
) -> bytearray:
    """One record batch, offsets from 0 on, of what a client before 0.11 sent for a partition.

    Messages without codec, or one wrapper, whose codec is kept. Offsets inside are not looked at:
    clients of old had them wrong. The records are converted one by one; a set that cannot become a
    batch of max_message_bytes is not converted to its end.

    Raises KafkaError(CORRUPT_MESSAGE; MESSAGE_TOO_LARGE for a message above max_message_bytes, a
    set that as a batch is above it, or one that unpacks to more than max_decompressed_bytes;
    INVALID_TIMESTAMP for LogAppendTime, which is the broker's to say; INVALID_RECORD).
    """
    if not message_set:
        raise _invalid("no message for the partition")
    records = _new_records(message_set, max_message_bytes, max_decompressed_bytes)
    codec = read_message(message_set)[0].codec
    return build_batch(records, compression=codec, compression_level=compression_level)


def _new_records(
    message_set: Buffer, max_message_bytes: int, max_decompressed_bytes: int
) -> Iterator[Record]:
    """The records of `to_record_batch`, checked as it says."""
    codec = Compression.NONE
    count = size = position = 0
    while position < len(message_set):
        if count and codec is not Compression.NONE:
            raise _invalid("a compressed message set is not the only one for its partition")
        message, end = read_message(message_set, position)
        if end - position > max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a message of {end - position} bytes, max.message.bytes is {max_message_bytes}",
            )
        if not message.is_valid:
            raise _corrupt(f"the CRC is not {message.crc}, as the message says")
        if message.is_log_append_time:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                "producers may not set the timestamp type LogAppendTime",
            )
        codec = message.codec
        if count and codec is not Compression.NONE:
            raise _invalid("a compressed message set is not the only one for its partition")
        for inner in iter_unpacked(message, max_decompressed_bytes=max_decompressed_bytes):
            if not inner.is_valid:
                raise _corrupt(f"the CRC is not {inner.crc}, as the message says")
            size += MIN_RECORD_BYTES + len(inner.key or b"") + len(inner.value or b"")
            if codec is Compression.NONE and size > max_message_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a message set of more than {size} bytes as a batch, max.message.bytes is "
                    f"{max_message_bytes}",
                )
            yield Record(count, inner.timestamp, inner.key, inner.value)
            count += 1
        position = end


# -- new to old -----------------------------------------------------------------------------------


class ConversionBudget:
    """How much one answer may still convert: bytes read, unpacked or written, whichever is most.
    Shared by the partitions of the answer.
    """

    __slots__ = ("left_bytes",)

    def __init__(self, max_bytes: int) -> None:
        self.left_bytes = max_bytes


def down_convert(
    batches: Buffer,
    *,
    magic: int,
    first_offset: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    budget: ConversionBudget | None = None,
) -> bytearray:
    """A message set of that magic with the records of whole batches, for a client before 0.11.

    Headers and, in magic 0, timestamps are lost; control records are left out. Without codec what
    is below first_offset is left out too; a compressed batch stays one, its records below
    first_offset with it. zstd cannot be told to such a client: what is before it comes alone, and
    nothing before it raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE). budget: with none left, the
    batches behind the first one that gave a message are left for the next request.
    """
    out = bytearray()
    for position, header in iter_any_batches(batches):
        if budget is not None and out and budget.left_bytes <= 0:
            break
        batch = memoryview(batches)[position : position + header.size_bytes]
        if header.magic <= magic:
            out += batch
            if budget is not None:
                budget.left_bytes -= header.size_bytes
            continue
        if header.is_control:
            continue
        codec = header.codec
        if codec is Compression.ZSTD:
            if out:
                break
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"a zstd batch cannot be told to a client of magic {magic}",
            )
        records = iter_any_records(batch, header, max_decompressed_bytes=max_decompressed_bytes)
        if codec is Compression.NONE:
            records = (record for record in records if record.offset >= first_offset)
        written = write_message_set(
            out, records, magic=magic, codec=codec, log_append_time=header.is_log_append_time
        )
        if budget is not None:
            budget.left_bytes -= max(header.size_bytes, written)
    return out


def write_message_set(
    out: bytearray,
    records: Iterable[Record],
    *,
    magic: int,
    codec: Compression = Compression.NONE,
    log_append_time: bool = False,
) -> int:
    """Append records, whose offsets rise, as messages, with a codec as one wrapper. Returns the
    bytes of the messages before they are compressed.
    """
    append_time_flag = LOG_APPEND_TIME_FLAG if log_append_time and magic else 0
    if codec is Compression.NONE:
        begin = len(out)
        for record in records:
            _write(
                out, record.offset, magic, append_time_flag, record.timestamp,
                record.key, record.value,
            )  # fmt: skip
        return len(out) - begin
    inner = bytearray()
    base_offset: int | None = None
    last_offset = latest = -1
    for record in records:
        last_offset = record.offset
        latest = max(latest, record.timestamp)
        if base_offset is None:
            base_offset = last_offset if magic else 0
        _write(
            inner, last_offset - base_offset, magic, append_time_flag, record.timestamp,
            record.key, record.value,
        )  # fmt: skip
    if base_offset is None:
        return 0
    packed = compress(codec, inner)
    if codec is Compression.LZ4 and magic == 0:
        packed = _with_lz4_checksum(packed, 0)
    _write(out, last_offset, magic, append_time_flag | codec, latest, None, packed)
    return len(inner)


def _write(
    out: bytearray,
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> None:
    start = len(out)
    body = struct.pack(">bbq", magic, attributes, timestamp) if magic else bytes((0, attributes))
    body += _INT32.pack(-1) if key is None else _INT32.pack(len(key)) + key
    body += _INT32.pack(-1) if value is None else _INT32.pack(len(value)) + value
    out += bytes(_CRC_END)
    out += body
    struct.pack_into(">qiI", out, start, offset, len(body) + 4, zlib.crc32(body))


# -- the lz4 of magic 0 ---------------------------------------------------------------------------

_FRAME_DESCRIPTOR: Final = 4
"""Where the part of an lz4 frame begins that its header checksum covers."""
_FRAME_HEADER_BYTES: Final = 7
_MASK: Final = 0xFFFFFFFF
_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def _with_lz4_checksum(frame: bytes, covered_from: int) -> bytes:
    """The frame with the header checksum taken from covered_from on.

    Kafka's first lz4 took it over the frame's magic number too (from 0); readers of magic 0 in
    clients of that time insist on it, as every other reader insists on the right one.
    """
    if len(frame) < _FRAME_HEADER_BYTES:
        raise _corrupt("an lz4 frame is cut short")
    flags = frame[_FRAME_DESCRIPTOR]
    at = 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    if len(frame) <= at:
        raise _corrupt("an lz4 frame is cut short")
    checksum = _xxh32(frame[covered_from:at]) >> 8 & 0xFF
    return frame[:at] + bytes((checksum,)) + frame[at + 1 :]


def _xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes; of more, what it covers is not looked for."""
    first, second, third, fourth, fifth = _PRIMES
    if len(data) >= 16:
        raise _corrupt("an lz4 frame header of unusual size")
    value = fifth + len(data) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value = value + int.from_bytes(data[at : at + 4], "little") * third & _MASK
        value = (value << 17 | value >> 15) * fourth & _MASK
    for byte in data[whole:]:
        value = value + byte * fifth & _MASK
        value = (value << 11 | value >> 21) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16
