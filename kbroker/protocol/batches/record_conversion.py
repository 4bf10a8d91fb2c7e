"""Conversion between record batches and the message sets of clients before 0.11.

Up-conversion happens on Produce before version 3, down-conversion on Fetch before version 4; the
limits of down-conversion are in server/down_conversion.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kbroker.protocol.batches.any_magic import iter_any_batches, iter_any_records
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import LOG_APPEND_TIME_FLAG
from kbroker.protocol.batches.compression import Buffer, Compression, compress
from kbroker.protocol.batches.legacy_lz4 import with_lz4_checksum
from kbroker.protocol.batches.legacy_records import (
    corrupt_message,
    iter_unpacked,
    read_message,
    write_message,
)
from kbroker.protocol.batches.records import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    MIN_RECORD_BYTES,
    Record,
    invalid_record,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

MAX_CONVERTED_BYTES: Final = 32 * 1024 * 1024
"""The maximum decompressed size of a message set that is converted to a batch."""


def to_record_batch(
    message_set: Buffer,
    *,
    max_message_bytes: int,
    max_decompressed_bytes: int = MAX_CONVERTED_BYTES,
    compression_level: int | None = None,
) -> bytearray:
    """One record batch, offsets from 0 on, of the messages for a partition from an old client.

    message_set: messages without codec, or one wrapper, whose codec the batch gets. Offsets inside
    are ignored: old clients sent wrong ones. The records are converted one by one; conversion stops
    as soon as the batch would exceed max_message_bytes.

    Raises KafkaError(CORRUPT_MESSAGE; MESSAGE_TOO_LARGE for a message above max_message_bytes, a
    set whose batch exceeds it, or one that decompresses to more than max_decompressed_bytes;
    INVALID_TIMESTAMP for LogAppendTime, which only the broker may set; INVALID_RECORD).
    """
    if not message_set:
        raise invalid_record("no message for the partition")
    records = _new_records(message_set, max_message_bytes, max_decompressed_bytes)
    codec = read_message(message_set)[0].codec
    return build_batch(records, compression=codec, compression_level=compression_level)


def _new_records(
    message_set: Buffer, max_message_bytes: int, max_decompressed_bytes: int
) -> Iterator[Record]:
    """The records for `to_record_batch`, which documents the checks."""
    codec = Compression.NONE
    count = size = position = 0
    while position < len(message_set):
        if count and codec is not Compression.NONE:
            raise invalid_record("a compressed message set is not the only one for its partition")
        message, end = read_message(message_set, position)
        if end - position > max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a message of {end - position} bytes, max.message.bytes is {max_message_bytes}",
            )
        if not message.is_valid:
            raise corrupt_message(f"the CRC is not {message.crc}, as the message says")
        if message.is_log_append_time:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                "producers may not set the timestamp type LogAppendTime",
            )
        codec = message.codec
        if count and codec is not Compression.NONE:
            raise invalid_record("a compressed message set is not the only one for its partition")
        for inner in iter_unpacked(message, max_decompressed_bytes=max_decompressed_bytes):
            if not inner.is_valid:
                raise corrupt_message(f"the CRC is not {inner.crc}, as the message says")
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


class ConversionBudget:
    """How many more bytes the conversion of one response may read, decompress or write, whichever
    is largest. Shared by the partitions of the response.
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

    Headers and, in magic 0, timestamps are lost; control records are left out. Records below
    first_offset are left out of batches without codec; a compressed batch keeps them. Conversion
    ends before a zstd batch, which these formats do not support; if nothing was converted before
    it, KafkaError(UNSUPPORTED_COMPRESSION_TYPE) is raised. budget: once it is used up, conversion
    ends as soon as there is a message, and the next request gets the batches after it.
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
    """Append records, in offset order, as messages; with a codec, as one wrapper. Returns the bytes
    of the messages before compression.
    """
    append_time_flag = LOG_APPEND_TIME_FLAG if log_append_time and magic else 0
    if codec is Compression.NONE:
        begin = len(out)
        for record in records:
            write_message(
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
        write_message(
            inner, last_offset - base_offset, magic, append_time_flag, record.timestamp,
            record.key, record.value,
        )  # fmt: skip
    if base_offset is None:
        return 0
    packed = compress(codec, inner)
    if codec is Compression.LZ4 and magic == 0:
        packed = with_lz4_checksum(packed, 0)
    write_message(out, last_offset, magic, append_time_flag | codec, latest, None, packed)
    return len(inner)
