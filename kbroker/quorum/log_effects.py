"""Executes the core's effects on the log of one replica: appends, truncation, flushes.

A replica that may vote only writes when it also syncs: batches are buffered until the previous
flush has ended, so that all batches appended meanwhile take one write and one fsync, and a crash of
the machine tears at most that write. (`log_check` relies on that: valid batches after a torn one
are damage that no crash causes.) Only the fsync runs off the loop thread; it uses files, never the
log. Neighbours: `storage` has the files, `effect_executor` decides when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kbroker.log.state.flush import Syncable
from kbroker.model import InvariantError
from kbroker.ports import Offload, Timers
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.quorum.disk.storage import QuorumStorage, StoredBatch
from kbroker.quorum.raft.control import control_batch
from kbroker.quorum.raft.effects import AppendBatches, AppendControl, AppendRecords, ReadRecords
from kbroker.quorum.raft.offsets import SnapshotId


class BufferedBatch(NamedTuple):
    """A batch that is not in the file yet. next_offset: exclusive."""

    base_offset: int
    next_offset: int
    data: bytes | bytearray


class LogEffects:
    """Loop thread only. Every method raises LogDirectoryError for a disk fault."""

    __slots__ = ("_offload", "_storage", "_timers", "unwritten")

    def __init__(self, storage: QuorumStorage, timers: Timers, offload: Offload) -> None:
        self._storage = storage
        self._timers = timers
        self._offload = offload
        self.unwritten: deque[BufferedBatch] = deque()

    # Appending.

    def append_control(self, effect: AppendControl) -> StoredBatch:
        """Append a control batch of the leader. Returns the batch, without records."""
        batch = control_batch(
            effect.records,
            base_offset=effect.base_offset,
            epoch=effect.epoch,
            timestamp_ms=self._timers.now_ms(),
        )
        next_offset = effect.base_offset + len(effect.records)
        self.unwritten.append(BufferedBatch(effect.base_offset, next_offset, batch))
        return StoredBatch(effect.base_offset, next_offset, effect.epoch, ())

    def append_records(self, effect: AppendRecords) -> StoredBatch:
        """Append a data batch of the leader."""
        now_ms = self._timers.now_ms()
        batch = build_batch(
            [(now_ms, None, record, ()) for record in effect.records],
            base_offset=effect.base_offset,
            partition_leader_epoch=effect.epoch,
        )
        next_offset = effect.base_offset + len(effect.records)
        self.unwritten.append(BufferedBatch(effect.base_offset, next_offset, batch))
        return StoredBatch(effect.base_offset, next_offset, effect.epoch, effect.records)

    def append_batches(self, effect: AppendBatches) -> list[StoredBatch]:
        """Append batches that were fetched from the leader, as they are. A replica that never votes
        does not sync: it writes them at once.
        """
        for position, header in iter_batches(effect.batches):
            data = effect.batches[position : position + header.size_bytes]
            self.unwritten.append(BufferedBatch(header.base_offset, header.next_offset, data))
        if not self._storage.may_vote:
            self._write()
        return self._storage.batches_of(effect.batches)

    def _write(self) -> None:
        """Write the buffered batches, not synced."""
        if not self.unwritten:
            return
        batches = bytearray().join(each.data for each in self.unwritten)
        expected = self.unwritten[-1].next_offset
        self.unwritten.clear()
        self._storage.write(batches, now_ms=self._timers.now_ms())
        if self._storage.log.log_end_offset != expected:
            raise InvariantError(
                f"{self._storage.directory}: after an append up to offset {expected} the log ends "
                f"at {self._storage.log.log_end_offset}"
            )

    def flush(self, then: Callable[[int, OSError | None], None]) -> None:
        """Write and sync all appended batches. then: called on the loop with the synced end offset
        (exclusive), or with the error.
        """
        self._write()
        end_offset = self._storage.log.log_end_offset
        flush = self._storage.begin_flush()

        def synced(failure: OSError | None) -> None:
            if failure is None:
                flush.finish()
            then(end_offset, failure)

        self._offload(partial(_sync_all, flush.files), synced)

    # Removing.

    def truncate(self, end_offset: int) -> None:
        """Remove all records from end_offset on. Blocks until it is synced."""
        while self.unwritten and self.unwritten[-1].base_offset >= end_offset:
            self.unwritten.pop()
        if end_offset < self._storage.log.log_end_offset:
            self._storage.truncate(end_offset, now_ms=self._timers.now_ms())

    def install(self, snapshot_id: SnapshotId) -> None:
        """Replace the whole log by a snapshot that is on disk. Blocks until it is synced."""
        self.unwritten.clear()
        self._storage.install(snapshot_id, now_ms=self._timers.now_ms())

    # Reading.

    def read(self, read: ReadRecords) -> bytes:
        """The batches for a Fetch response, including those that are still buffered."""
        if read.from_offset < self._storage.log.log_end_offset:
            return self._storage.read_batches(read.from_offset, max_bytes=read.max_bytes)
        found = bytearray()
        for batch in self.unwritten:
            if batch.next_offset <= read.from_offset:
                continue
            if found and len(found) + len(batch.data) > read.max_bytes:
                break
            found += batch.data
        return bytes(found)


def _sync_all(files: Sequence[Syncable]) -> None:
    for file in files:
        file.sync()
