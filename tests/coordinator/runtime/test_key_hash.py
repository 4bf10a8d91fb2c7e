"""Which partition coordinates a key, as Java computes it."""

from __future__ import annotations

import pytest

from kbroker.coordinator.runtime.key_hash import MAX_CACHED_KEY, _cached_hash, _hash, partition_of


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
