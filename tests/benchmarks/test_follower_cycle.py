"""The cycle that `hot_path` counts: records of the leader reach the follower's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.follower_cycle import FollowerCycle


@pytest.fixture
def cycle(tmp_path: Path) -> Iterator[FollowerCycle]:
    cycle = FollowerCycle(tmp_path, 2)
    yield cycle
    cycle.close()


def test_records_at_hand_are_followed(cycle: FollowerCycle) -> None:
    for _ in range(3):
        cycle.cycle()
    cycle.check()


def test_a_fetch_that_waits_is_answered(cycle: FollowerCycle) -> None:
    for _ in range(3):
        cycle.begin_wait()
        cycle.produce()
        cycle.end_wait()
        cycle.arrive()
        cycle.follow()
    cycle.check()
