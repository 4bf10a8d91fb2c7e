"""Records of the internal topics of coordinators, as values and as bytes.

A key is int16 record type and body, a value is int16 version and body; a null value deletes. The
record types of each topic are in their own modules (`group.records`, `transaction.records`,
`share_state.shard`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue

_INT16: Final = struct.Struct(">h")
_PREFIXES: Final = tuple(_INT16.pack(number) for number in range(64))
"""By record type, and by value version."""
_FRAME_BYTES: Final = 32
"""An upper bound of the bytes of a record besides its key and value: lengths, deltas and flags."""


class CoordinatorRecord:
    """One decoded record of an internal topic. value: None for a tombstone. version: that of the
    value.
    """

    __slots__ = ("key", "value", "version")

    def __init__(
        self, key: CoordinatorKey, value: CoordinatorValue | None, version: int = 0
    ) -> None:
        self.key = key
        self.value = value
        self.version = version

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CoordinatorRecord):
            return NotImplemented
        return self.key == other.key and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # mutable messages inside

    def __repr__(self) -> str:
        return f"CoordinatorRecord({self.key!r}, {self.value!r}, version={self.version})"


def encode_key(key: CoordinatorKey) -> bytes:
    """The key's bytes: int16 record type, then the body."""
    return _PREFIXES[key.API_KEY] + encode(key, 0)


def encode_value(value: CoordinatorValue | None, version: int) -> bytes | None:
    """The value's bytes: int16 version, then the body. A tombstone (None) stays None."""
    return None if value is None else _PREFIXES[version] + encode(value, version)


def batch_bytes(record: CoordinatorRecord) -> int:
    """An upper bound of the bytes that the record takes in a batch that is not compressed. Raises
    ValueError for a field that cannot be encoded.
    """
    value = encode_value(record.value, record.version)
    return _FRAME_BYTES + len(encode_key(record.key)) + (0 if value is None else len(value))


def encode_batch(
    records: Sequence[CoordinatorRecord],
    now_ms: int,
    compression: Compression = Compression.NONE,
    *,
    base_sequence: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytearray:
    """One v2 batch whose records all have the timestamp now_ms; transactional if producer_id is
    given.

    base_sequence: Kafka's group and share coordinators write 0, with or without a producer id; its
    transaction coordinator writes -1.
    """
    return build_batch(
        [
            (now_ms, encode_key(record.key), encode_value(record.value, record.version), ())
            for record in records
        ],
        compression=compression,
        base_sequence=base_sequence,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=producer_id != NO_PRODUCER_ID,
    )
