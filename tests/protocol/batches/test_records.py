"""Records of batches that Apache Kafka 4.3.1 wrote, and bytes that are no records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.batches.batch_header import (
    check_crc,
    read_batch_header,
)
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Compression, compress
from kbroker.protocol.batches.control_records import (
    ControlType,
    control_type,
    marker_coordinator_epoch,
)
from kbroker.protocol.batches.records import (
    append_varint,
    encode_record,
    iter_records,
    read_varint,
    read_varlong,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.protocol.stored_batches import LOGS, dumped, stored


@pytest.mark.parametrize("log", LOGS)
def test_records_are_what_kafka_prints(log: Path) -> None:
    for (batch, header), (_, lines) in zip(stored(log), dumped(log), strict=True):
        records = list(iter_records(batch, header))
        assert len(records) == header.record_count == len(lines)
        for record, line in zip(records, lines, strict=True):
            offset, timestamp, key_size, value_size, sequence, header_keys, rest = line.groups()
            assert record.offset == int(offset)
            assert record.timestamp == int(timestamp)
            assert (-1 if record.key is None else len(record.key)) == int(key_size)
            assert (-1 if record.value is None else len(record.value)) == int(value_size)
            assert ",".join(name.decode() for name, _ in record.headers) == header_keys
            if header.is_control:
                kind = control_type(record)
                epoch = marker_coordinator_epoch(record)
                marker = {ControlType.ABORT: "ABORT", ControlType.COMMIT: "COMMIT"}[kind]
                assert f"endTxnMarker: {marker} coordinatorEpoch: {epoch}" in rest
                continue
            if header.base_sequence >= 0:
                assert (header.base_sequence + record.offset - header.base_offset) == int(sequence)
            expected = f" key: {record.key.decode()}" if record.key is not None else ""
            if record.value is not None:
                expected += f" payload: {record.value.decode()}"
            assert rest == expected


def sealed(body: bytes, *, count: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch with a right CRC round any body."""
    head = struct.pack(">qiib", 0, 49 + len(body), 0, 2)
    rest = struct.pack(">hiqqqhii", codec, max(count - 1, 0), 0, 0, -1, -1, -1, count) + body
    return head + struct.pack(">I", crc32c(rest)) + rest


def varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


def one_record(content: bytes) -> bytes:
    return sealed(varint(len(content)) + content, count=1)


GOOD = bytearray()
encode_record(GOOD, timestamp_delta=0, offset_delta=0, key=b"k", value=b"v", headers=[(b"h", b"x")])

NO_RECORDS = [
    pytest.param(sealed(b"", count=1), id="a record that is not there"),
    pytest.param(sealed(bytes(GOOD), count=2), id="more records than bytes"),
    pytest.param(sealed(bytes(GOOD), count=0x7FFFFFFF), id="2 billion records"),
    pytest.param(sealed(bytes(GOOD), count=-1), id="negative count"),
    pytest.param(sealed(bytes(GOOD) + b"z", count=1), id="bytes after the last record"),
    pytest.param(sealed(bytes(GOOD), count=0), id="records beyond the count"),
    pytest.param(sealed(varint(-1) + bytes(10), count=1), id="negative record length"),
    pytest.param(sealed(varint(0) + bytes(10), count=1), id="record of no bytes"),
    pytest.param(sealed(varint(1 << 30) + bytes(10), count=1), id="record of 1 GB"),
    pytest.param(sealed(b"\x80" * 5 + bytes(10), count=1), id="length of six bytes"),
    pytest.param(one_record(b"\0" + b"\x80" * 10 + bytes(9)), id="timestamp of eleven bytes"),
    pytest.param(one_record(b"\0\0" + b"\x80" * 5 + bytes(9)), id="offset delta of six bytes"),
    pytest.param(one_record(b"\0\0\0" + varint(1 << 30) + bytes(9)), id="key of 1 GB"),
    pytest.param(one_record(b"\0\0\0\1" + varint(100) + bytes(9)), id="value beyond the record"),
    pytest.param(one_record(b"\0\0\0\1\1" + varint(-1) + bytes(9)), id="negative header count"),
    pytest.param(one_record(b"\0\0\0\1\1" + varint(1 << 30) + bytes(9)), id="a billion headers"),
    pytest.param(one_record(b"\0\0\0\1\1\2" + varint(-1) + bytes(9)), id="null header key"),
    pytest.param(one_record(b"\0\0\0\1\1\2" + varint(99) + bytes(9)), id="header key too long"),
    pytest.param(one_record(b"\0\0\0\1\1\2\0" + varint(99) + bytes(9)), id="header value too long"),
    pytest.param(one_record(b"\0\0\0\1\1\0z"), id="bytes after the headers"),
]


@pytest.mark.parametrize("batch", NO_RECORDS)
def test_bytes_that_are_no_records(batch: bytes) -> None:
    header = read_batch_header(batch)
    assert check_crc(batch, 0, header)
    with pytest.raises(KafkaError) as caught:
        list(iter_records(batch))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_every_truncated_record_is_refused() -> None:
    content = bytes(GOOD[1:])
    for size in range(len(content)):
        with pytest.raises(KafkaError):
            list(iter_records(one_record(content[:size])))


def test_a_bomb_in_a_batch_is_refused() -> None:
    bomb = sealed(compress(Compression.ZSTD, bytes(64 << 20)), count=1, codec=Compression.ZSTD)
    assert len(bomb) < 10_000
    with pytest.raises(KafkaError) as caught:
        iter_records(bomb, max_decompressed_bytes=1 << 20)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@given(st.binary(max_size=120), st.integers(-2, 10))
def test_any_body_gives_records_or_a_kafka_error(body: bytes, count: int) -> None:
    try:
        list(iter_records(sealed(body, count=count)))
    except KafkaError as error:
        assert error.code is ErrorCode.INVALID_RECORD


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varlongs(value: int) -> None:
    data = varint(value)
    assert read_varlong(data, 0) == (value, len(data))
    if -(1 << 31) <= value < 1 << 31:
        assert read_varint(data, 0) == (value, len(data))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (0x7FFFFFFF, "feffffff0f"),
        (-0x80000000, "ffffffff0f"),
    ],
)
def test_varint_bytes(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)
    assert read_varlong(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


def test_the_ends_of_varlongs() -> None:
    assert varint(2**63 - 1).hex() == "feffffffffffffffff01"
    assert varint(-(2**63)).hex() == "ffffffffffffffffff01"


@pytest.mark.parametrize(("read", "length"), [(read_varint, 5), (read_varlong, 10)])
def test_varints_of_more_bytes_are_invalid(
    read: Callable[[bytes, int], tuple[int, int]], length: int
) -> None:
    with pytest.raises(KafkaError) as caught:
        read(b"\x80" * length + b"\0", 0)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    for shorter in range(length):
        with pytest.raises(IndexError):
            read(b"\x80" * shorter, 0)
