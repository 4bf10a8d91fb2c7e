"""XXH3, 64 bits, without a seed (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md): the hash
with which Kafka detects that the topics of a group have changed.

Written in Python instead of using a wheel: only some hundred bytes are hashed per change of a topic
or a group, and every user has to install, audit and update a dependency.
"""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = (1 << 64) - 1
_LOW: Final = (1 << 32) - 1
_P32_1: Final = 0x9E3779B1
_P32_2: Final = 0x85EBCA77
_P32_3: Final = 0xC2B2AE3D
_P64_1: Final = 0x9E3779B185EBCA87
_P64_2: Final = 0xC2B2AE3D27D4EB4F
_P64_3: Final = 0x165667B19E3779F9
_P64_4: Final = 0x85EBCA77C2B2AE63
_P64_5: Final = 0x27D4EB2F165667C5
_MIX_1: Final = 0x165667919E3779F9
_MIX_2: Final = 0x9FB21C651E98DF25
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE: Final = 64
_STRIPES_PER_BLOCK: Final = 16
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_LANES: Final = struct.Struct("<8Q")
_START: Final = (_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1)


def xxh3_64(data: bytes) -> int:
    """The hash, 0 to 2**64 - 1."""
    length = len(data)
    if length <= 16:
        return _up_to_16(data, length)
    if length <= 240:
        return _up_to_240(data, length)
    return _long(data, length)


def _u32(data: bytes, at: int) -> int:
    return int(_U32.unpack_from(data, at)[0])


def _u64(data: bytes, at: int) -> int:
    return int(_U64.unpack_from(data, at)[0])


def _secret_xor(one: int, other: int) -> int:
    return _u64(_SECRET, one) ^ _u64(_SECRET, other)


def _fold(one: int, other: int) -> int:
    product = one * other
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _MIX_1 & _MASK
    return value ^ value >> 32


def _old_avalanche(value: int) -> int:
    """The avalanche function of XXH64, for the shortest inputs."""
    value ^= value >> 33
    value = value * _P64_2 & _MASK
    value ^= value >> 29
    value = value * _P64_3 & _MASK
    return value ^ value >> 32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _up_to_16(data: bytes, length: int) -> int:
    if length > 8:
        low = _u64(data, 0) ^ _secret_xor(24, 32)
        high = _u64(data, length - 8) ^ _secret_xor(40, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((length + swapped + high + _fold(low, high)) & _MASK)
    if length >= 4:
        value = (_u32(data, length - 4) | _u32(data, 0) << 32) ^ _secret_xor(8, 16)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * _MIX_2 & _MASK
        value ^= (value >> 35) + length
        value = value * _MIX_2 & _MASK
        return value ^ value >> 28
    if length:
        value = data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8
        return _old_avalanche(value ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _old_avalanche(_secret_xor(56, 64))


def _mix_16(data: bytes, at: int, secret_at: int) -> int:
    return _fold(
        _u64(data, at) ^ _u64(_SECRET, secret_at),
        _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8),
    )


def _up_to_240(data: bytes, length: int) -> int:
    value = length * _P64_1
    if length <= 128:
        for number in range((length - 1) // 32 + 1):
            value += _mix_16(data, 16 * number, 32 * number)
            value += _mix_16(data, length - 16 * (number + 1), 32 * number + 16)
        return _avalanche(value & _MASK)
    for number in range(8):
        value += _mix_16(data, 16 * number, 16 * number)
    value = _avalanche(value & _MASK)
    for number in range(8, length // 16):
        value += _mix_16(data, 16 * number, 16 * (number - 8) + 3)
    value += _mix_16(data, length - 16, 136 - 17)
    return _avalanche(value & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    values = _LANES.unpack_from(data, at)
    keys = _LANES.unpack_from(_SECRET, secret_at)
    for index in range(8):
        value = values[index]
        keyed = value ^ keys[index]
        lanes[index ^ 1] = lanes[index ^ 1] + value & _MASK
        lanes[index] = lanes[index] + (keyed & _LOW) * (keyed >> 32) & _MASK


def _long(data: bytes, length: int) -> int:
    lanes = list(_START)
    last_secret = len(_SECRET) - _STRIPE
    keys = _LANES.unpack_from(_SECRET, last_secret)
    for number in range((length - 1) // _STRIPE):
        in_block = number % _STRIPES_PER_BLOCK
        _accumulate(lanes, data, number * _STRIPE, 8 * in_block)
        if in_block == _STRIPES_PER_BLOCK - 1:
            lanes = [
                (lane ^ lane >> 47 ^ key) * _P32_1 & _MASK
                for lane, key in zip(lanes, keys, strict=True)
            ]
    _accumulate(lanes, data, length - _STRIPE, last_secret - 7)
    value = length * _P64_1
    for index in range(0, 8, 2):
        first = lanes[index] ^ _u64(_SECRET, 11 + 8 * index)
        second = lanes[index + 1] ^ _u64(_SECRET, 19 + 8 * index)
        value += _fold(first, second)
    return _avalanche(value & _MASK)
