"""What a client knows of the cluster: values read from Metadata and ListOffsets responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.model import Uuid


class BrokerAddress(NamedTuple):
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


class PartitionView(NamedTuple):
    """A partition's leader; -1 while there is none."""

    leader_id: int
    leader_epoch: int


class TopicView(NamedTuple):
    """A topic as the last Metadata response had it; partitions by index."""

    name: str
    topic_id: Uuid
    partitions: Mapping[int, PartitionView]


class OffsetAndTimestamp(NamedTuple):
    """A partition's ListOffsets result; offset -1 where no record is that late."""

    offset: int
    timestamp: int
    leader_epoch: int
