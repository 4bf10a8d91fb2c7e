"""One of `follower.FollowedPartitions`, and the effects of that core."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from kbroker.protocol.codecs.schema import Records
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.replication.followers.follower_session import PartitionKey, Position
from kbroker.replication.partition import Partition

UNKNOWN: Final = -1


class FollowState(Enum):
    """See `follower`."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"
    OUT_OF_RANGE = "out of range"
    FAILED = "failed"
    REMOVED = "removed"


_FETCHING: Final = FollowState.FETCHING
"""To look a member up in its enum costs ten times as much."""

_new_tuple: Final = tuple.__new__


class FollowedPartition:
    """One of `FollowedPartitions`. leader_offset: the leader's high watermark, or log end, as of
    the last answer. leader_end: while OUT_OF_RANGE, the leader's log end; both UNKNOWN at first.
    is_changing: a change of the log is under way.
    """

    __slots__ = (
        "fetch_offset",
        "is_changing",
        "is_delayed",
        "is_started",
        "key",
        "leader_end",
        "leader_epoch",
        "leader_offset",
        "partition",
        "state",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: PartitionKey = (partition.topic_id, partition.topic_partition.partition)
        self.leader_epoch = partition.leader_epoch
        self.state = FollowState.FETCHING
        self.fetch_offset = UNKNOWN
        self.is_started = False
        self.is_changing = False
        self.is_delayed = False
        self.leader_offset = UNKNOWN
        self.leader_end = UNKNOWN

    def is_current(self, partition: Partition) -> bool:
        """Whether the partition is still followed in this leader epoch and has not failed."""
        return (
            self.partition is partition
            and self.leader_epoch == partition.leader_epoch
            and self.state is not FollowState.FAILED
        )

    @property
    def lag(self) -> int | None:
        """The number of records by which it is behind the leader; None if not known yet."""
        if self.leader_offset == UNKNOWN:
            return None
        return max(0, self.leader_offset - self.fetch_offset)

    @property
    def position(self) -> Position:
        """The position from which the next Fetch reads the partition."""
        log = self.partition.log
        last_epoch = log.leader_epochs.latest_epoch
        return _new_tuple(
            Position,
            (
                self.fetch_offset,
                self.leader_epoch,
                UNKNOWN if last_epoch is None else last_epoch,
                log.log_start_offset,
            ),
        )

    @property
    def is_ready(self) -> bool:
        """Whether the next Fetch includes the partition."""
        return self.state is _FETCHING and not self.is_delayed and not self.is_changing

    def __repr__(self) -> str:
        name = self.partition.topic_partition
        return f"{name} in epoch {self.leader_epoch}, {self.state.value} at {self.fetch_offset}"


class SendFetch(NamedTuple):
    """Answer with `FollowedPartitions.fetch_answered` or `request_failed`."""

    request: FetchRequest


class SendListOffsets(NamedTuple):
    """Answer with `FollowedPartitions.offsets_answered` or `request_failed`."""

    request: ListOffsetsRequest


class AppendFetched(NamedTuple):
    """Append records, perhaps none, and take over the leader's high watermark and log start."""

    followed: FollowedPartition
    records: Records
    high_watermark: int
    log_start_offset: int


class TruncateTo(NamedTuple):
    """Make offset the end of the log."""

    followed: FollowedPartition
    offset: int


class StartOverAt(NamedTuple):
    """Delete all records and restart the log at offset."""

    followed: FollowedPartition
    offset: int


class ReportFailed(NamedTuple):
    """Report a failed partition. It is not fetched until it has a newer leader epoch."""

    followed: FollowedPartition
    reason: str


LogChange = AppendFetched | TruncateTo | StartOverAt
"""To be answered with `FollowedPartitions.changed`, `change_refused` or `change_failed`."""

Effect = SendFetch | SendListOffsets | LogChange | ReportFailed
