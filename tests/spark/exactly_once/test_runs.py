"""Source offsets and target offsets brought together by sequence."""

from __future__ import annotations

import random

import pytest

from spark_jobs.exactly_once.runs import (
    Run,
    Span,
    add_span,
    joined,
    merged_runs,
    translated,
)


def spans(offsets: list[int]) -> list[Span]:
    found: list[Span] = []
    for sequence, offset in enumerate(offsets):
        add_span(found, sequence, offset)
    return found


def test_neighbours_are_one_span() -> None:
    assert spans([5, 6, 7, 9, 10]) == [Span(0, 5, 3), Span(3, 9, 2)]


@pytest.mark.parametrize(
    ("sources", "targets", "runs"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([7, 8, 9], [0, 1, 2], [Run(7, 0, 3)], id="one run"),
        pytest.param([0, 1, 3, 4], [10, 11, 12, 13], [Run(0, 10, 2), Run(3, 12, 2)], id="a marker"),
        pytest.param([0, 1, 2], [4, 8, 9], [Run(0, 4, 1), Run(1, 8, 2)], id="another producer"),
    ],
)
def test_joined(sources: list[int], targets: list[int], runs: list[Run]) -> None:
    assert joined(spans(sources), spans(targets)) == runs


@pytest.mark.parametrize("targets", [[0], [0, 1, 2]])
def test_a_record_without_a_place_is_refused(targets: list[int]) -> None:
    with pytest.raises(ValueError, match="source or in the target only"):
        joined(spans([0, 1]), spans(targets))


def test_sequences_that_are_missing_are_refused() -> None:
    with pytest.raises(ValueError, match="sequence 0 has no offset"):
        joined([Span(0, 0, 2)], [Span(1, 5, 2)])


def test_every_offset_of_random_copies_is_translated() -> None:
    """Against the dictionary that the runs stand for."""
    dice = random.Random(3)
    for _ in range(200):
        sources = sorted(dice.sample(range(60), dice.randrange(1, 30)))
        targets = sorted(dice.sample(range(90), len(sources)))
        whole = joined(spans(sources), spans(targets))
        cut = dice.randrange(len(sources) + 1)
        halves = [
            joined(spans(sources[part]), spans(targets[part]))
            for part in (slice(cut), slice(cut, None))
        ]
        assert merged_runs([*halves[1], *halves[0]]) == whole
        for offset in range(-1, 62):
            following = [t for s, t in zip(sources, targets, strict=True) if s >= offset]
            expected = following[0] if following else targets[-1] + 1
            assert translated(whole, offset) == (None if offset < sources[0] else expected)


def test_nothing_is_translated_without_runs() -> None:
    assert translated([], 5) is None
