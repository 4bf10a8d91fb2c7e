from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.codecs.primitives import (
    read_unsigned_varint,
    skip_tagged_fields,
    unsigned_varint,
)
from kbroker.protocol.errors import BufferUnderflow, MalformedRequest

UINT32 = st.integers(0, 2**32 - 1)


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


@given(UINT32)
def test_unsigned_varints_round_trip(value: int) -> None:
    raw = unsigned_varint(value)
    assert read_unsigned_varint(b"\xff" + raw + b"\x01", 1) == (value, 1 + len(raw))
    for length in range(len(raw)):
        with pytest.raises(BufferUnderflow):
            read_unsigned_varint(raw[:length], 0)


def test_padded_varints_are_read_as_kafka_reads_them() -> None:
    assert read_unsigned_varint(bytes.fromhex("8100"), 0) == (1, 2)
    assert read_unsigned_varint(bytes.fromhex("8180808000"), 0) == (1, 5)


@pytest.mark.parametrize("raw", ["ffffffff10", "ffffffff7f", "808080808000", "ffffffffffffff"])
def test_varints_of_more_than_32_bits_are_malformed(raw: str) -> None:
    with pytest.raises(MalformedRequest):
        read_unsigned_varint(bytes.fromhex(raw), 0)


def test_tagged_fields_are_skipped() -> None:
    raw = bytes.fromhex("00 00" + "8001 03 aabbcc" + "7f")
    assert skip_tagged_fields(raw, 0, 2) == 8


@pytest.mark.parametrize("raw", ["", "00", "0002aa", "00ffffffff0f", "80"])
def test_tagged_fields_beyond_the_bytes(raw: str) -> None:
    with pytest.raises(BufferUnderflow):
        skip_tagged_fields(bytes.fromhex(raw), 0, 1)
