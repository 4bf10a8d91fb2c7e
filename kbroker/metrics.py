"""Counters and histograms that any package may update: plain numbers, no clock, no threads.

Counting is one addition; names, labels and text are added when the metrics are read
(`server/monitoring`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LATENCY_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
"""Upper bounds of a histogram's buckets, in seconds, inclusive."""


class Histogram:
    """Counts of values per bucket. counts: one per bound, and one for larger values. total: the sum
    of all values; maximum: the largest, 0 before the first.
    """

    __slots__ = ("bounds", "count", "counts", "maximum", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value


class TopicTraffic:
    """Records of one topic in and out of this broker, counted as Kafka's BrokerTopicMetrics does:
    bytes of whole batches, including internal topics.

    produces: appends of clients and coordinators to a partition, refused ones included.
    failed_fetches: reads of a partition that met a damaged log or a disk fault.
    replication_bytes_in, replication_bytes_out: fetched from leaders, and by followers; bytes_in
    and bytes_out do not contain them.
    """

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "messages_in",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.produces = 0
        self.failed_produces = 0
        self.failed_fetches = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0

    def add(self, other: TopicTraffic) -> None:
        """Add the counts of other to these."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class IsrUpdates:
    """Answers to AlterPartition for the partitions that this broker leads: ISRs that shrank and
    expanded, and proposals that the controller refused.
    """

    __slots__ = ("expands", "failed", "shrinks")

    def __init__(self) -> None:
        self.shrinks = 0
        self.expands = 0
        self.failed = 0
