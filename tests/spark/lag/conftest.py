"""A cluster in memory with a topic of two partitions and its groups."""

from __future__ import annotations

import pytest

from tests.spark.lag.group_cluster import GroupCluster


@pytest.fixture
def cluster() -> GroupCluster:
    made = GroupCluster(t=2)
    made.set_ends("t", 100, 100)
    return made
