"""A log in memory, of batches that are no more than offsets and an epoch, and its leader epochs."""

from __future__ import annotations

from pathlib import Path
from struct import Struct

from kbroker.log.state.leader_epochs import LeaderEpochCache

_BATCH = Struct(">qqi")


class BatchRead:
    """A `replica_log.ReadResult`."""

    def __init__(self, records: bytes, end_offset: int) -> None:
        self.records = records
        self.end_offset = end_offset


class BatchLog:
    """A `replica_log.ReplicaLog` as far as followers need it. batches: (base offset, offset after
    it, epoch).
    """

    def __init__(self, folder: Path, start: int = 0) -> None:
        self.leader_epochs = LeaderEpochCache(folder)
        self.batches: list[tuple[int, int, int]] = []
        self.log_start_offset = self.log_end_offset = start
        self.first_unstable_offset: int | None = None
        self.high_watermark = start

    def on_high_watermark(self, high_watermark: int) -> int | None:
        self.high_watermark = high_watermark
        return None

    def append(self, epoch: int, count: int) -> None:
        """Append a batch of count records."""
        base = self.log_end_offset
        self.leader_epochs.assign(epoch, base)
        self.batches.append((base, base + count, epoch))
        self.log_end_offset = base + count

    def align(self, offset: int) -> int:
        """The first offset of the batch that contains offset."""
        return next((base for base, end, _ in self.batches if base <= offset < end), offset)

    def read(
        self, fetch_offset: int, *, max_bytes: int, upper_offset: int, min_one_batch: bool = True
    ) -> BatchRead:
        """The batches from the one with fetch_offset on."""
        found = [each for each in self.batches if fetch_offset < each[1] <= upper_offset]
        return BatchRead(b"".join(_BATCH.pack(*each) for each in found), fetch_offset)

    def truncate_to(self, offset: int) -> None:
        """Make offset the end, or the base of the batch that contains it."""
        while self.batches and self.batches[-1][1] > offset:
            offset = min(offset, self.batches.pop()[0])
        self.log_end_offset = min(self.log_end_offset, offset)
        self.leader_epochs.truncate_from_end(offset)

    def truncate_fully(self, offset: int) -> None:
        """Begin anew at offset."""
        self.batches.clear()
        self.leader_epochs.truncate_from_end(-1)
        self.log_start_offset = self.log_end_offset = offset


def offsets_in(records: bytes) -> tuple[int, int] | None:
    """The first and the last offset of what `BatchLog.read` returned; None for nothing."""
    if not records:
        return None
    batches = [_BATCH.unpack_from(records, at) for at in range(0, len(records), _BATCH.size)]
    return batches[0][0], batches[-1][1] - 1
