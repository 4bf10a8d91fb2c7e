"""The first offset of each leader epoch: `leader-epoch-checkpoint`. KIP-101, KIP-279.

Followers and consumers use it to find where two logs diverge. Entries ascend in both epoch and
offset.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final

from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    CheckpointError,
    format_entries,
    parse_number,
    read_entries,
)
from kbroker.log.storage.disk_jobs import DiskJob, DiskJobs
from kbroker.log.storage.files import LogFile, atomic_write

logger = logging.getLogger(__name__)

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1
UNCHANGED: Final = (1 << 63) - 1
"""Larger than every offset of a log."""


class EpochsWrite(DiskJob):
    """Replaces the checkpoint; does not sync it. data: the new content."""

    __slots__ = ("_data", "_path")

    has_result = False

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data

    def run(self) -> None:
        atomic_write(self._path, self._data, sync=False)


class PendingEpochs:
    """A checkpoint that a flush has to replace and sync in its own thread, because a rename waits
    while the file system commits. If a newer write has run meanwhile, this one only syncs.
    """

    __slots__ = ("_job", "_jobs", "path")

    def __init__(self, path: str, jobs: DiskJobs, job: EpochsWrite) -> None:
        self.path = path
        self._jobs = jobs
        self._job = job

    def sync(self) -> None:
        """Replace the file and sync it, but not the directory. Blocks. Raises LogDirectoryError."""
        self._jobs.work(self._job)
        LogFile(self.path).sync()


class LeaderEpochCache:
    """The epochs of one partition, in memory and in its checkpoint.

    The file is not replaced at each change, which would cost the loop two file operations for every
    partition that becomes a leader: a flush writes and syncs the file (`pending`) before the
    recovery point passes the change. Epochs after the recovery point are read from the batches
    again, and an epoch without batches is dropped at the next start, as in Kafka.
    """

    __slots__ = (
        "_changed_from",
        "_epochs",
        "_jobs",
        "_said",
        "_starts",
        "change",
        "latest_epoch",
        "path",
        "unsynced",
    )

    def __init__(
        self, directory: Path, *, clean_shutdown: bool = True, jobs: DiskJobs | None = None
    ) -> None:
        """Reads the checkpoint. jobs: those of the log.

        Raises CheckpointError for a damaged checkpoint after a clean stop. After a crash of the
        machine a checkpoint that was not synced may hold anything: it counts as empty, and recovery
        reads the epochs from the batches.
        """
        self.path = directory / names.LEADER_EPOCHS
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._said: list[tuple[int, int]] = []  # the checkpoint's entries for the recovered offsets
        self._jobs = DiskJobs(os.fspath(directory)) if jobs is None else jobs
        self._changed_from = UNCHANGED  # below this offset file and memory are equal
        self.change = 0  # counts changes and unsynced writes
        self.latest_epoch: int | None = None
        self.unsynced = False
        try:
            for epoch, start in read_entries(self.path, 2):
                self._put(parse_number(self.path, epoch), parse_number(self.path, start))
            self._changed_from = UNCHANGED
        except CheckpointError as error:
            if clean_shutdown:
                raise
            logger.warning("%s; reading leader epochs from the batches", error)
            self._epochs.clear()
            self._starts.clear()
            self.write()
        self.unsynced = self.unsynced or (not clean_shutdown and bool(self._epochs))
        self._changed()

    def copy(self, jobs: DiskJobs) -> LeaderEpochCache:
        """An independent copy of the epochs. jobs: write its checkpoint."""
        copy = object.__new__(LeaderEpochCache)
        for name in LeaderEpochCache.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._epochs, copy._starts = self._epochs.copy(), self._starts.copy()
        copy.attach(jobs)
        return copy

    def attach(self, jobs: DiskJobs) -> None:
        """Use these jobs to write the checkpoint from now on."""
        self._jobs = jobs

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    def _put(self, epoch: int, start: int) -> None:
        self._changed_at(start)
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start):
            self._epochs.pop()
            self._changed_at(self._starts.pop())
        self._epochs.append(epoch)
        self._starts.append(start)

    def _changed_at(self, offset: int) -> None:
        """The entries from offset on differ from those in the file."""
        self._changed_from = min(self._changed_from, offset)
        self.change += 1

    def _changed(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else None

    def _queue_write(self) -> EpochsWrite:
        """Queue a write of the current epochs."""
        entries = (
            f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True)
        )
        job = EpochsWrite(os.fspath(self.path), format_entries(entries))
        self._jobs.add(job)
        return job

    def _pending(self) -> PendingEpochs:
        return PendingEpochs(os.fspath(self.path), self._jobs, self._queue_write())

    def write(self) -> None:
        """Replace the checkpoint now (no fsync), after the jobs queued before. Blocks."""
        self._jobs.settle(self._queue_write())
        self._changed_from = UNCHANGED
        self.unsynced = True
        self.change += 1

    def write_if_changed(self) -> None:
        """Replace the checkpoint if it differs from the current epochs."""
        if self._changed_from != UNCHANGED:
            self.write()

    def pending(self, log_end_offset: int) -> list[PendingEpochs | LogFile]:
        """The files that a flush has to sync so that the checkpoint is correct below that offset.
        Call `synced` with the current `change` after the sync.
        """
        if self._changed_from < log_end_offset:
            return [self._pending()]
        if self.unsynced and self._changed_from != UNCHANGED:
            return [self._pending()]  # `synced` does not tell the two apart
        if self.unsynced:
            return [LogFile(os.fspath(self.path))]
        return []

    def synced(self, change: int) -> None:
        """The pending files are synced up to that change; a later change is not flushed yet."""
        if change == self.change:
            self._changed_from = UNCHANGED
            self.unsynced = False

    def needs_flush(self, log_end_offset: int) -> bool:
        """Whether the epochs below that offset may not be on disk."""
        return self.unsynced or self._changed_from < log_end_offset

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Set the start offset of an epoch. Entries that contradict it are removed. Returns whether
        any entry changed.
        """
        if epoch < 0 or start_offset < 0:
            return False
        if self._epochs and self._epochs[-1] == epoch and start_offset >= self._starts[-1]:
            return False
        self._put(epoch, start_offset)
        self._changed()
        return True

    def begin_recovery(self, offset: int) -> None:
        """The batches from offset on are about to be read: their epochs count, not those of a
        checkpoint that may be older or newer.
        """
        slot = bisect_left(self._starts, offset)
        self._changed_at(offset)
        self._said = self.entries[slot:]
        del self._starts[slot:], self._epochs[slot:]
        self._changed()

    def recover(self, epoch: int, previous_end: int, offset: int) -> None:
        """A batch at offset has this epoch, and the batch before it ended at previous_end.

        Epochs of the checkpoint that start between the two offsets are kept: compaction removed
        their batches.
        """
        latest = -1 if self.latest_epoch is None else self.latest_epoch
        if epoch <= latest:
            return
        for known, start in self._said:
            if latest < known <= epoch and previous_end <= start <= offset:
                self._put(known, start)
        if not self._epochs or self._epochs[-1] != epoch:
            self._put(epoch, offset)
        self._changed()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch <= epoch, its end offset, exclusive), for OffsetForLeaderEpoch.

        (-1, -1) if the epoch is larger than all known, or none is known.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        slot = bisect_right(self._epochs, epoch)
        if slot == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if slot == 0:
            return epoch, self._starts[0]
        return self._epochs[slot - 1], self._starts[slot]

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch of the record at offset, None if unknown."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else None

    def previous_epoch(self) -> int | None:
        """The epoch before the latest."""
        return self._epochs[-2] if len(self._epochs) > 1 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or after end_offset."""
        slot = bisect_left(self._starts, end_offset)
        if slot < len(self._starts):
            self._changed_at(self._starts[slot])
            del self._starts[slot:], self._epochs[slot:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before start_offset; the epoch that contains it starts there
        from now on.
        """
        slot = bisect_right(self._starts, start_offset)
        if slot > 1 or (slot == 1 and self._starts[0] != start_offset):
            del self._starts[: slot - 1], self._epochs[: slot - 1]
            self._starts[0] = start_offset
            self._changed_at(0)

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Replace all entries by these, (epoch, start offset) ascending."""
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self._changed()
        self.write()

    def clear(self) -> None:
        """Remove all entries."""
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._changed()
            self.write()
