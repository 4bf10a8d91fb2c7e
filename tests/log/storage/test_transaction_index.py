"""The file of a segment's aborted transactions, and what a reader is told of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.log.storage.index import CorruptIndexError
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.transaction_index import TransactionIndex


def test_transaction_index_is_made_with_the_first_entry(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index = TransactionIndex(str(path), exists=False)
    assert index.entries() == [] and not path.exists()
    first, second = AbortedTransaction(1, 10, 20, 15), AbortedTransaction(2, 15, 30, 31)
    index.append(first)
    index.append(second)
    assert path.read_bytes() == struct.pack(">hqqqq", 0, *first) + struct.pack(">hqqqq", 0, *second)
    again = TransactionIndex(str(path), exists=True)
    again.check(68)
    assert again.entries() == [first, second]
    found: list[AbortedTransaction] = []
    assert again.collect(21, 25, found) is True
    assert found == [second]
    found.clear()
    assert again.collect(0, 100, found) is False
    assert found == [first, second]
    again.truncate_to(30)
    assert again.entries() == [first] and path.stat().st_size == 34
    again.reset()
    assert path.stat().st_size == 0
    again.delete()
    assert not path.exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(bytes(33), "whole entries", id="torn"),
        pytest.param(struct.pack(">hqqqq", 1, 1, 2, 3, 4), "version 1", id="version"),
        pytest.param(struct.pack(">hqqqq", 0, 1, 2, 3, 4) * 2, "out of order", id="order"),
    ],
)
def test_a_damaged_transaction_index_is_corrupt(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(data)
    index = TransactionIndex(str(path), exists=True)
    for _ in range(2):  # it is not taken for empty afterwards
        with pytest.raises(CorruptIndexError, match=why):
            index.check(len(data))


def index_of(path: Path, *entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(str(path / "0.txnindex"), exists=False)
    for entry in entries:
        index.append(entry)
    return index


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param((-1, 2, 3, 3), id="producer id"),
        pytest.param((1, -2, 3, 3), id="first offset"),
        pytest.param((1, 4, 3, 3), id="begins behind its marker"),
        pytest.param((1, 2, 3, 5), id="stable behind its marker"),
        pytest.param((1, 2, 3, -2), id="stable before the log"),
    ],
)
def test_an_entry_that_contradicts_itself(tmp_path: Path, entry: tuple[int, int, int, int]) -> None:
    index = index_of(tmp_path, AbortedTransaction(*entry))
    with pytest.raises(CorruptIndexError, match="contradicts itself"):
        index.check(34)


def test_the_last_stable_offset_never_goes_back(tmp_path: Path) -> None:
    index = index_of(tmp_path, AbortedTransaction(1, 0, 5, 6), AbortedTransaction(2, 1, 8, 5))
    with pytest.raises(CorruptIndexError, match="contradicts itself"):
        index.check(68)
    sound = index_of(tmp_path, AbortedTransaction(1, 0, 5, 6), AbortedTransaction(2, 1, 8, 6))
    sound.check(68)


@pytest.mark.parametrize(
    ("fetch_offset", "upper_offset", "expected"),
    [
        (0, 10, []),  # the transaction begins at the upper offset, which is exclusive
        (0, 11, [10]),
        (20, 21, [10]),  # its marker is the last offset that belongs to it
        (21, 30, []),
        (15, 16, [10]),
    ],
)
def test_which_transactions_overlap_a_read(
    tmp_path: Path, fetch_offset: int, upper_offset: int, expected: list[int]
) -> None:
    found: list[AbortedTransaction] = []
    index_of(tmp_path, AbortedTransaction(1, 10, 20, 21)).collect(fetch_offset, upper_offset, found)
    assert [entry.first_offset for entry in found] == expected


def test_later_segments_are_not_read_once_everything_before_the_upper_offset_is_stable(
    tmp_path: Path,
) -> None:
    index = index_of(tmp_path, AbortedTransaction(1, 10, 20, 21))
    assert index.collect(0, 21, []) is True
    assert index.collect(0, 22, []) is False


def test_a_truncation_removes_the_marker_at_the_offset_itself(tmp_path: Path) -> None:
    entries = [AbortedTransaction(1, 0, 5, 6), AbortedTransaction(1, 7, 9, 10)]
    index = index_of(tmp_path, *entries)
    index.truncate_to(10)
    assert index.entries() == entries
    index.truncate_to(9)
    assert index.entries() == entries[:1]
    assert Path(index.path).stat().st_size == 34
    index.append(entries[1])
    assert TransactionIndex(index.path, exists=True).entries() == entries


def test_a_segment_without_aborted_transactions_has_no_file(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    index.truncate_to(0)
    index.reset()
    index.delete()
    assert index.collect(0, 100, []) is False
    assert not list(tmp_path.iterdir())
