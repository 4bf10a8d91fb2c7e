"""Partitions of keys as Kafka's Java client chooses them."""

from __future__ import annotations

import pytest

from spark_jobs.exactly_once.partitioner import partition_for


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [  # of Kafka's own UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys(key: bytes, murmur2: int) -> None:
    for count in (1, 3, 12, 1000):
        assert partition_for(key, b"value", count) == (murmur2 & 0x7FFFFFFF) % count


def test_rows_without_a_key_are_spread_by_their_value() -> None:
    places = [partition_for(None, b"%d" % number, 4) for number in range(400)]
    assert all(60 <= places.count(partition) <= 140 for partition in range(4))
    assert places == [partition_for(None, b"%d" % number, 4) for number in range(400)]
    assert partition_for(None, None, 4) == partition_for(b"", b"x", 4)
