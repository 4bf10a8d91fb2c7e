"""The lz4 frames of magic 0, whose header checksum differs from the frame format's.

Kafka's first lz4 implementation computed the checksum from the frame's magic number on. Clients of
that time require that in magic 0; every other reader requires the checksum of the frame format.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.errors import ErrorCode, KafkaError

FRAME_DESCRIPTOR: Final = 4
"""The position from which the header checksum of an lz4 frame is computed; 0 in magic 0."""

_FRAME_HEADER_BYTES: Final = 7
_MASK: Final = 0xFFFFFFFF
_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def with_lz4_checksum(frame: bytes, covered_from: int) -> bytes:
    """The frame with the header checksum of its bytes from covered_from on.

    Raises KafkaError(CORRUPT_MESSAGE) for a truncated frame.
    """
    if len(frame) < _FRAME_HEADER_BYTES:
        raise _corrupt_frame("an lz4 frame is cut short")
    flags = frame[FRAME_DESCRIPTOR]
    at = 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    if len(frame) <= at:
        raise _corrupt_frame("an lz4 frame is cut short")
    checksum = _xxh32(frame[covered_from:at]) >> 8 & 0xFF
    return frame[:at] + bytes((checksum,)) + frame[at + 1 :]


def _xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes. Raises KafkaError(CORRUPT_MESSAGE) for more."""
    first, second, third, fourth, fifth = _PRIMES
    if len(data) >= 16:
        raise _corrupt_frame("an lz4 frame header of unusual size")
    value = fifth + len(data) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value = value + int.from_bytes(data[at : at + 4], "little") * third & _MASK
        value = (value << 17 | value >> 15) * fourth & _MASK
    for byte in data[whole:]:
        value = value + byte * fifth & _MASK
        value = (value << 11 | value >> 21) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16


def _corrupt_frame(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, why)
