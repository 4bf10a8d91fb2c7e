"""The port to the states of share partitions, wherever their coordinator is (KIP-932).

Who leads a partition reads and writes its state through it, the group coordinator makes, deletes
and sums up states. `share_coordinator` answers on the other side; `share/local_persister.py` is
the way between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.share.partition import StateBatch

UNINITIALIZED: Final = -1
"""The start offset of a partition that nobody has read yet: the group's settings decide."""
UNKNOWN_COUNT: Final = -1


class SharePlace(NamedTuple):
    """A partition as a group reads it."""

    group_id: str
    place: TopicIdPartition


class StateFound(NamedTuple):
    """A state that was read."""

    error: ErrorCode
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED
    batches: Sequence[StateBatch] = ()


class StateWrite(NamedTuple):
    """What changed of a state. delivery_complete_count: of records from start_offset on that
    are done with.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class StateSummary(NamedTuple):
    """How far a group has come with a partition."""

    error: ErrorCode
    start_offset: int = UNINITIALIZED
    leader_epoch: int = 0
    delivery_complete_count: int = UNKNOWN_COUNT
    state_epoch: int = 0


class SharePersister(Protocol):
    """Errors are those of the share coordinator, after some tries if they are passing ones."""

    def read(self, key: SharePlace, leader_epoch: int) -> Deferred[StateFound]:
        """The state for a new leader of the partition, whose elders are fenced from then on."""
        ...

    def write(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """Keep what changed."""
        ...

    def initialize(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[TopicIdPartition, int]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """Make states, or begin anew with those there are."""
        ...

    def delete(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, ErrorCode]]:
        """Forget states."""
        ...

    def summarize(
        self, group_id: str, places: Sequence[TopicIdPartition]
    ) -> Deferred[Mapping[TopicIdPartition, StateSummary]]:
        """How far each is; a partition without a state is uninitialized."""
        ...
