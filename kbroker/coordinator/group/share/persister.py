"""The port to the states of the partitions of share groups, on any coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import StateSummary


class GroupStatePersister(Protocol):
    """The errors are those of the share coordinator, after some retries of retriable ones."""

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """Create the states of partitions, or reset those that exist."""
        ...

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """Delete the states of partitions."""
        ...

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        """The start offset of each partition; a partition without a state is uninitialized."""
        ...
