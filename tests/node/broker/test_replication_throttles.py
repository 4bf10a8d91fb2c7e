"""Replication throttles from the metadata."""

from __future__ import annotations

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import TopicPartition
from kbroker.node.broker.replication_throttles import ThrottleListener
from kbroker.replication.throttle import ReplicationThrottles
from kbroker.settings.broker import BrokerConfig

LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"


def image(**topics: dict[str, str]) -> MetadataImage:
    return MetadataImage(
        configs=LayeredMap({(2, name): configs for name, configs in topics.items()})
    )


def test_rates_and_replicas_follow_the_metadata() -> None:
    static = BrokerConfig.from_properties({"node.id": "1"})
    both = ReplicationThrottles.from_broker(static)
    leader, follower = both
    throttles = ThrottleListener(1, both)
    throttles.reconfigure(static.with_dynamic({f"{LEADER}.rate": "5", f"{FOLLOWER}.rate": "7"}))
    first = image(t={f"{LEADER}.replicas": "0:1,1:2", f"{FOLLOWER}.replicas": "*"})
    throttles.on_image(MetadataImage(), first)
    assert leader.is_active and follower.is_active
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    assert [leader.is_throttled(zero), leader.is_throttled(one)] == [True, False]
    assert follower.is_throttled(one)
    throttles.on_image(first, image(t={f"{LEADER}.replicas": ""}))
    assert not leader.is_active and not follower.is_active
    throttles.on_image(MetadataImage(), first)
    throttles.reconfigure(static)
    assert not leader.is_active and not follower.is_active
