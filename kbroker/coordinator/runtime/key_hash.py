"""Which partition of an internal topic coordinates a key: a group id, a transactional id, a share
partition (Kafka's `Utils.abs(key.hashCode()) % partitionCount`).
"""

from __future__ import annotations

import sys
from functools import lru_cache
from operator import mul
from typing import Final

MAX_CACHED_KEY: Final = 128
"""The maximum key length, in characters, of cached hashes: clients may send ever new ids of up to
32 KiB.
"""

_UTF_16: Final = f"utf-16-{sys.byteorder[0]}e"
_MASK: Final = 0xFFFFFFFF
_BLOCK: Final = 512
"""UTF-16 code units whose contributions to a hash code are summed in one call."""

_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(_BLOCK)))


def partition_of(key: str, partition_count: int) -> int:
    """The partition of an internal topic that coordinates a key, as Kafka chooses it: the Java hash
    code of the key, made non-negative, modulo the number of partitions.
    """
    hashed = _cached_hash if len(key) <= MAX_CACHED_KEY else _hash
    return hashed(key) % partition_count


def partition_of_extended(prefix: str, rest: str, partition_count: int) -> int:
    """`partition_of` the key prefix + rest, for many keys with the same prefix, whose hash code is
    computed once.
    """
    return _absolute(_code(rest, _prefix_code(prefix))) % partition_count


@lru_cache(maxsize=10_000)
def _cached_hash(key: str) -> int:
    return _hash(key)


@lru_cache(maxsize=16)  # each may hold 32 KiB
def _prefix_code(prefix: str) -> int:
    return _code(prefix)


def _hash(key: str) -> int:
    return _absolute(_code(key))


def _code(text: str, code: int = 0) -> int:
    """Java's String.hashCode of text, of its UTF-16 code units in 32 bits, unsigned. code: that of
    the part of the key before text.
    """
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        powers = _POWERS[-len(block) :]
        code = (31 * powers[0] * code + sum(map(mul, block, powers))) & _MASK
    return code


def _absolute(code: int) -> int:
    """Java's Math.abs of a hash code; -2**31, which has no absolute value, counts as 0."""
    if code >= 0x80000000:
        code = 0x100000000 - code
    return 0 if code == 0x80000000 else code
