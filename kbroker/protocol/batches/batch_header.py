"""The header of a record batch of magic 2: its layout, reading it, changing it in place. KIP-98,
82, 534.

    0  base offset            int64       27  base timestamp (or delete horizon)  int64
    8  batch length           int32       35  max timestamp                       int64
   12  partition leader epoch int32       43  producer id                         int64
   16  magic = 2              int8        51  producer epoch                      int16
   17  CRC-32C of 21 to end   uint32      53  base sequence                       int32
   21  attributes             int16       57  record count                        int32
   23  last offset delta      int32       61  records, compressed as one stream

This module alone knows the layout: other modules take positions, structs and attribute bits from
here. Base offset, batch length and magic are at the same positions in every magic. Batches stay
views of the caller's buffer. The records behind the header are in records.py, new batches in
batch_builder.py, magic 0 and 1 in legacy_records.py. log/validator.py decides whether a batch may
be appended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Buffer, Compression
from kbroker.protocol.errors import ErrorCode, KafkaError

MAGIC: Final = 2
BATCH_OVERHEAD: Final = 61
"""Size of the header; Kafka's RECORD_BATCH_OVERHEAD."""
LENGTH_OVERHEAD: Final = 12
"""Bytes up to the end of the length field, which counts the bytes after itself; Kafka's
LOG_OVERHEAD. A batch of batch length n has n + LENGTH_OVERHEAD bytes.
"""

LENGTH_POSITION: Final = 8
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
"""The CRC covers the batch from here to its end."""
BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
BASE_SEQUENCE_POSITION: Final = 53

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

FLAGS_POSITION: Final = ATTRIBUTES_POSITION + 1
"""The low byte of the attributes: the codec and all flags."""

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""All fields, in the order of `BatchHeader`."""
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
"""Base offset, batch length: the first fields in every magic."""
LENGTH_FIELD: Final = struct.Struct(">8xi")
LENGTH_AND_EPOCH: Final = struct.Struct(">8xii")
"""Batch length, leader epoch; in magic 0 and 1 other fields are in the place of the epoch."""
LEADER_FIELDS: Final = struct.Struct(">qii")
"""Base offset, batch length, leader epoch: the leader sets the first and the last."""
APPEND_FIELDS: Final = struct.Struct(">qi4xbIhI8xqqhiI")
"""Base offset, length, magic, CRC, attributes, last offset delta, max timestamp, producer id,
producer epoch, base sequence, record count. Delta and count are read as unsigned: a negative one is
then too large for any batch.
"""
SCAN_FIELDS: Final = struct.Struct(">qi4xb6xi8xq")
"""Base offset, length, magic, last offset delta, max timestamp."""
MAX_TIMESTAMP_FIELD: Final = struct.Struct(">35xq")
PRODUCER_FIELDS: Final = struct.Struct(">43xqh")
"""Producer id, producer epoch."""
RECORD_COUNT_FIELD: Final = struct.Struct(">57xi")

_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT16: Final = struct.Struct(">h")


class BatchHeader:
    """The fields of a batch's header. batch_length counts the bytes after its own field."""

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
        """Size of the whole batch."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Inclusive. Compaction keeps the value even if it removes the record with that offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Compression:
        """Raises KafkaError(CORRUPT_MESSAGE) for the numbers 5 to 7, which are no codec."""
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
        """If set, base_timestamp is the time in ms from which compaction may remove the batch's
        tombstones. KIP-534.
        """
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Inclusive; wraps to 0 after 2**31 - 1. NO_SEQUENCE if the batch has no sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchHeader):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable: offsets are assigned after reading

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in _HEADER_FIELDS)
        return f"BatchHeader({fields})"


_CODECS: Final = tuple(Compression)
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
"""The fields in the order of the bytes; __slots__ is sorted."""


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at position; the records after it need not be in buffer.

    Raises KafkaError(CORRUPT_MESSAGE) if fewer than BATCH_OVERHEAD bytes are left, the magic is not
    2, or the batch length is less than a header's. The validator checks the other fields.
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
    """(position, header) of every whole batch in buffer.

    A last batch that is cut short raises KafkaError(CORRUPT_MESSAGE); with partial_ok it ends the
    iteration, since a Fetch response may end with a partial batch. An invalid header always raises.
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
    """Whether buffer holds the whole batch at position and its bytes have the CRC in the header."""
    end = position + header.batch_length + LENGTH_OVERHEAD
    if end > len(buffer):
        return False
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


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
    seal(batches, position, header.size_bytes)


def set_length_and_attributes(batch: bytearray, attributes: int) -> None:
    """Write the batch length, that of the whole buffer, and the attributes; not the CRC."""
    _INT32.pack_into(batch, LENGTH_POSITION, len(batch) - LENGTH_OVERHEAD)
    _INT16.pack_into(batch, ATTRIBUTES_POSITION, attributes)


def seal(batches: bytearray | memoryview, position: int, size_bytes: int) -> None:
    """Write the CRC of the batch of size_bytes at position, in place."""
    covered = memoryview(batches)[position + ATTRIBUTES_POSITION : position + size_bytes]
    _UINT32.pack_into(batches, position + CRC_POSITION, crc32c(covered))
