"""The state of a share partition as values (KIP-932): the delivery state of a partition for one
group.

The leader of the partition reads and writes it (`share/`), share groups create, delete and
summarize it (`coordinator/group`), the share coordinator stores it (`coordinator/share_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.model import TopicIdPartition
from kbroker.protocol.errors import ErrorCode

UNINITIALIZED: Final = -1
"""The start offset before the first read; the group's share.auto.offset.reset then decides."""
UNKNOWN_COUNT: Final = -1

BATCHES_PER_STEP: Final = 2048
"""So many batches of one state are written at once, as a record of some 40 KB. They are more than a
request to write states has that is not large (`LARGE_REQUEST_BYTES`): a smaller one must be written
before the next one of its connection begins, so it has no pause.
"""

COORDINATOR_IN_TRANSITION: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Retriable errors of the share coordinator: its topic is being created or loaded, or has moved."""


class SharePlace(NamedTuple):
    """A partition as one group reads it. Kafka's name: SharePartitionKey."""

    group_id: str
    place: TopicIdPartition


class StateBatch(NamedTuple):
    """The state of the records first_offset to last_offset, inclusive. delivery_count: how often
    they were delivered. The field names are those of Kafka's structs, so that it can be encoded as
    one.
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
    """A change of a state. delivery_complete_count: the number of records from start_offset on in a
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
