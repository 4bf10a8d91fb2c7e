"""The bound on what replication may take: Kafka's ReplicationQuotaManager."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from kbroker.replication.throttle import (
    EVERY_PARTITION,
    UNLIMITED,
    ReplicationThrottle,
    throttled_partitions,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
SECOND = 1000


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        pytest.param([], frozenset(), id="none"),
        pytest.param(["*"], EVERY_PARTITION, id="all"),
        pytest.param(["0:1", "1:2", "2:1"], frozenset({0, 2}), id="of this broker"),
        pytest.param(["x:1", "0:y", "0"], frozenset(), id="no pairs"),
    ],
)
def test_which_replicas_a_topic_names(replicas: list[str], expected: frozenset[int]) -> None:
    assert throttled_partitions(replicas, 1) == expected


def test_it_acts_only_with_a_rate_and_replicas() -> None:
    throttle = ReplicationThrottle()
    assert not throttle.is_active
    throttle.limit(100)
    assert not throttle.is_active
    throttle.mark("t", frozenset({0}))
    assert throttle.is_active
    throttle.limit(UNLIMITED)
    assert not throttle.is_active
    throttle.limit(0)
    throttle.mark("t", frozenset())
    assert not throttle.is_active


def test_a_replica_that_lags_waits_while_the_rate_is_exceeded() -> None:
    throttle = ReplicationThrottle()
    throttle.limit(100)
    throttle.mark("t", frozenset({0}))
    throttle.mark("u", EVERY_PARTITION)
    throttle.count([(T1, bytes(10_000))], 0)
    assert not throttle.holds_back(T0, False, 0)
    throttle.count([(T0, bytes(150)), (U0, b"")], 0)
    assert throttle.holds_back(T0, False, 0)
    assert throttle.holds_back(U0, False, 0)
    assert not throttle.holds_back(T1, False, 0), "not throttled"
    assert not throttle.holds_back(T0, True, 0), "in sync"
    assert throttle.holds_back(T0, False, 1 * SECOND)
    assert not throttle.holds_back(T0, False, 2 * SECOND), "75 bytes a second by now"


def test_what_moves_is_held_to_the_rate() -> None:
    throttle = ReplicationThrottle()
    throttle.limit(1000)
    throttle.mark("t", EVERY_PARTITION)
    moved = 0
    for now_ms in range(0, 60 * SECOND, 100):
        if not throttle.holds_back(T0, False, now_ms):
            throttle.count([(T0, bytes(500))], now_ms)
            moved += 500
    assert 0.9 * 60_000 <= moved <= 1.1 * 60_000
