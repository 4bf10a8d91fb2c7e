"""The codecs of record batches: gzip, snappy, lz4, zstd, with a limit on the decompressed size.

A codec's library is imported on first use. Nothing is allocated from a length that is only declared
in the data: every decompressor runs in steps and stops at `max_bytes` (a batch of 10 KB can
decompress to gigabytes). Sources: KIP-110 (zstd), KIP-390 (levels), snappy-java's stream framing
("xerial"), the lz4 frame format.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from io import BytesIO
from typing import Final

from kbroker.protocol.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LZ4_KAFKA_DEFAULT_LEVEL: Final = 9
_GZIP_MAX_MEMBERS: Final = 64
"""The maximum number of members of a gzip stream: each costs a copy of the bytes after it. Clients
send one.
"""
_ZSTD_MAX_WINDOW_BYTES: Final = 1 << 27
_FIRST_STEP_BYTES: Final = 64 * 1024
_MAX_STEP_BYTES: Final = 1024 * 1024
_INT32: Final = struct.Struct(">i")


class Compression(IntEnum):
    """The codec in bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LARGEST_RATIO: Final[Mapping[Compression, int]] = {
    Compression.NONE: 1,
    Compression.GZIP: 1032,
    Compression.SNAPPY: 22,
    Compression.LZ4: 255,
    Compression.ZSTD: 32768,
}
"""The maximum compression ratio of each codec. gzip: a match of 258 bytes in two bits; snappy: a
copy of 64 bytes in three bytes; lz4: each further byte of a match length stands for 255; zstd: a
run-length block of 4 bytes stands for 128 KiB.
"""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress data as one stream, framed as Java's client does. level: None is the default."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            return compressor.compress(data) + compressor.flush()
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            return _compress_lz4(data, level)
        case Compression.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(codec: Compression, data: Buffer, *, max_bytes: int) -> Buffer:
    """Decompress one stream; for NONE returns the data itself, of any size.

    Raises KafkaError(CORRUPT_MESSAGE) if data is not a complete stream of that codec, and
    KafkaError(MESSAGE_TOO_LARGE) if it decompresses to more than max_bytes; at most about 9/8 of
    max_bytes and a step are allocated.
    """
    if codec is Compression.NONE:
        return data
    return _DECOMPRESSORS[codec](memoryview(data).cast("B"), max_bytes)


def unpacked_size(codec: Compression, data: Buffer, *, limit: int) -> int:
    """The decompressed size of one stream, determined by decompressing it; limit + 1 if it exceeds
    limit. Used to decide which thread decompresses the data: the work is bounded by limit, not by
    data or by its declared size. 0 for data that is not a complete stream.
    """
    try:
        return len(decompress(codec, data, max_bytes=limit))
    except KafkaError as error:
        return limit + 1 if error.code is ErrorCode.MESSAGE_TOO_LARGE else 0


def _corrupt(codec: Compression, why: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"corrupt {codec.name.lower()} data: {why}")


def _too_large(codec: Compression, max_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{codec.name.lower()} data unpacks to more than {max_bytes} bytes",
    )


class _Output:
    """The decompressed bytes so far, and the size of the next step: doubling up to
    `_MAX_STEP_BYTES`, at most one byte past the limit. The buffer grows in place, so that no byte
    is held twice.
    """

    __slots__ = ("_buffer", "codec", "max_bytes", "size_bytes", "step_bytes")

    def __init__(self, codec: Compression, max_bytes: int, input_bytes: int) -> None:
        self.codec = codec
        self.max_bytes = max_bytes
        self._buffer: BytesIO | bytes = b""
        self.size_bytes = 0
        first = min(max(_FIRST_STEP_BYTES, 4 * input_bytes), _MAX_STEP_BYTES)
        self.step_bytes = min(first, max_bytes + 1)

    def add(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        if self.size_bytes > self.max_bytes:
            raise _too_large(self.codec, self.max_bytes)
        buffer = self._buffer
        if isinstance(buffer, BytesIO):
            buffer.write(piece)
        elif not buffer:
            self._buffer = piece  # the only piece, as nearly always
        else:
            self._buffer = BytesIO()
            self._buffer.write(buffer)
            self._buffer.write(piece)
        step = min(2 * self.step_bytes, _MAX_STEP_BYTES)
        self.step_bytes = min(step, self.max_bytes - self.size_bytes + 1)

    def join(self) -> bytes:
        buffer = self._buffer
        return buffer.getvalue() if isinstance(buffer, BytesIO) else buffer


def _decompress_gzip(data: memoryview, max_bytes: int) -> bytes:
    output = _Output(Compression.GZIP, max_bytes, len(data))
    rest: bytes | memoryview = data
    for _ in range(_GZIP_MAX_MEMBERS):  # RFC 1952 lets members follow each other
        member = zlib.decompressobj(31)
        while not member.eof:
            try:
                piece = member.decompress(rest, output.step_bytes)
            except zlib.error as error:
                raise _corrupt(Compression.GZIP, error) from error
            if not piece and not member.eof:
                raise _corrupt(Compression.GZIP, "it ends too early")
            output.add(piece)
            rest = member.unconsumed_tail
        rest = member.unused_data
        if not rest:
            return output.join()
    raise _corrupt(Compression.GZIP, f"more than {_GZIP_MAX_MEMBERS} members")


def _compress_xerial(data: Buffer) -> bytes:
    import snappy

    view = memoryview(data)
    pieces = [XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES])
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytes:
    """Java's framed blocks, or one raw block as librdkafka sends it."""
    if bytes(data[:8]) != XERIAL_MAGIC:
        return _snappy_block(data, max_bytes, max_bytes)
    output = BytesIO()
    size_bytes = 0
    position = 0
    end = len(data)
    while position < end:
        if bytes(data[position : position + 8]) == XERIAL_MAGIC:  # streams may be concatenated
            position += len(XERIAL_HEADER)
            if position > end:
                raise _corrupt(Compression.SNAPPY, "the frame header is cut short")
            continue
        if end - position < 4:
            raise _corrupt(Compression.SNAPPY, "a block length is cut short")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 < length <= end - position:
            raise _corrupt(Compression.SNAPPY, f"a block of {length} bytes, {end - position} left")
        piece = _snappy_block(data[position : position + length], max_bytes - size_bytes, max_bytes)
        position += length
        size_bytes += len(piece)
        output.write(piece)
    return output.getvalue()


def _snappy_block(block: memoryview, left_bytes: int, max_bytes: int) -> bytes:
    """One raw snappy block. Its declared size is checked before the library allocates from it."""
    import snappy

    declared = shift = 0
    for index in range(min(5, len(block))):
        byte = block[index]
        declared |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _corrupt(Compression.SNAPPY, "the length is no varint")
    if declared > LARGEST_RATIO[Compression.SNAPPY] * len(block):
        raise _corrupt(Compression.SNAPPY, f"{len(block)} bytes claim to be {declared}")
    if declared > left_bytes:
        raise _too_large(Compression.SNAPPY, max_bytes)
    try:
        return bytes(snappy.uncompress(block))
    except snappy.UncompressError as error:
        raise _corrupt(Compression.SNAPPY, error.__cause__ or error) from error


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Header bytes 60 40 as Java writes: independent blocks of 64 KB, no size, no checksum."""
    import lz4.frame

    return bytes(
        lz4.frame.compress(
            data,
            compression_level=0 if level is None or level == _LZ4_KAFKA_DEFAULT_LEVEL else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            store_size=False,
        )
    )


def _decompress_lz4(data: memoryview, max_bytes: int) -> bytes:
    import lz4.frame

    output = _Output(Compression.LZ4, max_bytes, len(data))
    decompressor = lz4.frame.LZ4FrameDecompressor()
    rest: bytes | memoryview = data
    while not decompressor.eof:
        try:
            piece = decompressor.decompress(rest, max_length=output.step_bytes)
        except RuntimeError as error:  # raised by the library for any invalid data
            raise _corrupt(Compression.LZ4, error) from error
        if not piece and not decompressor.eof:
            raise _corrupt(Compression.LZ4, "it ends too early")
        output.add(piece)
        rest = b""
    if decompressor.unused_data:
        raise _corrupt(Compression.LZ4, "bytes after the frame")
    return output.join()


def _decompress_zstd(data: memoryview, max_bytes: int) -> bytes:
    import zstandard

    try:
        _check_zstd_frames(data)
        output = _Output(Compression.ZSTD, max_bytes, len(data))
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        reader = decompressor.stream_reader(data, read_across_frames=True)
        while piece := reader.read(output.step_bytes):
            output.add(piece)
        return output.join()
    except zstandard.ZstdError as error:
        raise _corrupt(Compression.ZSTD, error) from error


def _check_zstd_frames(data: memoryview) -> None:
    """Walk block headers (RFC 8878, 3.1.1): the streaming reader accepts a truncated frame."""
    import zstandard

    position = 0
    end = len(data)
    while position < end or end == 0:
        parameters = zstandard.get_frame_parameters(data[position:])
        position += zstandard.frame_header_size(data[position:])
        last = False
        while not last:
            if end - position < 3:
                raise _corrupt(Compression.ZSTD, "it ends too early")
            block_header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            last = bool(block_header & 1)
            run_length = block_header >> 1 & 3 == 1  # one byte, repeated
            position += 3 + (1 if run_length else block_header >> 3)
        position += 4 if parameters.has_checksum else 0
        if position > end:
            raise _corrupt(Compression.ZSTD, "it ends too early")


_DECOMPRESSORS: Final[Mapping[Compression, Callable[[memoryview, int], bytes]]] = {
    Compression.GZIP: _decompress_gzip,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: _decompress_lz4,
    Compression.ZSTD: _decompress_zstd,
}
