"""Carries out the core's effects on the log of one replica: appends, truncation, flushes.

The batches of a leader are buffered until a flush, a read or a truncation needs them in the file,
so everything proposed in one turn of the loop is one write and one fsync. Only the fsync leaves the
loop thread; it gets files, never the log. Neighbours: `storage` has the files, `driver` decides
when, `state_machine_feed` is told what was appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kbroker.log.state.flush import Syncable
from kbroker.model import InvariantError
from kbroker.ports import Offload, Timers
from kbroker.protocol.batch_builder import build_batch
from kbroker.quorum.raft.control import control_batch
from kbroker.quorum.raft.effects import AppendBatches, AppendControl, AppendRecords, ReadRecords
from kbroker.quorum.storage import QuorumStorage, StoredBatch


class LogEffects:
    """Loop thread only. Every method raises LogDirectoryError if the disk refuses."""

    __slots__ = ("_offload", "_storage", "_timers", "_unwritten")

    def __init__(self, storage: QuorumStorage, timers: Timers, offload: Offload) -> None:
        self._storage = storage
        self._timers = timers
        self._offload = offload
        self._unwritten = bytearray()

    def append_control(self, effect: AppendControl) -> StoredBatch:
        """Append a control batch of the leader. Returns it without records."""
        self._unwritten += control_batch(
            effect.records,
            base_offset=effect.base_offset,
            epoch=effect.epoch,
            timestamp_ms=self._timers.now_ms(),
        )
        next_offset = effect.base_offset + len(effect.records)
        return StoredBatch(effect.base_offset, next_offset, effect.epoch, ())

    def append_records(self, effect: AppendRecords) -> StoredBatch:
        """Append a data batch of the leader."""
        now_ms = self._timers.now_ms()
        self._unwritten += build_batch(
            [(now_ms, None, record, ()) for record in effect.records],
            base_offset=effect.base_offset,
            partition_leader_epoch=effect.epoch,
        )
        next_offset = effect.base_offset + len(effect.records)
        return StoredBatch(effect.base_offset, next_offset, effect.epoch, effect.records)

    def append_batches(self, effect: AppendBatches) -> list[StoredBatch]:
        """Append batches that were fetched from the leader, as they are."""
        self.write()
        self._storage.write(effect.batches, now_ms=self._timers.now_ms())
        end_offset = self._storage.log.log_end_offset
        if end_offset != effect.end_offset:
            raise InvariantError(
                f"{self._storage.directory}: the log ends at offset {end_offset} after an append "
                f"up to {effect.end_offset}"
            )
        return self._storage.batches_of(effect.batches)

    def write(self) -> None:
        """Write the buffered batches, not synced."""
        if self._unwritten:
            batches, self._unwritten = self._unwritten, bytearray()
            self._storage.write(batches, now_ms=self._timers.now_ms())

    def truncate(self, end_offset: int) -> None:
        """Remove everything from end_offset on. Blocks until it is synced."""
        self.write()
        self._storage.truncate(end_offset, now_ms=self._timers.now_ms())

    def read(self, read: ReadRecords) -> bytes:
        """The batches of a Fetch response."""
        self.write()
        return self._storage.read_batches(read.from_offset, max_bytes=read.max_bytes)

    def flush(self, then: Callable[[int, OSError | None], None]) -> None:
        """Write and sync everything that was appended so far. then: told on the loop which end
        (exclusive) was synced, or with which error that failed.
        """
        self.write()
        end_offset = self._storage.log.log_end_offset
        flush = self._storage.begin_flush()

        def synced(failure: OSError | None) -> None:
            if failure is None:
                flush.finish()
            then(end_offset, failure)

        self._offload(partial(_sync_all, flush.files), synced)


def _sync_all(files: Sequence[Syncable]) -> None:
    for file in files:
        file.sync()
