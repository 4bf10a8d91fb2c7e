"""How many records near their last delivery come together, and the pieces of an answer."""

from __future__ import annotations

import pytest

from kbroker.share.acquisition import Acquired, add_piece, few_of
from kbroker.share.runs import AVAILABLE, Run


@pytest.mark.parametrize(
    ("limit", "few"),
    [
        pytest.param(5, [None, None, None, 50, 1, 1], id="Kafka's default"),
        pytest.param(10, [None] * 5 + [50, 25, 12, 6, 1, 1], id="each time half as many"),
        pytest.param(2, [None, None, 1], id="the least limit"),
        pytest.param(3, [None, None, 1, 1], id="three"),
    ],
)
def test_few_records_near_their_last_delivery(limit: int, few: list[int | None]) -> None:
    """By the deliveries there were. A record that breaks its reader shall not take others along."""
    found = [few_of(Run(0, 99, AVAILABLE, deliveries), limit) for deliveries in range(len(few))]
    assert found == few


def test_a_single_record_is_never_less_than_one() -> None:
    assert few_of(Run(5, 5, AVAILABLE, 8), 20) is None
    assert [few_of(Run(5, 5, AVAILABLE, count), 20) for count in (10, 15, 19)] == [1, 1, 1]


def pieces(*runs: tuple[int, int, int], batch_size: int, may_cut: bool = True) -> list[Acquired]:
    acquired: list[Acquired] = []
    for first, last, deliveries in runs:
        add_piece(acquired, Run(first, last, AVAILABLE, deliveries), batch_size, may_cut=may_cut)
    return acquired


@pytest.mark.parametrize(
    ("runs", "batch_size", "expected"),
    [
        pytest.param([(0, 4, 1), (5, 9, 1)], 100, [(0, 9, 1)], id="neighbours are joined"),
        pytest.param([(0, 4, 1), (6, 9, 1)], 100, [(0, 4, 1), (6, 9, 1)], id="not over a gap"),
        pytest.param([(0, 4, 1), (5, 9, 2)], 100, [(0, 4, 1), (5, 9, 2)], id="nor of other counts"),
        pytest.param([(0, 4, 1), (5, 9, 1)], 5, [(0, 4, 1), (5, 9, 1)], id="a full one is not"),
        pytest.param([(0, 4, 1), (5, 9, 1)], 6, [(0, 9, 1)], id="one short of full grows"),
    ],
)
def test_pieces(
    runs: list[tuple[int, int, int]], batch_size: int, expected: list[tuple[int, int, int]]
) -> None:
    assert pieces(*runs, batch_size=batch_size) == [Acquired(*each) for each in expected]


def test_a_piece_is_not_cut_inside_a_batch() -> None:
    assert pieces((0, 4, 1), (5, 9, 1), batch_size=5, may_cut=False) == [Acquired(0, 9, 1)]
