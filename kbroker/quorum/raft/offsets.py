"""Positions in the metadata log: an offset with the epoch of the record before it, and the ids of
snapshots.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CHECKPOINT: Final = ".checkpoint"


class OffsetAndEpoch(NamedTuple):
    """The end of a log or of an epoch. offset: exclusive; epoch: that of the record before it."""

    offset: int
    epoch: int

    def is_at_least(self, other: OffsetAndEpoch) -> bool:
        """Whether a log that ends here is as up to date as one that ends there: the epoch is
        compared first, then the offset.
        """
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


class SnapshotId(NamedTuple):
    """The id of a snapshot of all records below end_offset (exclusive); epoch: that of the record
    before it.

    (0, 0) is the snapshot that `format` writes: no metadata, only the first voters.
    """

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{CHECKPOINT}"


BOOTSTRAP_ID: Final = SnapshotId(0, 0)
