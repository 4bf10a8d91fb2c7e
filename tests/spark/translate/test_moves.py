"""What becomes of a group's offset in a copy."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from spark_jobs.errors import StartRefused
from spark_jobs.exactly_once.runs import Run
from spark_jobs.translate.moves import Copied, moved, needs_first

SOURCE = TopicPartition("orders", 1)
TARGET = TopicPartition("b.orders", 1)
COPIED = Copied(40, (Run(5, 0, 10), Run(20, 11, 5)))


@pytest.mark.parametrize(
    ("committed", "target_offset"),
    [
        pytest.param(5, 0, id="first"),
        pytest.param(12, 7, id="within"),
        pytest.param(15, 11, id="between runs"),
        pytest.param(24, 15, id="last"),
        pytest.param(25, 16, id="behind the last"),
        pytest.param(40, 16, id="all that was copied"),
    ],
)
def test_offsets_in_the_map(committed: int, target_offset: int) -> None:
    assert not needs_first(committed, COPIED)
    assert moved(SOURCE, committed, TARGET, COPIED).target_offset == target_offset


def test_a_copy_that_is_behind_the_group() -> None:
    with pytest.raises(StartRefused, match="up to offset 41, the copy is at 40"):
        moved(SOURCE, 41, TARGET, COPIED)


@pytest.mark.parametrize(("first", "is_moved"), [(5, True), (7, True), (None, True), (3, False)])
def test_offsets_before_the_map(first: int | None, is_moved: bool) -> None:
    """Nothing but markers before the first copied record, or a record that was not copied."""
    assert needs_first(2, COPIED)
    if is_moved:
        assert moved(SOURCE, 2, TARGET, COPIED, first).target_offset == 0
    else:
        with pytest.raises(StartRefused, match="it has no record of offset 3"):
            moved(SOURCE, 2, TARGET, COPIED, first)


def test_a_partition_of_which_nothing_was_copied() -> None:
    empty = Copied(9, ())
    assert moved(SOURCE, 9, TARGET, empty).target_offset == 0
    with pytest.raises(StartRefused, match="no record of offset 4"):
        moved(SOURCE, 3, TARGET, empty, 4)


def test_a_map_whose_beginning_was_deleted() -> None:
    cut = Copied(40, COPIED.runs, is_cut=True)
    assert moved(SOURCE, 12, TARGET, cut).target_offset == 7
    with pytest.raises(StartRefused, match="no longer has offset 2"):
        moved(SOURCE, 2, TARGET, cut)


@pytest.mark.parametrize("runs", [COPIED.runs, COPIED.runs[1:]])
def test_a_group_that_has_read_all_of_a_topic_that_was_created_again(runs: list[Run]) -> None:
    """The map has nothing of the new topic yet; its records come behind the old ones."""
    again = Copied(6, runs, reached=6)
    assert moved(SOURCE, 6, TARGET, again).target_offset == 16
    going_on = Copied(40, (*runs, Run(41, 20, 3)), reached=44)
    assert moved(SOURCE, 40, TARGET, going_on).target_offset == 20
