"""Applies the replication throttles of the metadata (`replication/throttle`): the rates are dynamic
broker settings, the throttled replicas are topic settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.metadata.image import TOPIC_RESOURCE, MetadataImage
from kbroker.replication.throttle import UNLIMITED, ReplicationThrottles, throttled_partitions
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import split_list

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


class ThrottleListener:
    """The listener of one broker."""

    def __init__(self, node_id: int, throttles: ReplicationThrottles) -> None:
        self._node_id = node_id
        self._sides = (
            (throttles.leader, LEADER_RATE, LEADER_REPLICAS),
            (throttles.follower, FOLLOWER_RATE, FOLLOWER_REPLICAS),
        )

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply the rates."""
        for throttle, rate, _ in self._sides:
            throttle.limit(int(config.dynamic.get(rate, UNLIMITED)))

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply which replicas are throttled."""
        if new.configs is old.configs:
            return
        for kind, name in new.configs.changed_keys(old.configs):
            if kind == TOPIC_RESOURCE:
                self._mark(name, new.topic_configs(name))

    def _mark(self, topic: str, configs: Mapping[str, str]) -> None:
        for throttle, _, replicas in self._sides:
            named = split_list(configs.get(replicas, ""))
            throttle.mark(topic, throttled_partitions(named, self._node_id))
