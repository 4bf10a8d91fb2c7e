"""Builds record batches of magic 2: from records, in another codec, with other records.

The header's layout is in batch_header.py, that of a record in records.py, the content of control
records in control_records.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    seal,
    set_length_and_attributes,
)
from kbroker.protocol.batches.compression import Buffer, Compression, compress, decompress
from kbroker.protocol.batches.records import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Header,
    Record,
    check_record_count,
    encode_record,
)

RecordInput = Record | tuple[int | None, bytes | None, bytes | None, Sequence[Header]]
"""A Record with its absolute offset, or (timestamp_ms, key, value, headers)."""


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
    """A batch of records, with its CRC. records: iterated once; no record is kept.

    Tuples get the offsets from base_offset on; a Record keeps its own, which is not below
    base_offset. last_offset_delta: by default the last record's; compaction passes a larger one
    than that of the last record, also without records. Raises ValueError for no records without
    last_offset_delta, and for offsets that do not increase.
    """
    body, count, last_delta, base_timestamp, latest = _encode_records(
        records, base_offset, delete_horizon_ms
    )
    if not count:
        compression = Compression.NONE  # as Kafka's cleaner writes an empty batch
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
    seal(batch, 0, len(batch))
    return batch


def _encode_records(
    records: Iterable[RecordInput], base_offset: int, delete_horizon_ms: int | None
) -> tuple[bytearray, int, int, int, int]:
    """(bytes, record count, last offset delta, base timestamp, max timestamp); the last three are
    -1 if there is no record.
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


def recompress(
    batch: Buffer,
    header: BatchHeader,
    codec: Compression,
    *,
    level: int | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytearray:
    """The same batch in another codec; its records are not decoded.

    batch: begins at the batch and holds all of it. Raises as `iter_records` does if decompression
    fails or the record count is too large for the decompressed bytes.
    """
    body = memoryview(batch)[BATCH_OVERHEAD : header.size_bytes]
    plain = decompress(header.codec, body, max_bytes=max_decompressed_bytes)
    check_record_count(max(header.record_count, 0), len(plain))
    changed = bytearray(memoryview(batch)[:BATCH_OVERHEAD])
    changed += compress(codec, plain, level)
    set_length_and_attributes(changed, header.attributes & ~CODEC_MASK | codec)
    seal(changed, 0, len(changed))
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
    """The batch of header with other records: offsets, producer and codec are kept.

    body: the records, not compressed; their deltas are relative to the header's base offset and to
    base_timestamp. delete_horizon: whether base_timestamp is a delete horizon.
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
    seal(batch, 0, len(batch))
    return batch
