"""Which partition of an internal topic coordinates a key: a group id, a transactional id, a share
partition (Kafka's `Utils.abs(key.hashCode()) % partitionCount`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

MAX_CACHED_KEY: Final = 128
"""Characters. Clients may send ever new ids of up to 32 KiB; hashes of longer keys than this are
not cached.
"""


def partition_of(key: str, partition_count: int) -> int:
    """The partition of an internal topic that coordinates a key, as Kafka chooses it: the Java hash
    code of the key, made non-negative, modulo the number of partitions.
    """
    hashed = _cached_hash if len(key) <= MAX_CACHED_KEY else _hash
    return hashed(key) % partition_count


@lru_cache(maxsize=10_000)
def _cached_hash(key: str) -> int:
    return _hash(key)


def _hash(key: str) -> int:
    """Java's String.hashCode: UTF-16 code units in 32 bits, then the absolute value; -2**31, which
    has none, counts as 0.
    """
    units = memoryview(key.encode("utf-16-be", "surrogatepass"))
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code >= 0x80000000:
        code = 0x100000000 - code
    return 0 if code == 0x80000000 else code
