"""Batches built: the bytes that Apache Kafka 4.3.1 wrote, every codec, invalid arguments."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.batches.batch_builder import build_batch, recompress
from kbroker.protocol.batches.batch_header import (
    BatchHeader,
    check_crc,
    read_batch_header,
)
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import Record, iter_records
from tests.protocol.stored_batches import GOLDEN, HEADERS, LOGS, RECORDS, stored

SAME_STREAM = {Compression.NONE, Compression.LZ4}
"""Codecs whose library gives Kafka's very bytes; gzip's header and zstd's frame header differ."""


def rebuilt(header: BatchHeader, records: list[Record]) -> bytearray:
    horizon = header.base_timestamp if header.has_delete_horizon else None
    return build_batch(
        records,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        compression=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon_ms=horizon,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp,
    )


@pytest.mark.parametrize("log", LOGS)
def test_built_again_from_its_records_a_batch_has_the_same_bytes(log: Path) -> None:
    for batch, header in stored(log):
        if header.is_log_append_time:
            continue  # the records' own timestamps are there, but they are not read
        records = list(iter_records(batch, header))
        again = rebuilt(header, records)
        if header.codec in SAME_STREAM and header.record_count:
            assert again == batch
        assert list(iter_records(again)) == records


def test_an_emptied_batch_keeps_what_compaction_keeps() -> None:
    log = GOLDEN / "data" / "compact-txn-0" / "00000000000000000148.log"
    batch, header = next(stored(log))
    assert header.record_count == 0
    assert header.last_offset_delta == 2
    assert list(iter_records(batch, header)) == []
    assert rebuilt(header, []) == batch


@pytest.mark.parametrize("codec", list(Compression))
def test_an_emptied_batch_has_no_stream_to_open(codec: Compression) -> None:
    batch = build_batch([], last_offset_delta=2, compression=codec)
    assert read_batch_header(batch).codec is Compression.NONE
    struct.pack_into(">h", batch, 21, codec)
    assert list(iter_records(batch)) == []


def test_batch_of_tuples() -> None:
    batch = build_batch(RECORDS, base_offset=7, partition_leader_epoch=3)
    header = read_batch_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 9, 10)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 2000)
    assert (header.record_count, header.partition_leader_epoch) == (3, 3)
    assert (header.last_sequence, header.has_producer_id) == (-1, False)
    assert [record.offset for record in iter_records(batch)] == [7, 8, 9]
    assert [record.timestamp for record in iter_records(batch)] == [1000, 900, 2000]
    assert next(iter(iter_records(batch))).headers == HEADERS


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec(codec: Compression) -> None:
    batch = build_batch(RECORDS * 20, compression=codec)
    assert check_crc(batch, 0, read_batch_header(batch))
    plain = build_batch(RECORDS * 20)
    assert list(iter_records(batch)) == list(iter_records(plain))
    for other in Compression:
        changed = recompress(batch, read_batch_header(batch), other)
        header = read_batch_header(changed)
        assert header.codec is other and check_crc(changed, 0, header)
        assert list(iter_records(changed)) == list(iter_records(plain))


@pytest.mark.parametrize(
    ("records", "options"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([Record(5, 0, None, None)], {"base_offset": 6}, id="below the base offset"),
        pytest.param([Record(5, 0, None, None)] * 2, {}, id="the same offset twice"),
        pytest.param([Record(5, 0, None, None)], {"last_offset_delta": 4}, id="delta too small"),
    ],
)
def test_batches_that_cannot_be_built(records: list[Record], options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        build_batch(records, **options)  # type: ignore[arg-type]  # one dict for all rows


maybe_bytes = st.none() | st.binary(max_size=40)

record_tuples = st.tuples(
    st.integers(-1, 1 << 50),
    maybe_bytes,
    maybe_bytes,
    st.lists(st.tuples(st.binary(max_size=10), maybe_bytes), max_size=3),
)


@given(
    st.lists(record_tuples, min_size=1, max_size=20),
    st.sampled_from(list(Compression)),
    st.integers(0, 1 << 60),
)
def test_decoding_what_was_built(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
    codec: Compression,
    base_offset: int,
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    assert check_crc(batch, 0, read_batch_header(batch))
    decoded = list(iter_records(memoryview(batch)))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in decoded] == records
    assert [r.offset for r in decoded] == [base_offset + i for i in range(len(records))]
