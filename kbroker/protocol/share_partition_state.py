"""The state of a share partition as values (KIP-932): what a group has read of a partition.

The leader of the partition reads and writes it (`share/`), share groups create, delete and sum it
up (`coordinator/group`), the share coordinator keeps it (`coordinator/share_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.model import TopicIdPartition
from kbroker.protocol.errors import ErrorCode

UNINITIALIZED: Final = -1
"""The start offset before the first read; the group's share.auto.offset.reset decides then."""
UNKNOWN_COUNT: Final = -1

COORDINATOR_IN_TRANSITION: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of the share coordinator that pass: its topic is being created or loaded, or has moved."""


class SharePlace(NamedTuple):
    """A partition as one group reads it. Kafka's name: SharePartitionKey."""

    group_id: str
    place: TopicIdPartition


class StateBatch(NamedTuple):
    """The state of the records first_offset to last_offset, inclusive. delivery_count: how often
    they were delivered. The names are those of Kafka's structs, so that it is encoded as one.
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class StateFound(NamedTuple):
    """The result of ReadShareGroupState."""

    error: ErrorCode
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED
    batches: Sequence[StateBatch] = ()


class StateWrite(NamedTuple):
    """A change of a state. delivery_complete_count: of records from start_offset on that are in a
    terminal state.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class StateSummary(NamedTuple):
    """The result of ReadShareGroupStateSummary: how far a group has read a partition."""

    error: ErrorCode
    start_offset: int = UNINITIALIZED
    leader_epoch: int = 0
    delivery_complete_count: int = UNKNOWN_COUNT
    state_epoch: int = 0
