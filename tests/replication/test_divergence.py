"""Where a future log is truncated. Kafka's decisions for followers: followers/test_follower.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

import pytest

from kbroker.log.state.leader_epochs import LeaderEpochCache
from kbroker.replication.divergence import Truncation, truncation_to_source
from kbroker.replication.leaders.replica_log import ReplicaLog

Epochs = list[tuple[int, int]]
"""(leader epoch, start offset)."""


class EpochLog(NamedTuple):
    """As much of a log as `truncation_to_source` looks at."""

    leader_epochs: LeaderEpochCache
    log_end_offset: int


def log_of(folder: Path, epochs: Epochs, end: int) -> ReplicaLog:
    cache = LeaderEpochCache(folder)
    cache.replace(epochs)
    return cast(ReplicaLog, EpochLog(cache, end))


@pytest.mark.parametrize(
    ("copy", "source", "expected"),
    [
        pytest.param(([(1, 0)], 5), ([(1, 0)], 9), (5, True), id="behind"),
        pytest.param(([(1, 0)], 5), ([(1, 0), (2, 3)], 9), (3, True), id="the epoch ends earlier"),
        pytest.param(([(1, 0), (3, 4)], 9), ([(1, 0), (2, 5)], 9), (4, False), id="KIP-279"),
        pytest.param(([(1, 0), (3, 4)], 9), ([(1, 0)], 9), (4, True), id="a lost epoch"),
        pytest.param(([(3, 2)], 9), ([(2, 2)], 9), (2, True), id="none in common"),
        pytest.param(([(3, 2)], 9), ([(5, 2)], 9), (2, True), id="none in common, later"),
        pytest.param(([], 9), ([(1, 0)], 9), None, id="a copy of old formats"),
        pytest.param(([(1, 0)], 9), ([], 9), None, id="a source without epochs"),
    ],
)
def test_truncation_to_source(
    tmp_path: Path,
    copy: tuple[Epochs, int],
    source: tuple[Epochs, int],
    expected: tuple[int, bool] | None,
) -> None:
    cut = truncation_to_source(log_of(tmp_path, *copy), log_of(tmp_path, *source))
    assert cut == (None if expected is None else Truncation(*expected))
