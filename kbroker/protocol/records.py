"""Record batches of magic 2: headers in place, records decoded, batches built. KIP-98, 82, 534.

    0  base offset            int64       27  base timestamp (or delete horizon)  int64
    8  batch length           int32       35  max timestamp                       int64
   12  partition leader epoch int32       43  producer id                         int64
   16  magic = 2              int8        51  producer epoch                      int16
   17  CRC-32C of 21 to end   uint32      53  base sequence                       int32
   21  attributes             int16       57  record count                        int32
   23  last offset delta      int32       61  records, compressed as one stream

Batches are views on somebody's buffer and stay so: only `iter_records` looks behind the header.
Codecs are in compression.py. Whether a batch may be appended is decided in log/validator.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import LARGEST_RATIO, Compression, compress, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview
Header = tuple[bytes, bytes | None]

MAGIC: Final = 2
BATCH_OVERHEAD: Final = 61
LENGTH_OVERHEAD: Final = 12
"""Bytes before and including the length field; a batch is its length plus this long."""
LENGTH_POSITION: Final = 8
LEADER_EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, two lengths and the header count at one byte each."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT16: Final = struct.Struct(">h")
_CONTROL_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class ControlType(IntEnum):
    """What a control record says: the second int16 of its key."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class BatchHeader:
    """The fixed 61 bytes of a batch, as numbers. batch_length counts what follows its own field."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(
        self,
        base_offset: int,
        batch_length: int,
        partition_leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.batch_length = batch_length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

    @property
    def size_bytes(self) -> int:
        """Of the whole batch."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Inclusive; kept by compaction even where that record is gone."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Compression:
        """Raises KafkaError(CORRUPT_MESSAGE) for the three numbers no codec has."""
        codec = self.attributes & CODEC_MASK
        if codec > Compression.ZSTD:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown compression type {codec}")
        return _CODECS[codec]

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        """base_timestamp is then the time from which tombstones may go, in ms. KIP-534."""
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Inclusive; wraps to 0 behind 2**31 - 1. NO_SEQUENCE where the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchHeader):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable: offsets are given after reading

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in _HEADER_FIELDS)
        return f"BatchHeader({fields})"


_CODECS: Final = tuple(Compression)
_LARGEST_RATIOS: Final = tuple(LARGEST_RATIO[codec] for codec in Compression)
_HEADER_FIELDS: Final = (
    "base_offset",
    "batch_length",
    "partition_leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)
"""In the order of the bytes; __slots__ is sorted."""


class Record:
    """One record, decoded. offset: absolute; timestamp: ms, -1 none; headers: in order, doubles
    kept.
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


RecordInput = Record | tuple[int | None, bytes | None, bytes | None, Sequence[Header]]
"""A Record with its absolute offset, or (timestamp_ms, key, value, headers)."""


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at position; the bytes behind the header need not be there.

    Raises KafkaError(CORRUPT_MESSAGE) if fewer than 61 bytes are left, the magic is not 2, or the
    length field is smaller than a header. A negative size of anything else is for the validator.
    """
    try:
        header = BatchHeader(*HEADER.unpack_from(buffer, position))
    except struct.error:
        left = len(buffer) - position
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"a batch header needs {BATCH_OVERHEAD} bytes, {left} left"
        ) from None
    if header.magic != MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"magic {header.magic} is not {MAGIC}")
    if header.batch_length < BATCH_OVERHEAD - LENGTH_OVERHEAD:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} is less than a header's"
        )
    return header


def iter_batches(buffer: Buffer, *, partial_ok: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in buffer, which lies whole in it.

    A last batch that is cut short raises KafkaError(CORRUPT_MESSAGE); with partial_ok (a Fetch
    response may end so) it ends the iteration. A header that lies raises either way.
    """
    position = 0
    end = len(buffer)
    while position < end:
        if partial_ok and end - position < BATCH_OVERHEAD:
            return
        header = read_batch_header(buffer, position)
        following = position + header.batch_length + LENGTH_OVERHEAD
        if following > end:
            if partial_ok:
                return
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch of {header.size_bytes} bytes, {end - position} left",
            )
        yield position, header
        position = following


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch at position lies whole in buffer and has the CRC-32C of its header."""
    end = position + header.batch_length + LENGTH_OVERHEAD
    if end > len(buffer):
        return False
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


def most_records(attributes: int, size_bytes: int) -> int:
    """An upper bound of the records in a batch of size_bytes with these attributes: how many of the
    smallest there would be if its codec had compressed them by as much as it can.

    A batch whose header claims more lies. Raises KafkaError(CORRUPT_MESSAGE) for an unknown codec.
    """
    codec = attributes & CODEC_MASK
    if codec > Compression.ZSTD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown compression type {codec}")
    return (size_bytes - BATCH_OVERHEAD) * _LARGEST_RATIOS[codec] // MIN_RECORD_BYTES


def assign_offsets(batches: bytearray | memoryview, base_offset: int, leader_epoch: int) -> int:
    """Write offsets and leader epoch into batch headers, in place; both lie outside the CRC.

    batches: whole v2 batches, writable. base_offset: first offset to give. Returns the next offset
    (exclusive). Raises KafkaError(CORRUPT_MESSAGE) if a length runs past the buffer. Source:
    KIP-98.
    """
    position = 0
    end = len(batches)
    while position < end:
        header = read_batch_header(batches, position)
        if header.batch_length + LENGTH_OVERHEAD > end - position:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch length runs past the buffer")
        _INT64.pack_into(batches, position, base_offset)
        _INT32.pack_into(batches, position + LEADER_EPOCH_POSITION, leader_epoch)
        base_offset += header.last_offset_delta + 1
        position += header.batch_length + LENGTH_OVERHEAD
    return base_offset


def set_max_timestamp(
    batches: bytearray | memoryview, position: int, timestamp_ms: int, *, log_append_time: bool
) -> None:
    """Write max timestamp and timestamp type of the batch at position, in place, with a new CRC."""
    header = read_batch_header(batches, position)
    attributes = header.attributes & ~LOG_APPEND_TIME_FLAG
    if log_append_time:
        attributes |= LOG_APPEND_TIME_FLAG
    _INT16.pack_into(batches, position + ATTRIBUTES_POSITION, attributes)
    _INT64.pack_into(batches, position + MAX_TIMESTAMP_POSITION, timestamp_ms)
    _seal(batches, position, header.size_bytes)


def recompress(
    batch: Buffer,
    header: BatchHeader,
    codec: Compression,
    *,
    level: int | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytearray:
    """The same batch in another codec; the records are not looked at, only the stream of them.

    batch: begins at the batch and holds all of it. Raises as iter_records does for a codec's fault,
    and for more records than the stream has room for.
    """
    body = memoryview(batch)[BATCH_OVERHEAD : header.size_bytes]
    plain = decompress(header.codec, body, max_bytes=max_decompressed_bytes)
    if header.record_count > len(plain) // MIN_RECORD_BYTES:
        raise _invalid(f"{header.record_count} records in {len(plain)} bytes")
    changed = bytearray(memoryview(batch)[:BATCH_OVERHEAD])
    changed += compress(codec, plain, level)
    _INT32.pack_into(changed, LENGTH_POSITION, len(changed) - LENGTH_OVERHEAD)
    _INT16.pack_into(changed, ATTRIBUTES_POSITION, header.attributes & ~CODEC_MASK | codec)
    _seal(changed, 0, len(changed))
    return changed


def replace_records(
    header: BatchHeader,
    body: Buffer,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    delete_horizon: bool,
) -> bytearray:
    """The batch of header with other records: offsets, producer and codec stay as they are.

    body: the records, not compressed; their deltas count from the header's base offset and from
    base_timestamp. delete_horizon: base_timestamp is one.
    """
    payload = compress(header.codec, body)
    batch = bytearray(BATCH_OVERHEAD)
    batch += payload
    HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - LENGTH_OVERHEAD,
        header.partition_leader_epoch,
        MAGIC,
        0,
        header.attributes & ~DELETE_HORIZON_FLAG | (DELETE_HORIZON_FLAG if delete_horizon else 0),
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    _seal(batch, 0, len(batch))
    return batch


def _seal(batches: bytearray | memoryview, position: int, size_bytes: int) -> None:
    """Write the CRC of the batch at position."""
    covered = memoryview(batches)[position + ATTRIBUTES_POSITION : position + size_bytes]
    _UINT32.pack_into(batches, position + CRC_POSITION, crc32c(covered))


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)


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
    raise _invalid("a varint is longer than 5 bytes")


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
    raise _invalid("a varlong is longer than 10 bytes")


def iter_records(
    batch: Buffer,
    header: BatchHeader | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """The records of one whole batch, in order, with absolute offsets and their timestamps.

    batch: begins at the batch and holds all of it; header: of it, if the caller has it. The CRC is
    not looked at. Raises KafkaError(CORRUPT_MESSAGE) for a codec's fault,
    KafkaError(MESSAGE_TOO_LARGE) if it unpacks to more than max_decompressed_bytes,
    KafkaError(INVALID_RECORD) where a record's bytes are none or others are left over; the last is
    known only when the iteration ends.
    """
    if header is None:
        header = read_batch_header(batch)
    if len(batch) < header.batch_length + LENGTH_OVERHEAD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch is cut short")
    body = memoryview(batch)[BATCH_OVERHEAD : header.batch_length + LENGTH_OVERHEAD]
    count = header.record_count
    if count == 0 and not body:
        return iter(())  # emptied by compaction; no stream, whatever the codec says
    data = bytes(decompress(header.codec, body, max_bytes=max_decompressed_bytes))
    return iter_unpacked_records(data, header)


def iter_unpacked_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The same of what the batch's body unpacks to."""
    count = header.record_count
    if not 0 <= count <= len(data) // MIN_RECORD_BYTES:
        raise _invalid(f"{count} records in {len(data)} bytes")
    return _decode_records(data, header)


def _decode_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The hot loop: short varints, nearly all of them, are decoded without a call."""
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    position = 0
    size = len(data)
    try:
        for _ in range(header.record_count):
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
                raise _invalid(f"a record of {length} bytes, {size - position} left")
            position += 1  # attributes: none is defined, and Kafka looks at none
            byte = data[position]
            if byte < 0x80:
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                timestamp_delta, position = read_varlong(data, position)
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
                raise _invalid(f"a record ends at byte {position}, its length says {end}")
            yield Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except IndexError:
        raise _invalid("a record runs past the end of its batch") from None
    if position != size:
        raise _invalid(f"{size - position} bytes after the last record")


def _decode_headers(data: bytes, position: int, end: int) -> tuple[list[Header], int]:
    count, position = read_varint(data, position)
    if not 0 <= count <= (end - position) // 2:
        raise _invalid(f"{count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        length, position = read_varint(data, position)
        if length < 0 or length > end - position:
            raise _invalid(f"a header key of {length} bytes")
        key = data[position : position + length]
        length, position = read_varint(data, position + length)
        if length > end - position:
            raise _invalid(f"a header value of {length} bytes")
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


def build_batch(
    records: Iterable[RecordInput],
    *,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """A batch of records, with its CRC. records: may be made one by one; none is kept.

    Tuples take the offsets from base_offset on; a Record keeps its own, which is not below
    base_offset. last_offset_delta: as compaction keeps it, also beyond the last record or without
    any; by default the last record's. Raises ValueError for no records without last_offset_delta,
    and for offsets that do not rise.
    """
    body, count, last_delta, base_timestamp, latest = _encode_records(
        records, base_offset, delete_horizon_ms
    )
    if not count:
        compression = Compression.NONE  # as Kafka's cleaner leaves an emptied batch
    attributes = (
        compression
        | (LOG_APPEND_TIME_FLAG if log_append_time_ms is not None else 0)
        | (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0)
        | (DELETE_HORIZON_FLAG if delete_horizon_ms is not None else 0)
    )
    if max_timestamp is None:
        max_timestamp = latest if log_append_time_ms is None else log_append_time_ms
    if last_offset_delta is None:
        last_offset_delta = last_delta
    if last_offset_delta < max(last_delta, 0):
        raise ValueError(f"last offset delta {last_offset_delta}, last record's {last_delta}")
    payload: Buffer = body
    if compression is not Compression.NONE:
        payload = compress(compression, body, compression_level)
    batch = bytearray(BATCH_OVERHEAD)
    batch += payload
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_OVERHEAD,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    _seal(batch, 0, len(batch))
    return batch


def _encode_records(
    records: Iterable[RecordInput], base_offset: int, delete_horizon_ms: int | None
) -> tuple[bytearray, int, int, int, int]:
    """(bytes, record count, last offset delta, base timestamp, max timestamp); the last three are
    -1 where there is no record.
    """
    body = bytearray()
    base_timestamp = NO_TIMESTAMP if delete_horizon_ms is None else delete_horizon_ms
    max_timestamp = NO_TIMESTAMP
    last_delta = index = -1
    for index, record in enumerate(records):
        if isinstance(record, Record):
            timestamp, key, value = record.timestamp, record.key, record.value
            headers = record.headers
            delta = record.offset - base_offset
        else:
            given, key, value, headers = record
            timestamp = NO_TIMESTAMP if given is None else given
            delta = index
        if delta <= last_delta:
            raise ValueError(f"offset {base_offset + delta} after {base_offset + last_delta}")
        if index == 0 and delete_horizon_ms is None:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        last_delta = delta
        encode_record(
            body,
            timestamp_delta=timestamp - base_timestamp,
            offset_delta=delta,
            key=key,
            value=value,
            headers=headers,
        )
    return body, index + 1, last_delta, base_timestamp, max_timestamp


def build_end_transaction_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a transaction in one partition. Source: KIP-98."""
    control_type = ControlType.COMMIT if commit else ControlType.ABORT
    key = _CONTROL_KEY.pack(0, control_type)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def control_type(record: Record) -> ControlType:
    """What a control record says; UNKNOWN for later types. Raises KafkaError(INVALID_RECORD)."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise _invalid("a control record needs a key of at least 4 bytes")
    version, number = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise _invalid(f"control record key of version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def marker_coordinator_epoch(record: Record) -> int:
    """The coordinator epoch in an abort or commit record. Raises KafkaError(INVALID_RECORD)."""
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise _invalid("an end-of-transaction marker needs a value of at least 6 bytes")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise _invalid(f"end-of-transaction marker of version {version}")
    return int(coordinator_epoch)
