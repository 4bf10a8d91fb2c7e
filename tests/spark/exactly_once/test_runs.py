"""Source offsets and target offsets brought together by sequence."""

from __future__ import annotations

import random

import pytest

from spark_jobs.exactly_once.runs import (
    Run,
    Span,
    add_span,
    joined,
    newest_runs,
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
        assert newest_runs([*halves[0], *halves[1]]) == whole
        for offset in range(-1, 62):
            following = [t for s, t in zip(sources, targets, strict=True) if s >= offset]
            expected = following[0] if following else targets[-1] + 1
            assert translated(whole, offset) == (None if offset < sources[0] else expected)


def test_nothing_is_translated_without_runs() -> None:
    assert translated([], 5) is None


@pytest.mark.parametrize(
    ("runs", "newest"),
    [
        pytest.param([(0, 0, 9), (9, 9, 3)], [(0, 0, 12)], id="neighbours"),
        pytest.param([(0, 0, 9), (12, 10, 3)], [(0, 0, 9), (12, 10, 3)], id="a gap"),
        pytest.param([(0, 0, 9), (10, 10, 9), (0, 20, 3)], [(0, 20, 3)], id="from the first"),
        pytest.param(
            [(0, 0, 9), (10, 10, 9), (5, 20, 2)], [(0, 0, 5), (5, 20, 2)], id="within a run"
        ),
        pytest.param([(0, 0, 9), (10, 10, 9), (10, 20, 2)], [(0, 0, 9), (10, 20, 2)], id="a run"),
    ],
)
def test_a_copy_that_begins_again(
    runs: list[tuple[int, int, int]], newest: list[tuple[int, int, int]]
) -> None:
    assert newest_runs([Run(*run) for run in runs]) == [Run(*run) for run in newest]


def test_a_topic_that_was_created_again_is_translated_by_its_own_records() -> None:
    """Whatever the sizes of the batches were; a marker takes an offset behind each."""
    old = [Run(number * 100, number * 101, 100) for number in range(10)]
    new = [Run(number * 70, 1010 + number * 71, 70) for number in range(5)]
    found = newest_runs([*old, *new])
    assert [translated(found, offset) for offset in range(351)] == [
        translated(new, offset) for offset in range(351)
    ]
