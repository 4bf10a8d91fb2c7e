"""The last offset of each key, within a bound on memory."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from kbroker.log.cleaner.offset_map import DIGEST_BYTES, ENTRY_BYTES, OffsetMap


def test_the_last_offset_of_a_key_counts() -> None:
    offsets = OffsetMap(10_000)
    for offset, key in enumerate((b"a", b"b", b"a", b"")):
        offsets.put(key, offset)
    assert [offsets.get(key) for key in (b"a", b"b", b"", b"c")] == [2, 1, 3, -1]
    assert len(offsets) == 3


def test_a_key_costs_its_bytes_once() -> None:
    offsets = OffsetMap(10_000)
    offsets.put(b"four", 0)
    offsets.put(b"four", 1)
    assert offsets.used_bytes == ENTRY_BYTES + 4
    offsets.put(bytes(1000), 2)
    assert offsets.used_bytes == 2 * ENTRY_BYTES + 4 + DIGEST_BYTES


def test_the_map_is_full_when_its_bytes_are_used() -> None:
    offsets = OffsetMap(2 * (ENTRY_BYTES + 1))
    offsets.put(b"a", 0)
    assert not offsets.is_full
    offsets.put(b"b", 1)
    assert offsets.is_full
    assert OffsetMap(0).is_full


@pytest.mark.parametrize("size", [DIGEST_BYTES - 1, DIGEST_BYTES, DIGEST_BYTES + 1, 5000])
def test_long_keys_are_told_apart(size: int) -> None:
    offsets = OffsetMap(10_000)
    one, other = b"x" * size, b"x" * (size - 1) + b"y"
    offsets.put(one, 1)
    assert (offsets.get(one), offsets.get(other)) == (1, -1)
    offsets.put(other, 2)
    assert (offsets.get(one), offsets.get(other)) == (1, 2)


def test_a_key_that_is_the_digest_of_another_is_another_key() -> None:
    offsets = OffsetMap(10_000)
    long = bytes(200)
    offsets.put(long, 1)
    assert offsets.get(blake2b(long).digest()) == -1
