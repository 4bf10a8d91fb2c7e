"""The core's view of the metadata log: its start and end, its epochs, its snapshots.

The view has no records: the shell stores those, and applies the same effects to them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kbroker.model import InvariantError
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, OffsetAndEpoch, SnapshotId


class PositionKind(Enum):
    """How a fetch position relates to the leader's log."""

    VALID = "VALID"
    DIVERGING = "DIVERGING"
    SNAPSHOT = "SNAPSHOT"


class FetchPosition(NamedTuple):
    """DIVERGING: position is the end of the largest local epoch that is not above the fetcher's.
    SNAPSHOT: position is that of the newest snapshot. VALID: position is the fetcher's own.
    """

    kind: PositionKind
    position: OffsetAndEpoch


class RaftLog:
    """Offsets, epochs and snapshots of one node's log.

    epochs: (epoch, start offset) in ascending order. snapshots: sizes in bytes by id, in ascending
    order of ids. flushed_offset: records below it are on disk; None: all records are.
    """

    __slots__ = (
        "_epochs",
        "_start_offsets",
        "end_offset",
        "flushed_offset",
        "snapshots",
        "start_offset",
    )

    def __init__(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = 0,
        flushed_offset: int | None = None,
        epochs: Sequence[tuple[int, int]] = (),
        snapshots: Mapping[SnapshotId, int] | None = None,
    ) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.flushed_offset = end_offset if flushed_offset is None else flushed_offset
        self._epochs = [epoch for epoch, _ in epochs]
        self._start_offsets = [offset for _, offset in epochs]
        self.snapshots = dict(sorted((snapshots or {}).items()))

    # Reading.

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot at which an empty log starts."""
        if self._epochs:
            return self._epochs[-1]
        latest = self.latest_snapshot_id
        return 0 if latest is None else latest.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def earliest_snapshot_id(self) -> SnapshotId | None:
        return next(iter(self.snapshots), None)

    @property
    def latest_snapshot_id(self) -> SnapshotId | None:
        return next(reversed(self.snapshots), None)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The end of the largest epoch that is not above epoch; the log's end if epoch is above
        all, its start if epoch is below all.
        """
        if not self._epochs or epoch > self._epochs[-1]:
            return self.end
        index = bisect_right(self._epochs, epoch)
        if index == len(self._epochs):
            return OffsetAndEpoch(self.end_offset, self._epochs[-1])
        offset = self._start_offsets[index]
        found = self._epochs[index - 1] if index else epoch
        earliest = self.earliest_snapshot_id
        if earliest is not None and offset == earliest.end_offset and found == epoch:
            return OffsetAndEpoch(offset, earliest.epoch)
        return OffsetAndEpoch(offset, found)

    def fetch_position(self, offset: int, last_fetched_epoch: int) -> FetchPosition:
        """The position of a replica that fetches from offset and whose record before it is of
        last_fetched_epoch.
        """
        latest = self.latest_snapshot_id
        if offset == 0 and latest is not None and latest != BOOTSTRAP_ID:
            # a snapshot is shorter than the log before its end
            return FetchPosition(PositionKind.SNAPSHOT, OffsetAndEpoch(*latest))
        return self.validate_position(offset, last_fetched_epoch)

    def validate_position(self, offset: int, last_fetched_epoch: int) -> FetchPosition:
        """`fetch_position` without the preference for snapshots."""
        if offset == 0 and self.start_offset == 0:
            return FetchPosition(PositionKind.VALID, OffsetAndEpoch(0, 0))
        earliest, latest = self.earliest_snapshot_id, self.latest_snapshot_id
        if earliest is not None and latest is not None:
            at_start = offset == self.start_offset and last_fetched_epoch != earliest.epoch
            if offset < self.start_offset or at_start or last_fetched_epoch < earliest.epoch:
                return FetchPosition(PositionKind.SNAPSHOT, OffsetAndEpoch(*latest))
        end = self.end_offset_for_epoch(last_fetched_epoch)
        if end.epoch != last_fetched_epoch or end.offset < offset:
            return FetchPosition(PositionKind.DIVERGING, end)
        return FetchPosition(PositionKind.VALID, OffsetAndEpoch(offset, last_fetched_epoch))

    def covers(self, snapshot_id: SnapshotId) -> bool:
        """Whether the log has the last record that the snapshot covers, or starts after it.
        Otherwise the log does not continue the snapshot.
        """
        end_offset, epoch = snapshot_id
        if end_offset > self.end_offset:
            return False
        index = bisect_right(self._start_offsets, end_offset - 1)
        return end_offset <= self.start_offset or not index or self._epochs[index - 1] == epoch

    # Changing.

    def append(self, *, base_offset: int, end_offset: int, epoch: int) -> None:
        """A batch was appended. Raises InvariantError if it does not continue the log."""
        if base_offset != self.end_offset or end_offset <= base_offset or epoch < self.last_epoch:
            raise InvariantError(
                f"a batch of offsets {base_offset} to {end_offset} and epoch {epoch} does not "
                f"continue a log that ends at {self.end}"
            )
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._start_offsets.append(base_offset)
        self.end_offset = end_offset

    def truncate(self, end_offset: int) -> None:
        """The log was truncated to end_offset (exclusive)."""
        while self._start_offsets and self._start_offsets[-1] >= end_offset:
            del self._epochs[-1], self._start_offsets[-1]
        self.end_offset = min(self.end_offset, end_offset)
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def install(self, snapshot_id: SnapshotId, size_bytes: int) -> None:
        """The log was replaced by a fetched snapshot: it starts and ends at the snapshot's end
        offset.
        """
        self._epochs.clear()
        self._start_offsets.clear()
        self.start_offset = self.end_offset = self.flushed_offset = snapshot_id.end_offset
        self.snapshots = {snapshot_id: size_bytes}

    def add_snapshot(self, snapshot_id: SnapshotId, size_bytes: int) -> None:
        """This node wrote a snapshot."""
        self.snapshots[snapshot_id] = size_bytes
        self.snapshots = dict(sorted(self.snapshots.items()))

    def clean(self, start_offset: int, snapshots: Sequence[SnapshotId]) -> None:
        """Retention kept only these snapshots of the known ones, and the log from
        start_offset on.
        """
        self.start_offset = max(self.start_offset, start_offset)
        kept = set(snapshots)
        self.snapshots = {each: size for each, size in self.snapshots.items() if each in kept}
        index = bisect_right(self._start_offsets, self.start_offset)
        if index:
            del self._epochs[: index - 1], self._start_offsets[: index - 1]
            self._start_offsets[0] = self.start_offset
