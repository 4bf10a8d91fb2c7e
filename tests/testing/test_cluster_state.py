"""When a cluster has healed."""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.testing.cluster_state import PartitionState, out_of_sync, unhealed

EVENTS = TopicPartition("events", 0)


def test_healed_is_in_sync_everywhere_without_open_transactions() -> None:
    healed = PartitionState(frozenset({1, 2, 3}), 10, 10)
    assert unhealed({EVENTS: healed}, 3) == []
    lagging = PartitionState(frozenset({3, 1}), 10, 10)
    assert unhealed({EVENTS: lagging}, 3) == ["events-0 has ISR [1, 3]"]
    hanging = PartitionState(frozenset({1, 2, 3}), 10, 7)
    assert unhealed({EVENTS: hanging}, 3) == ["events-0 has an open transaction at 7"]
    assert out_of_sync({EVENTS: hanging}, 3) == []
    assert out_of_sync({EVENTS: lagging}, 3) == ["events-0 has ISR [1, 3]"]
