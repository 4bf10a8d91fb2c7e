"""Message sets: those of Apache Kafka's log files of every magic and codec, and built ones."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator

from kbroker.protocol.batches.any_magic import (
    iter_any_batches,
    iter_any_records,
)
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record

OLD_CODECS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]

BASE_MS = 1_700_000_000_000


def expected_records(magic: int) -> Iterator[Record]:
    for offset in range(10 if magic == 0 else 15):
        index = offset % 5
        timestamp = (
            -1 if magic == 0 else BASE_MS + offset * 1000 if offset < 10 else BASE_MS + 999_000
        )
        key = None if index == 1 else f"k{index}".encode()
        value = None if index == 3 else f"value value value {index}".encode()
        yield Record(offset, timestamp, key, value)


def all_records(data: bytes | bytearray) -> list[Record]:
    return [
        record
        for position, header in iter_any_batches(data)
        for record in iter_any_records(data[position : position + header.size_bytes], header)
    ]


def message_set(
    count: int, magic: int, codec: Compression = Compression.NONE, first: int = 0
) -> bytearray:
    out = bytearray()
    records = (Record(first + i, BASE_MS + i, b"k%d" % i, b"v%d" % i) for i in range(count))
    write_message_set(out, records, magic=magic, codec=codec)
    return out


def wrapper(inner: bytes, *, magic: int = 1, codec: int = 1, offset: int = 0) -> bytes:
    """A wrapper with any bytes in it, and a right CRC."""
    value = gzip.compress(inner)
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", BASE_MS) if magic else b"")
    body += struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
