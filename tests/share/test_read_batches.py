"""Batches that a share fetch has read: the offsets for readers, those passed over, and the cut."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.batches.records import Record
from kbroker.share.acquisition import Acquired
from kbroker.share.read_batches import Readable, ReadBatches

PLACE = (b"t" * 16, 0)


def batch(first: int, count: int = 2, *, producer_id: int = -1, marker: bool = False) -> bytes:
    key = bytes((0, 0, 0, ControlType.ABORT)) if marker else None
    return bytes(
        build_batch(
            [Record(first + index, 0, key, b"v", []) for index in range(1 if marker else count)],
            base_offset=first,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            is_transactional=producer_id >= 0,
            is_control=marker,
        )
    )


class Core:
    """Of a share partition: what is passed over."""

    def __init__(self) -> None:
        self.skipped: list[tuple[int, int]] = []

    def skip(self, first: int, last: int) -> None:
        self.skipped.append((first, last))


class Found:
    def __init__(self) -> None:
        self.core = Core()


def look(
    *batches: bytes,
    offset: int = 0,
    end_offset: int = 100,
    aborted: list[tuple[int, int]] | None = None,
) -> tuple[ReadBatches, list[tuple[int, int]], list[tuple[int, int]]]:
    """The batches, the offsets that are wanted, and those that were passed over."""
    found: Any = Found()
    records = b"".join(batches)
    readable = Readable(PLACE, found, offset, records, end_offset, len(records))
    read = ReadBatches(readable, aborted or [])
    wanted = list(read.wanted())
    return read, wanted, found.core.skipped


def test_whole_batches() -> None:
    _, wanted, skipped = look(batch(0), batch(2, 3))
    assert (wanted, skipped) == ([(0, 1), (2, 4)], [])


def test_the_first_batch_may_begin_before_what_is_next() -> None:
    _, wanted, skipped = look(batch(0, 5), batch(5), offset=3)
    assert (wanted, skipped) == ([(3, 4), (5, 6)], [])


def test_offsets_that_no_batch_has_are_passed_over() -> None:
    _, wanted, skipped = look(batch(2), batch(7), offset=0)
    assert wanted == [(2, 3), (7, 8)]
    assert skipped == [(0, 1), (4, 6)]


def test_a_batch_that_was_cut_off_is_not_there() -> None:
    _, wanted, _ = look(batch(0), batch(2)[:40])
    assert wanted == [(0, 1)]


def test_aborted_transactions_are_passed_over_up_to_their_marker() -> None:
    _, wanted, skipped = look(
        batch(0, producer_id=7),
        batch(2, producer_id=8),
        batch(4, producer_id=7),
        batch(6, producer_id=7, marker=True),
        batch(7, producer_id=7),
        batch(9),
        aborted=[(0, 7)],
    )
    assert skipped == [(0, 1), (4, 5), (6, 6)]
    assert wanted == [(2, 3), (7, 8), (9, 10)]


def test_a_producers_second_aborted_transaction() -> None:
    _, wanted, skipped = look(
        batch(0, producer_id=7),
        batch(2, producer_id=7, marker=True),
        batch(3, producer_id=7),
        batch(5, producer_id=7),
        batch(7, producer_id=7, marker=True),
        aborted=[(5, 7), (0, 7)],
    )
    assert skipped == [(0, 1), (2, 2), (5, 6), (7, 7)]
    assert wanted == [(3, 4)], "it was committed between the two"


def test_batches_outside_transactions_have_no_producer() -> None:
    _, wanted, _ = look(batch(0), batch(2), aborted=[(0, -1)])
    assert wanted == [(0, 1), (2, 3)]


def test_an_aborted_batch_is_passed_over_from_what_is_next_on() -> None:
    _, wanted, skipped = look(batch(0, 5, producer_id=7), offset=3, aborted=[(0, 7)])
    assert (wanted, skipped) == ([], [(3, 4)])


def old_message(offset: int) -> bytes:
    """A message of magic 1, shorter than the header of a batch."""
    message = bytes(4) + b"\1\0" + bytes(8) + b"\xff\xff\xff\xff" + b"\0\0\0\1v"
    return offset.to_bytes(8, "big") + len(message).to_bytes(4, "big") + message


def test_messages_of_an_old_format_are_one_batch_with_all_that_follows() -> None:
    old = old_message(0) + old_message(1)
    read, wanted, skipped = look(old, batch(2), offset=0, end_offset=4)
    assert (wanted, skipped) == ([(0, 3)], [])
    assert read.around([Acquired(1, 1, 1)]) == old + batch(2)


def test_a_single_message_of_an_old_format() -> None:
    read, wanted, _ = look(old_message(7), offset=7, end_offset=8)
    assert wanted == [(7, 7)]
    assert read.around([Acquired(7, 7, 1)]) == old_message(7)


def test_an_old_format_behind_batches() -> None:
    """A topic's format could be set back."""
    read, wanted, skipped = look(batch(0), old_message(2), offset=0, end_offset=3)
    assert (wanted, skipped) == ([(0, 1), (2, 2)], [])
    assert read.around([Acquired(2, 2, 1)]) == old_message(2)


@pytest.mark.parametrize(
    ("acquired", "begin", "end"),
    [
        pytest.param([(0, 1)], 0, 1, id="the first"),
        pytest.param([(3, 3)], 1, 2, id="inside the second"),
        pytest.param([(1, 1), (2, 2)], 0, 2, id="two of them"),
        pytest.param([(0, 0), (5, 5)], 0, 3, id="from the first to the last"),
        pytest.param([(5, 9)], 2, 3, id="beyond what was read"),
    ],
)
def test_only_batches_with_acquired_records_are_sent(
    acquired: list[tuple[int, int]], begin: int, end: int
) -> None:
    batches = [batch(0), batch(2), batch(4)]
    read, _, _ = look(*batches)
    pieces = [Acquired(first, last, 1) for first, last in acquired]
    assert read.around(pieces) == b"".join(batches[begin:end])
