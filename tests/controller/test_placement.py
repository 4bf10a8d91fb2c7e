"""Replica placement."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.placement import place
from kbroker.metadata.image import BrokerRegistration


def broker(broker_id: int, *, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, 0, bytes(16), {}, fenced=fenced)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 40), st.integers(0, 7), st.integers())
def test_lists_are_of_different_brokers_and_led_by_active_ones(
    brokers: int, replicas: int, partitions: int, fenced: int, seed: int
) -> None:
    replicas, fenced = min(replicas, brokers), min(fenced, brokers - 1)
    registered = [broker(i, fenced=i < fenced) for i in range(brokers)]
    placed = place(
        registered, partition_count=partitions, replication_factor=replicas, random=Random(seed)
    )
    assert len(placed) == partitions
    for each in placed:
        assert len(set(each)) == len(each) == replicas
        assert each[0] >= fenced
        idle = [replica < fenced for replica in each]
        assert idle == sorted(idle)
    leaders = Counter(each[0] for each in placed)
    counts = [leaders[i] for i in range(fenced, brokers)]
    assert max(counts) - min(counts) <= 1


def test_followers_of_one_leader_are_spread() -> None:
    placed = place(
        [broker(i) for i in range(4)], partition_count=12, replication_factor=2, random=Random(1)
    )
    assert len({tuple(each) for each in placed}) == 12
