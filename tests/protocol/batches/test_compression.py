"""Codecs: round trips, Java's frames, corrupt input, and input that decompresses to far too
much.
"""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.batches.compression import (
    XERIAL_HEADER,
    Compression,
    compress,
    decompress,
    unpacked_size,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

CODECS = [pytest.param(codec, id=codec.name.lower()) for codec in Compression if codec]
LIMIT = 1 << 20

PLAIN = b"kafka " * 5000 + bytes(range(256))


def refused(codec: Compression, data: bytes, *, max_bytes: int = LIMIT) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, max_bytes=max_bytes)
    return caught.value.code


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 61, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_round_trip(codec: Compression, size: int) -> None:
    data = (PLAIN * 10)[:size]
    packed = compress(codec, data)
    for buffer in (packed, bytearray(packed), memoryview(b"x" + packed)[1:]):
        assert bytes(decompress(codec, buffer, max_bytes=LIMIT)) == data


@given(st.sampled_from([codec for codec in Compression if codec]), st.binary(max_size=2000))
def test_round_trip_of_anything(codec: Compression, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), max_bytes=2000) == data


@given(st.sampled_from([codec for codec in Compression if codec]), st.binary(max_size=200))
def test_garbage_is_refused_or_is_a_stream(codec: Compression, data: bytes) -> None:
    try:
        decompress(codec, data, max_bytes=1000)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def test_none_is_the_data_itself() -> None:
    view = memoryview(b"as it is")
    assert decompress(Compression.NONE, view, max_bytes=8) is view
    assert decompress(Compression.NONE, view, max_bytes=7) is view, "nothing is unpacked"


@pytest.mark.parametrize("codec", CODECS)
def test_the_bound_is_exact(codec: Compression) -> None:
    packed = compress(codec, PLAIN)
    assert decompress(codec, packed, max_bytes=len(PLAIN)) == PLAIN
    code = refused(codec, packed, max_bytes=len(PLAIN) - 1)
    assert code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncated_stream_is_corrupt(codec: Compression) -> None:
    packed = compress(codec, PLAIN[:3000])
    # Java's snappy frame may end between blocks, so its header alone is a stream of nothing
    whole = {len(XERIAL_HEADER)} if codec is Compression.SNAPPY else set()
    for size in range(len(packed)):
        if size not in whole:
            assert refused(codec, packed[:size]) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS)
def test_trailing_bytes_are_corrupt(codec: Compression) -> None:
    assert refused(codec, compress(codec, b"data") + b"zz") is ErrorCode.CORRUPT_MESSAGE


def _raw_deflate_bomb() -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = [compressor.compress(bytes(1 << 20)) for _ in range(16)]
    return b"".join(packed) + compressor.flush()


def _zstd_run_length_bomb() -> bytes:
    """A frame of 2,500 blocks of four bytes, each 128 KB long when unpacked: 10 KB for 320 MB."""
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    last = (131072 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"a"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * 2500 + last


BOMBS = [
    pytest.param(Compression.GZIP, _raw_deflate_bomb(), id="gzip of zeros"),
    pytest.param(Compression.GZIP, gzip.compress(bytes(LIMIT)) * 60, id="gzip, many members"),
    pytest.param(
        Compression.LZ4,
        lz4.frame.compress(bytes(100 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB),
        id="lz4 of zeros",
    ),
    pytest.param(
        Compression.ZSTD, zstandard.ZstdCompressor().compress(bytes(100 << 20)), id="zstd of zeros"
    ),
    pytest.param(Compression.ZSTD, _zstd_run_length_bomb(), id="zstd, run lengths"),
    pytest.param(Compression.SNAPPY, snappy.compress(bytes(30 << 20)), id="raw snappy of zeros"),
    pytest.param(
        Compression.SNAPPY, compress(Compression.SNAPPY, bytes(30 << 20)), id="framed snappy"
    ),
]


@pytest.mark.parametrize(("codec", "bomb"), BOMBS)
def test_a_bomb_is_refused_without_unpacking_it(codec: Compression, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        assert refused(codec, bomb) is ErrorCode.MESSAGE_TOO_LARGE
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * LIMIT + len(bomb)


LYING_LENGTHS = [
    pytest.param(b"\xff\xff\xff\xff\x0f", id="4 GB in five bytes"),
    pytest.param(b"\xff\xff\xff\xff\xff\xff", id="length without an end"),
    pytest.param(b"", id="nothing"),
    pytest.param(b"\x80", id="half a length"),
    pytest.param(b"\x80\x80\x40" + b"a" * 100, id="1 MB in a hundred bytes"),
    pytest.param(XERIAL_HEADER + struct.pack(">i", -1), id="negative block"),
    pytest.param(XERIAL_HEADER + struct.pack(">i", 0), id="empty block"),
    pytest.param(XERIAL_HEADER + struct.pack(">i", 0x7FFFFFFF) + b"abc", id="block of 2 GB"),
    pytest.param(XERIAL_HEADER[:12], id="half a header"),
    pytest.param(XERIAL_HEADER + b"\x00\x00", id="half a block length"),
]


@pytest.mark.parametrize("data", LYING_LENGTHS)
def test_snappy_lengths_that_lie(data: bytes) -> None:
    assert refused(Compression.SNAPPY, data) is ErrorCode.CORRUPT_MESSAGE


def test_snappy_raw_and_joined_frames_are_read() -> None:
    assert decompress(Compression.SNAPPY, snappy.compress(PLAIN), max_bytes=LIMIT) == PLAIN
    joined = compress(Compression.SNAPPY, b"one ") + compress(Compression.SNAPPY, b"two")
    assert decompress(Compression.SNAPPY, joined, max_bytes=LIMIT) == b"one two"


def test_gzip_members_are_joined_but_not_for_ever() -> None:
    packed = gzip.compress(b"a")
    assert decompress(Compression.GZIP, packed * 3, max_bytes=LIMIT) == b"aaa"
    assert refused(Compression.GZIP, packed * 65) is ErrorCode.CORRUPT_MESSAGE


def test_zstd_frames_are_joined() -> None:
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)
    assert decompress(Compression.ZSTD, packed * 2, max_bytes=LIMIT) == PLAIN * 2


def test_frames_are_as_the_java_client_writes_them() -> None:
    packed = compress(Compression.SNAPPY, b"x" * 40_000)
    assert packed[:16].hex() == "82534e415050590000000001" + "00000001"
    first = struct.unpack_from(">i", packed, 16)[0]
    assert len(snappy.uncompress(packed[20 : 20 + first])) == 32 * 1024
    assert compress(Compression.LZ4, b"x" * 1000)[:7].hex() == "04224d18604082"


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        pytest.param(Compression.GZIP, (-1, 1, 9), id="gzip"),
        pytest.param(Compression.LZ4, (1, 9, 17), id="lz4"),
        pytest.param(Compression.ZSTD, (-131072, 3, 22), id="zstd"),
    ],
)
def test_every_level_kafka_allows(codec: Compression, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, PLAIN, level), max_bytes=LIMIT) == PLAIN


@pytest.mark.parametrize(("codec", "bomb"), BOMBS)
def test_the_size_of_a_bomb_costs_no_more_than_the_limit(codec: Compression, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        assert unpacked_size(codec, bomb, limit=LIMIT) == LIMIT + 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * LIMIT


@pytest.mark.parametrize("codec", CODECS)
def test_the_unpacked_size(codec: Compression) -> None:
    packed = compress(codec, PLAIN)
    assert unpacked_size(codec, packed, limit=len(PLAIN)) == len(PLAIN)
    assert unpacked_size(codec, packed, limit=len(PLAIN) - 1) == len(PLAIN)
    assert unpacked_size(codec, packed[:-1], limit=len(PLAIN)) == 0, "no stream"


def test_a_declared_size_decides_nothing() -> None:
    """zstd frames say what they unpack to, and may lie either way."""
    honest = zstandard.ZstdCompressor(write_content_size=True).compress(PLAIN)
    assert zstandard.get_frame_parameters(honest).content_size == len(PLAIN)
    position = honest.index(struct.pack("<H", len(PLAIN) - 256))
    for claimed in (256, 65_535 + 256):
        lie = bytearray(honest)
        struct.pack_into("<H", lie, position, claimed - 256)
        assert zstandard.get_frame_parameters(bytes(lie)).content_size == claimed
        assert unpacked_size(Compression.ZSTD, lie, limit=LIMIT) in (0, len(PLAIN))
        assert refused(Compression.ZSTD, bytes(lie), max_bytes=100) in (
            ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE,
        )  # fmt: skip
