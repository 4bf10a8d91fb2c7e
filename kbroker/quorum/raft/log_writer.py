"""Changes of the replica's log: each one updates the core's view of the log and emits an effect for
the shell.

One Flush is in progress at a time; records that are appended meanwhile share the next one. The
result of a Flush that was in progress at a truncation is ignored for the records appended after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.protocol.batches.batch_header import check_crc, iter_batches
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.effects import (
    AppendBatches,
    AppendControl,
    AppendRecords,
    Flush,
    InstallSnapshot,
    Truncate,
)
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.states.quorum_state import QuorumState


class LogWriter:
    """Appends to and truncates the log of one replica."""

    __slots__ = ("_is_flush_void", "_is_flushing", "_quorum")

    def __init__(self, quorum: QuorumState) -> None:
        self._quorum = quorum
        self._is_flushing = False
        self._is_flush_void = False

    @property
    def is_flushed(self) -> bool:
        """Whether the whole log is on disk."""
        log = self._quorum.log
        return log.flushed_offset >= log.end_offset

    def append_records(self, records: Sequence[bytes]) -> None:
        """Append a data batch of the leader and sync it."""
        quorum = self._quorum
        base_offset = quorum.log.end_offset
        end_offset = base_offset + len(records)
        quorum.log.append(base_offset=base_offset, end_offset=end_offset, epoch=quorum.epoch)
        quorum.emit(AppendRecords(quorum.epoch, base_offset, records))
        self.flush()

    def append_control(self, records: Sequence[tuple[ControlType, Message]]) -> int:
        """Append a control batch of the leader and sync it; it takes effect at once. Returns the
        offset of its last record.
        """
        quorum = self._quorum
        base_offset = quorum.log.end_offset
        end_offset = base_offset + len(records)
        quorum.log.append(base_offset=base_offset, end_offset=end_offset, epoch=quorum.epoch)
        for offset, (_, message) in enumerate(records, base_offset):
            quorum.control.add_record(offset, message)
        quorum.emit(AppendControl(quorum.epoch, base_offset, tuple(records)))
        self.flush()
        return end_offset - 1

    def append_batches(self, data: bytes | memoryview, *, is_synced: bool) -> bool:
        """Append the batches that a follower fetched. is_synced: sync them.

        Only batches that continue the log, have a valid CRC and no epoch above this replica's are
        appended (KAFKA-18723), up to the first invalid one. Returns whether all were appended.
        """
        quorum = self._quorum
        log, base_offset, end_position = quorum.log, quorum.log.end_offset, 0
        is_whole = True
        try:
            for position, header in iter_batches(data, partial_ok=True):
                if (
                    header.base_offset != log.end_offset
                    or not log.last_epoch <= header.partition_leader_epoch <= quorum.epoch
                    or not check_crc(data, position, header)
                ):
                    is_whole = False
                    break
                end_position = position + header.size_bytes
                if header.is_control:
                    quorum.control.add_batch(data[position:end_position])
                log.append(
                    base_offset=header.base_offset,
                    end_offset=header.next_offset,
                    epoch=header.partition_leader_epoch,
                )
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            is_whole = False
        if end_position:
            batches = bytes(data[:end_position])
            quorum.emit(AppendBatches(base_offset, log.end_offset, batches))
            if is_synced:
                self.flush()
        return is_whole

    def truncate(self, end_offset: int) -> None:
        """Remove all records from end_offset on, and the state derived from them."""
        quorum = self._quorum
        if end_offset >= quorum.log.end_offset:
            return
        quorum.log.truncate(end_offset)
        quorum.control.truncate_new(end_offset)
        quorum.emit(Truncate(end_offset))
        self._is_flush_void = self._is_flushing

    def install(
        self, snapshot_id: SnapshotId, size_bytes: int, configuration: QuorumConfiguration
    ) -> None:
        """Replace the log by a fetched snapshot."""
        quorum = self._quorum
        quorum.log.install(snapshot_id, size_bytes)
        quorum.control.load_snapshot(snapshot_id, configuration)
        quorum.emit(InstallSnapshot(snapshot_id))
        self._is_flush_void = self._is_flushing

    def flush(self) -> None:
        """Sync the log up to its end, now or after the Flush in progress."""
        if not self._is_flushing and not self.is_flushed:
            self._is_flushing = True
            self._quorum.emit(Flush(self._quorum.log.end_offset))

    def flushed(self, end_offset: int) -> None:
        """The Flush in progress is complete."""
        log = self._quorum.log
        if not self._is_flush_void:
            log.flushed_offset = max(log.flushed_offset, min(end_offset, log.end_offset))
        self._is_flushing = self._is_flush_void = False
        self.flush()
