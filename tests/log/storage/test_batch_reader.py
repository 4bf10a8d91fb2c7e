"""Batches of a file one after the other, up to the first bytes that are no batch."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.log.storage import batch_reader
from kbroker.log.storage.batch_reader import read_batches
from kbroker.protocol.batches.batch_builder import build_batch

NOW_MS = 1_700_000_000_000


def test_batches_larger_than_a_read_are_found(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    large = build_batch([(NOW_MS, None, bytes(3 << 20), [])])
    small = build_batch([(NOW_MS, None, b"x", [])], base_offset=1)
    path.write_bytes(small + large + small)
    sizes = [len(batch) for _, batch in read_batches(str(path), 0, path.stat().st_size)]
    assert sizes == [len(small), len(large), len(small)]


def batch(offset: int, count: int = 1) -> bytes:
    return bytes(build_batch([(NOW_MS, None, b"value", [])] * count, base_offset=offset))


def offsets(path: Path, position: int = 0, end: int | None = None) -> list[int]:
    end = path.stat().st_size if end is None else end
    return [header.base_offset for header, _ in read_batches(str(path), position, end)]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_bytes(batch(0) + batch(1, 4) + batch(5))
    return path


@pytest.mark.parametrize("chunk_bytes", [61, 70, 100, 150, 1 << 20])
def test_every_size_of_a_read_gives_the_same(
    three: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "READ_CHUNK_BYTES", chunk_bytes)
    found = list(read_batches(str(three), 0, three.stat().st_size))
    assert b"".join(piece for _, piece in found) == three.read_bytes()
    assert [header.record_count for header, _ in found] == [1, 4, 1]


def test_from_the_second_batch_on(three: Path) -> None:
    assert offsets(three, len(batch(0))) == [1, 5]
    assert offsets(three, three.stat().st_size) == []


def test_a_batch_that_passes_the_end_is_left_out(three: Path) -> None:
    size = three.stat().st_size
    for cut in range(1, len(batch(5)) + 1):
        assert offsets(three, 0, size - cut) == [0, 1]
    assert offsets(three, 0, size - len(batch(5)) - 1) == [0]


def test_a_file_that_is_shorter_than_it_should_be(three: Path) -> None:
    size = three.stat().st_size
    three.write_bytes(three.read_bytes()[:-1])
    assert offsets(three, 0, size) == [0, 1]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(8, struct.pack(">i", -1), id="negative length"),
        pytest.param(8, struct.pack(">i", 48), id="shorter than a header"),
        pytest.param(8, struct.pack(">i", 2**31 - 1), id="longer than the file"),
        pytest.param(16, b"\x07", id="unknown magic"),
        pytest.param(0, bytes(61), id="zeros"),
    ],
)
def test_nothing_is_read_behind_bytes_that_are_no_batch(three: Path, at: int, value: bytes) -> None:
    content = bytearray(three.read_bytes())
    begin = len(batch(0)) + at
    content[begin : begin + len(value)] = value
    three.write_bytes(content)
    assert offsets(three) == [0]


def test_what_is_damaged_inside_a_batch_is_not_looked_at(three: Path) -> None:
    content = bytearray(three.read_bytes())
    content[-1] ^= 1  # the CRC is the caller's to check
    three.write_bytes(content)
    assert offsets(three) == [0, 1, 5]
