"""Positions in the log: which log is as up to date as another, and the names of snapshots."""

from __future__ import annotations

import pytest

from kbroker.quorum.raft.offsets import OffsetAndEpoch, SnapshotId


@pytest.mark.parametrize(
    ("log", "other", "up_to_date"),
    [
        pytest.param((10, 3), (10, 3), True, id="equal"),
        pytest.param((9, 3), (10, 3), False, id="shorter"),
        pytest.param((5, 4), (10, 3), True, id="a later epoch counts before the offset"),
        pytest.param((10, 2), (5, 3), False, id="an earlier epoch"),
    ],
)
def test_the_epoch_is_compared_before_the_offset(
    log: tuple[int, int], other: tuple[int, int], up_to_date: bool
) -> None:
    assert OffsetAndEpoch(*log).is_at_least(OffsetAndEpoch(*other)) is up_to_date


def test_the_name_of_a_snapshot() -> None:
    assert SnapshotId(42, 7).file_name == "00000000000000000042-0000000007.checkpoint"
