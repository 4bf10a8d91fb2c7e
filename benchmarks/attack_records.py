"""Record payloads that attack a broker: compressed bombs of each codec, batches whose header lies,
very many batches, very many records, and message sets of the formats before.

Every CRC is right unless the name says otherwise: a payload must get past the first check.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from benchmarks.attack_values import RECORD_TIMESTAMP
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    CONTROL_FLAG,
    HEADER,
    LENGTH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    seal,
)
from kbroker.protocol.batches.compression import Compression, compress

LONG_MAX: Final = 2**63 - 1
LONG_MIN: Final = -(2**63)
INT_MAX: Final = 2**31 - 1

RECORD_BATCHES_SINCE: Final = 3
"""Of Produce: earlier versions carry message sets."""

_COMPRESSED: Final = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
_SMALLEST_RECORD: Final = b"\x0c\0\0\0\1\1\0"
"""Null key, null value, no headers; 7 bytes."""


def batch_of(
    body: bytes, count: int, *, codec: Compression = Compression.NONE, **fields: int
) -> bytes:
    """A batch with this records section and any header fields, by name, and with the right CRC."""
    header = {
        "base_offset": 0,
        "batch_length": len(body) + BATCH_OVERHEAD - LENGTH_OVERHEAD,
        "partition_leader_epoch": -1,
        "magic": 2,
        "crc": 0,
        "attributes": int(codec),
        "last_offset_delta": max(0, count - 1),
        "base_timestamp": RECORD_TIMESTAMP,
        "max_timestamp": RECORD_TIMESTAMP,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
        **fields,
    }
    batch = bytearray(HEADER.pack(*header.values()))
    batch += body
    seal(batch, 0, len(batch))
    return bytes(batch)


@lru_cache
def packed_zeros(codec: Compression, size: int) -> bytes:
    """So many zero bytes, compressed."""
    return compress(codec, bytes(size))


@lru_cache
def packed_records(codec: Compression, count: int) -> bytes:
    """So many of the smallest record, compressed."""
    return compress(codec, _SMALLEST_RECORD * count)


@lru_cache
def packed_value(codec: Compression, size: int) -> bytes:
    """One honest record whose value is so many zeros, compressed."""
    body = build_batch([(RECORD_TIMESTAMP, b"key", bytes(size), [])])[BATCH_OVERHEAD:]
    return compress(codec, body)


def payloads(version: int, size: int) -> Mapping[str, bytes]:
    """By name, what a Produce request of that version may carry. size: of most, in bytes."""
    return _batches(size) if version >= RECORD_BATCHES_SINCE else _message_sets(size)


@lru_cache
def _batches(size: int) -> Mapping[str, bytes]:
    bomb = 20 * size
    found = {
        "smallest records": batch_of(_SMALLEST_RECORD * (size // 8), size // 8),
        "records with keys": bytes(_keyed(size // 32)),
        "empty batches": batch_of(b"", 0) * (size // BATCH_OVERHEAD),
        "batches of one record": batch_of(_SMALLEST_RECORD, 1) * (size // 68),
        "a record of empty headers": _many_headers(size // 2),
        "zeros": bytes(size),
        "a record that claims 2^31-1 headers": _record(b"\0\0\0\1\1\xfe\xff\xff\xff\x0f"),
        "a key that claims 2^31-1 bytes": _record(b"\0\0\0\xfe\xff\xff\xff\x0f\1\0"),
        "a key of negative length": _record(b"\0\0\0\xff\xff\xff\xff\x0f\1\0"),
        "a timestamp delta of Long.MAX": _record(
            b"\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\1\1\0"
        ),
    }
    for codec in _COMPRESSED:
        name = codec.name.lower()
        found |= {
            f"{name}: zeros": batch_of(packed_zeros(codec, bomb), 1, codec=codec),
            f"{name}: one record": batch_of(packed_value(codec, bomb), 1, codec=codec),
            f"{name}: records": batch_of(
                packed_records(codec, bomb // 7), bomb // 7, codec=codec
            ),
            f"{name}: records, claims one": batch_of(
                packed_records(codec, bomb // 7), 1, codec=codec
            ),
            f"{name}: noise": batch_of(b"\xa5" * size, 1, codec=codec),
            f"{name}: keyed": bytes(_keyed(size // 8, codec)),
            f"{name}: the largest that is unpacked": batch_of(
                packed_value(codec, bomb - 4096), 1, codec=codec, max_timestamp=LONG_MAX
            ),
        }  # fmt: skip
        small = batch_of(packed_value(codec, size), 1, codec=codec)
        found[f"{name}: as many as fit"] = small * max(1, min(size // len(small), 200))
        large = found[f"{name}: one record"]
        found[f"{name}: many bombs"] = large * max(1, min(size // len(large), 50))
    zstd = packed_value(Compression.ZSTD, 128 * bomb // 20)
    found["zstd: 128 times"] = batch_of(zstd, 1, codec=Compression.ZSTD)
    lies: dict[str, dict[str, int]] = {
        "claims 2^31-1 records": {"record_count": INT_MAX},
        "claims 2^31-1 records and offsets": {
            "record_count": INT_MAX, "last_offset_delta": INT_MAX - 1,
        },
        "claims -1 records": {"record_count": -1},
        "last offset delta 2^31-1": {"last_offset_delta": INT_MAX},
        "last offset delta -1": {"last_offset_delta": -1},
        "times of Long.MAX": {"base_timestamp": LONG_MAX, "max_timestamp": LONG_MAX},
        "times of Long.MIN": {"base_timestamp": LONG_MIN, "max_timestamp": LONG_MIN},
        "max timestamp Long.MAX": {"max_timestamp": LONG_MAX},
        "batch length 2^31-1": {"batch_length": INT_MAX},
        "batch length 0": {"batch_length": 0},
        "batch length -1": {"batch_length": -1},
        "base offset Long.MAX": {"base_offset": LONG_MAX},
        "magic 127": {"magic": 127},
        "unknown attributes": {"attributes": 0x7FF8},
        "codec 7": {"attributes": 7},
        "control batch": {"attributes": CONTROL_FLAG},
        "transactional": {"attributes": TRANSACTIONAL_FLAG},
        "producer Long.MAX": {
            "producer_id": LONG_MAX, "producer_epoch": 32767, "base_sequence": INT_MAX,
        },
        "producer 0": {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0},
    }  # fmt: skip
    for name, fields in lies.items():
        found[name] = batch_of(_SMALLEST_RECORD, 1, **fields)
    found["2^31-1 records, as many as fit"] = batch_of(
        _SMALLEST_RECORD, 1, record_count=INT_MAX, last_offset_delta=INT_MAX - 1
    ) * (size // 68)
    found["idempotent, as many producers as fit"] = b"".join(
        batch_of(_SMALLEST_RECORD, 1, producer_id=n, producer_epoch=0, base_sequence=0)
        for n in range(size // 68)
    )
    return found


def _record(body: bytes) -> bytes:
    return batch_of(bytes((len(body) << 1,)) + body, 1)


def _keyed(count: int, codec: Compression = Compression.NONE) -> bytearray:
    """Honest records with distinct keys."""
    records: list[Any] = [(RECORD_TIMESTAMP, b"key-%07d" % n, b"value", []) for n in range(count)]
    return build_batch(records, compression=codec)


def _many_headers(count: int) -> bytes:
    headers: list[Any] = [(b"", None)] * max(1, count)
    return bytes(build_batch([(RECORD_TIMESTAMP, b"key", b"value", headers)]))


# -- magic 0 and 1 --------------------------------------------------------------------------------


def message(magic: int, value: bytes | None, *, codec: int = 0, **lies: int) -> bytes:
    """One message with a null key."""
    body = struct.pack(">bb", magic, lies.get("attributes", codec))
    if magic:
        body += struct.pack(">q", lies.get("timestamp", RECORD_TIMESTAMP))
    length = -1 if value is None else len(value)
    body += struct.pack(">ii", lies.get("key_size", -1), lies.get("value_size", length))
    body += value or b""
    size = lies.get("size", len(body) + 4)
    return struct.pack(">qiI", lies.get("offset", 0), size, zlib.crc32(body)) + body


@lru_cache
def _message_sets(size: int) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for magic in (0, 1):
        small = message(magic, None)
        name = f"magic {magic}"
        found |= {
            f"{name}: smallest messages": small * (size // len(small)),
            f"{name}: one message": message(magic, bytes(size)),
            f"{name}: size 2^31-1": message(magic, b"v", size=INT_MAX),
            f"{name}: size -1": message(magic, b"v", size=-1),
            f"{name}: key size 2^31-1": message(magic, b"v", key_size=INT_MAX),
            f"{name}: value size -2": message(magic, b"v", value_size=-2),
            f"{name}: offset Long.MAX": message(magic, b"v", offset=LONG_MAX),
            f"{name}: timestamp Long.MAX": message(magic, b"v", timestamp=LONG_MAX),
            f"{name}: codec 7": message(magic, b"v", codec=7),
        }
        for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4):
            packed = compress(codec, small * (20 * size // len(small)))
            large = compress(codec, message(magic, bytes(20 * size)))
            told = f"{name}, {codec.name.lower()}"
            wrapper = message(magic, large, codec=codec)
            found |= {
                f"{told}: messages": message(magic, packed, codec=codec),
                f"{told}: one message": wrapper,
                f"{told}: zeros": message(magic, packed_zeros(codec, 20 * size), codec=codec),
                f"{told}: wrapper in a wrapper": message(
                    magic, compress(codec, wrapper), codec=codec
                ),
            }
            few = message(magic, compress(codec, message(magic, bytes(size))), codec=codec)
            found[f"{told}: as many as fit"] = few * max(1, min(size // len(few), 200))
    return found
