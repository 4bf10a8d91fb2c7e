from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.codecs.primitives import (
    read_unsigned_varint,
    read_varint,
    read_varlong,
    skip_tagged_fields,
    unsigned_varint,
    unsigned_varint_size,
    varint,
    varint_size,
    zigzag,
)
from kbroker.protocol.errors import BufferUnderflow, MalformedRequest

UINT32 = st.integers(0, 2**32 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        pytest.param(0, "00", id="zero"),
        pytest.param(127, "7f", id="largest of one byte"),
        pytest.param(128, "8001", id="smallest of two bytes"),
        pytest.param(300, "ac02", id="300"),
        pytest.param(2**14 - 1, "ff7f", id="largest of two bytes"),
        pytest.param(2**14, "808001", id="smallest of three bytes"),
        pytest.param(2**21 - 1, "ffff7f", id="largest of three bytes"),
        pytest.param(2**21, "80808001", id="smallest of four bytes"),
        pytest.param(2**28 - 1, "ffffff7f", id="largest of four bytes"),
        pytest.param(2**32 - 1, "ffffffff0f", id="largest"),
    ],
)
def test_unsigned_varints(value: int, raw: str) -> None:
    assert unsigned_varint(value).hex() == raw
    assert read_unsigned_varint(bytes.fromhex(raw), 0) == (value, len(raw) // 2)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        pytest.param(0, "00", id="0"),
        pytest.param(-1, "01", id="-1"),
        pytest.param(1, "02", id="1"),
        pytest.param(-64, "7f", id="-64"),
        pytest.param(64, "8001", id="64"),
        pytest.param(2**31 - 1, "feffffff0f", id="largest int32"),
        pytest.param(-(2**31), "ffffffff0f", id="smallest int32"),
    ],
)
def test_signed_varints(value: int, raw: str) -> None:
    assert varint(value).hex() == raw
    assert read_varint(bytes.fromhex(raw), 0) == (value, len(raw) // 2)
    assert read_varlong(bytes.fromhex(raw), 0) == (value, len(raw) // 2)


def test_the_ends_of_varlongs() -> None:
    assert varint(2**63 - 1).hex() == "feffffffffffffffff01"
    assert varint(-(2**63)).hex() == "ffffffffffffffffff01"


@given(UINT32)
def test_unsigned_varints_round_trip(value: int) -> None:
    raw = unsigned_varint(value)
    assert unsigned_varint_size(value) == len(raw)
    assert read_unsigned_varint(b"\xff" + raw + b"\x01", 1) == (value, 1 + len(raw))
    for length in range(len(raw)):
        with pytest.raises(BufferUnderflow):
            read_unsigned_varint(raw[:length], 0)


@given(INT32)
def test_varints_round_trip(value: int) -> None:
    raw = varint(value)
    assert (varint_size(value), unsigned_varint(zigzag(value))) == (len(raw), raw)
    assert read_varint(memoryview(raw), 0) == (value, len(raw))


@given(INT64)
def test_varlongs_round_trip(value: int) -> None:
    raw = varint(value)
    assert read_varlong(raw, 0) == (value, len(raw))
    for length in range(len(raw)):
        with pytest.raises(BufferUnderflow):
            read_varlong(raw[:length], 0)


def test_padded_varints_are_read_as_kafka_reads_them() -> None:
    assert read_unsigned_varint(bytes.fromhex("8100"), 0) == (1, 2)
    assert read_unsigned_varint(bytes.fromhex("8180808000"), 0) == (1, 5)


@pytest.mark.parametrize("raw", ["ffffffff10", "ffffffff7f", "808080808000", "ffffffffffffff"])
def test_varints_of_more_than_32_bits_are_malformed(raw: str) -> None:
    with pytest.raises(MalformedRequest):
        read_unsigned_varint(bytes.fromhex(raw), 0)


@pytest.mark.parametrize("raw", ["ff" * 9 + "02", "80" * 10 + "00"])
def test_varlongs_of_more_than_64_bits_are_malformed(raw: str) -> None:
    with pytest.raises(MalformedRequest):
        read_varlong(bytes.fromhex(raw), 0)


def test_tagged_fields_are_skipped() -> None:
    raw = bytes.fromhex("00 00" + "8001 03 aabbcc" + "7f")
    assert skip_tagged_fields(raw, 0, 2) == 8


@pytest.mark.parametrize("raw", ["", "00", "0002aa", "00ffffffff0f", "80"])
def test_tagged_fields_beyond_the_bytes(raw: str) -> None:
    with pytest.raises(BufferUnderflow):
        skip_tagged_fields(bytes.fromhex(raw), 0, 1)
