"""Batches of share states are combined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from kbroker.coordinator.share_state import combination
from kbroker.coordinator.share_state.combination import combine
from kbroker.protocol.share_partition_state import StateBatch


def test_batches_that_are_combined_already_are_not_combined_again() -> None:
    """Whether they are is decided as `combine` would."""
    random = Random(3)
    for _ in range(500):
        batches = [
            StateBatch(first, first + random.randrange(3), random.choice([0, 2]), 1)
            for first in random.sample(range(20), 5)
        ]
        start = random.choice([-1, 0, 4])
        once = combine(batches, start)
        assert combine(once, start) == once
        offsets = {
            offset: max(
                (b.delivery_count, b.delivery_state)
                for b in batches
                if b.first_offset <= offset <= b.last_offset
            )
            for batch in batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
            if offset >= start
        }
        assert offsets == {
            offset: (batch.delivery_count, batch.delivery_state)
            for batch in once
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for one, other in pairwise(once):
            assert one.last_offset < other.first_offset
            assert one.last_offset + 1 < other.first_offset or one[2:] != other[2:]


def test_changed_batches_are_combined_with_their_neighbours_only() -> None:
    """The result is that of `combine` for all batches."""
    random = Random(4)

    def batches(count: int, offsets: int) -> list[StateBatch]:
        return [
            StateBatch(
                first, first + random.randrange(4), random.choice([0, 2]), random.randrange(3)
            )
            for first in random.sample(range(offsets), count)
        ]

    for number in range(4000):
        state = combine(batches(60 if number % 2 else random.randrange(6), 300), 0)
        changed = batches(random.randrange(1, 5), 320)
        if number % 3 == 0:  # over many of the state's
            changed.append(StateBatch(random.randrange(300), random.randrange(300), 2, 1))
        start = random.choice([0, 0, 17, 200, 400])
        expected = combine([*state, *changed], start)
        assert combination.combine_changed(state, changed, start) == expected


def test_a_few_changes_of_a_large_state_look_at_few_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = [StateBatch(2 * number, 2 * number, 0, 1) for number in range(10_000)]
    looked_at: list[int] = []
    real = combination.combine

    def counted(batches: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
        looked_at.append(len(batches))
        return real(batches, start_offset)

    monkeypatch.setattr(combination, "combine", counted)
    changed = [StateBatch(101, 101, 2, 1), StateBatch(19_000, 19_001, 2, 3)]
    after = combination.combine_changed(state, changed, 50)
    assert sum(looked_at) <= 10
    assert after == real([*state, *changed], 50)


@pytest.mark.parametrize("deliveries", [0, 1, 2])
def test_a_change_of_the_whole_state_combines_only_the_change(
    deliveries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`combine` sorts, which takes 0.2 s for the 45,000 batches that a state may have."""
    state = [StateBatch(2 * number, 2 * number, 0, number % 3) for number in range(10_000)]
    changed = [StateBatch(-5, 1 << 40, 2, deliveries)]
    expected = combine([*state, *changed], 50)
    looked_at: list[int] = []
    real = combination.combine

    def counted(batches: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
        looked_at.append(len(batches))
        return real(batches, start_offset)

    monkeypatch.setattr(combination, "combine", counted)
    assert combination.combine_changed(state, changed, 50) == expected
    assert looked_at == [1]
