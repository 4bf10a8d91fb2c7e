"""What a driver lends to the tasks of one batch: its producer id, and what they may do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.compression import Compression

from ..wire.client import ClusterAddress
from .topics import TargetTopic


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of a task. batch_bytes: records of a batch before compression. buffer_bytes: records
    of all partitions that are not sent yet. produce_timeout_ms: for the replicas' acknowledgement.
    """

    batch_bytes: int = 512 * 1024
    buffer_bytes: int = 16 * 1024 * 1024
    produce_timeout_ms: int = 30_000


DEFAULT_LIMITS: Final = WriterLimits()


@dataclass(frozen=True, slots=True)
class Grant:
    """The producer of one transaction, as the tasks need it. Picklable.

    tokens: the partition for claims. claims_from: the claims of this producer epoch are at that
    offset or after it. topics: what may be written to, by name.
    """

    address: ClusterAddress
    transactional_id: str
    producer_id: int
    producer_epoch: int
    tokens: TopicPartition
    claims_from: int
    topics: Mapping[str, TargetTopic]
    compression: Compression = Compression.NONE
    limits: WriterLimits = DEFAULT_LIMITS

    def partitions(self) -> list[TopicPartition]:
        """Every partition that a task may write to."""
        return [
            TopicPartition(topic.name, index)
            for topic in self.topics.values()
            for index in range(topic.partition_count)
        ]
