"""The rate limit of replication (KIP-73; Kafka's ReplicationQuotaManager): bytes per second of the
throttled replicas, on the leader's side (`leader.replication.throttled.rate`) or on the follower's
(`follower.replication.throttled.rate`).

Which replicas are throttled is a setting of their topic (`*.replication.throttled.replicas`), as
kafka-reassign-partitions makes it. A replica in sync is never held back. A core: time is an
argument, in ms of a steady clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.model import TopicPartition
from kbroker.protocol.codecs.schema import Records, size_of
from kbroker.replication.rates import QuotaWindow, SimpleRate
from kbroker.settings.broker import BrokerConfig

UNLIMITED: Final = 2**63 - 1
EVERY_PARTITION: Final = frozenset({-1})
"""In place of indexes: `*`."""


class ReplicationThrottle:
    """One side of one broker. is_active: whether anything may be held back."""

    __slots__ = ("_bytes_per_second", "_rate", "_topics", "is_active")

    def __init__(self, window: QuotaWindow | None = None) -> None:
        self._bytes_per_second = UNLIMITED
        self._rate = SimpleRate(window or QuotaWindow())
        self._topics: dict[str, frozenset[int]] = {}
        self.is_active = False

    def limit(self, bytes_per_second: int) -> None:
        """Set another rate; what is recorded so far still counts."""
        self._bytes_per_second = bytes_per_second
        self._update()

    def mark(self, topic: str, partitions: frozenset[int]) -> None:
        """These replicas of a topic on this broker are throttled, and no others of it."""
        if partitions:
            self._topics[topic] = partitions
        else:
            self._topics.pop(topic, None)
        self._update()

    def _update(self) -> None:
        self.is_active = bool(self._topics) and self._bytes_per_second < UNLIMITED

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether that replica is throttled."""
        partitions = self._topics.get(topic_partition.topic)
        if partitions is None:
            return False
        return partitions is EVERY_PARTITION or topic_partition.partition in partitions

    def holds_back(self, topic_partition: TopicPartition, is_in_sync: bool, now_ms: int) -> bool:
        """Whether a replica is not to be fetched or sent now."""
        return not is_in_sync and self.is_throttled(topic_partition) and self.is_exceeded(now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the rate is above the limit, so that throttled replicas that are not in sync
        wait.
        """
        return self._rate.measure(now_ms) > self._bytes_per_second

    def count(self, moved: Iterable[tuple[TopicPartition, Records]], now_ms: int) -> None:
        """Records were sent, or fetched; those of throttled replicas count, also while in sync."""
        size_bytes = sum(size_of(records) for name, records in moved if self.is_throttled(name))
        if size_bytes:
            self._rate.record(float(size_bytes), now_ms)


class ReplicationThrottles(NamedTuple):
    """Both sides of one broker."""

    leader: ReplicationThrottle
    follower: ReplicationThrottle

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> ReplicationThrottles:
        """Without limits; the windows of their rates are settings of the file."""
        size_seconds = config.get_int("replication.quota.window.size.seconds")
        window = QuotaWindow(config.get_int("replication.quota.window.num"), size_seconds * 1000)
        return cls(ReplicationThrottle(window), ReplicationThrottle(window))


def throttled_partitions(replicas: Iterable[str], broker_id: int) -> frozenset[int]:
    """The partitions whose replica on that broker a topic's setting names: `*`, or
    `partition:broker` each.
    """
    indexes: set[int] = set()
    for item in replicas:
        if item == "*":
            return EVERY_PARTITION
        index, _, broker = item.partition(":")
        if broker.isdecimal() and index.isdecimal() and int(broker) == broker_id:
            indexes.add(int(index))
    return frozenset(indexes)
