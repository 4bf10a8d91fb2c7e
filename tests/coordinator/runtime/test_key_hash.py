"""Which partition coordinates a key, as Java computes it."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.key_hash import (
    MAX_CACHED_KEY,
    _cached_hash,
    _hash,
    partition_of,
    partition_of_extended,
)


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("", 0),
        ("g", 3),  # "g".hashCode() = 103
        ("group-classic", 24),  # a negative hash code: its absolute value counts
        ("\U0001f600", 49),  # two UTF-16 code units: 0xd83d 0xde00
        ("polygenelubricants", 0),  # its hash code is Integer.MIN_VALUE
    ],
)
def test_partition_of_is_javas(key: str, partition: int) -> None:
    assert partition_of(key, 50) == partition


def test_long_ids_are_not_kept() -> None:
    _cached_hash.cache_clear()  # tests before this one may have filled it
    before = _cached_hash.cache_info().currsize
    long_id = "g" * (MAX_CACHED_KEY + 1)
    assert partition_of(long_id, 50) == _hash(long_id) % 50
    assert _cached_hash.cache_info().currsize == before
    partition_of(long_id[:MAX_CACHED_KEY], 50)
    assert _cached_hash.cache_info().currsize == before + 1


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1024, 32_767])
@pytest.mark.parametrize("text", ["g", "\U0001f600\xe9z"])
def test_long_ids_hash_as_java_does(text: str, length: int) -> None:
    key = (text * length)[:length]
    code = 0
    units = key.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) % 2**32
    assert _hash(key) == abs(code - 2**32 if code >= 2**31 else code) % 2**31


@pytest.mark.parametrize("prefix", ["", "g", "group-classic", "g\U0001f600" * 500])
def test_a_prefix_changes_nothing(prefix: str) -> None:
    for rest in ("", ":AAAAAAAAAAAAAAAAAAAAAA:7", "polygenelubricants", "x" * 600):
        assert partition_of_extended(prefix, rest, 50) == partition_of(prefix + rest, 50)
