"""Message sets of magic 0 and 1: offsets, invalid lengths, decompressed sizes."""

from __future__ import annotations

import struct

import pytest

from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.legacy_records import (
    iter_messages,
    iter_unpacked,
    read_message,
    unpacked_set_size,
)
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.protocol.message_sets import BASE_MS, all_records, message_set, wrapper


def test_relative_offsets_count_back_from_the_wrappers() -> None:
    (message,) = iter_messages(wrapper(bytes(message_set(3, 1)), offset=12))
    assert [inner.offset for inner in iter_unpacked(message)] == [10, 11, 12]
    (message,) = iter_messages(wrapper(bytes(message_set(3, 1)), offset=0))  # old librdkafka
    assert [inner.offset for inner in iter_unpacked(message)] == [0, 1, 2]


def test_gaps_inside_a_wrapper_are_kept() -> None:
    records = [Record(offset, BASE_MS, b"", b"") for offset in (3, 7, 9)]
    for magic in (0, 1):
        out = bytearray()
        write_message_set(out, records, magic=magic, codec=Compression.GZIP)
        assert [record.offset for record in all_records(out)] == [3, 7, 9]


@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1, 1000])
@pytest.mark.parametrize("position", [8, 26, 32])
def test_lengths_that_lie(length: int, position: int) -> None:
    """Size of the message, of its key, of its value."""
    data = message_set(1, 1)
    struct.pack_into(">i", data, position, length)
    with pytest.raises(KafkaError) as caught:
        read_message(data)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_the_unpacked_size_of_a_set(codec: Compression, magic: int) -> None:
    plain, packed = bytearray(), bytearray()
    records = [Record(n, 1, b"key", bytes(100)) for n in range(20)]
    write_message_set(plain, records, magic=magic)
    write_message_set(packed, records, magic=magic, codec=codec)
    for sent in (plain, packed):
        assert unpacked_set_size(sent, limit=len(plain)) == len(plain)
        assert unpacked_set_size(sent, limit=len(plain) - 1) == len(plain)
        assert unpacked_set_size(sent, limit=100) == 101
    assert unpacked_set_size(packed[:-1], limit=1 << 20) == 0, "no message"
    assert unpacked_set_size(packed * 3, limit=1 << 20) == 3 * len(plain)
