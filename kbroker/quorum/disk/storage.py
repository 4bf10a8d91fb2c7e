"""The quorum's files: `__cluster_metadata-0` (a partition log), its snapshots, `quorum-state`.

All methods block; the driver syncs in a thread. The metadata log is not in the log manager's
checkpoints, as in Kafka. Layouts: docs/metadata.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.flush import LogFlush
from kbroker.log.state.retention import move_start
from kbroker.log.storage.checkpoint import CheckpointError
from kbroker.log.storage.directory_lock import DirectoryLock
from kbroker.log.storage.files import (
    FileSlice,
    LogFile,
    exists,
    file_size,
    make_directory,
    sync_directory,
    unlink,
)
from kbroker.log.storage.open_files import OpenFiles
from kbroker.model import ZERO_UUID, InvariantError, StartupError, Uuid
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import KafkaError
from kbroker.quorum.disk.log_check import check_metadata_log, first_gap
from kbroker.quorum.disk.quorum_state_file import read_state, write_state
from kbroker.quorum.disk.snapshot_retention import SnapshotRetention
from kbroker.quorum.disk.snapshots import (
    FetchedSnapshot,
    Snapshot,
    build_snapshot,
    list_snapshots,
    read_snapshot,
    remove_parts,
    write_snapshot,
)
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.requests.messages import METADATA_PARTITION, METADATA_TOPIC_ID
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.voters.voter_set import Voter, VoterSet
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)

INDEX_BYTES: Final = 10 * 1024 * 1024
NEVER: Final = (1 << 63) - 1
READ_BYTES: Final = 1 << 20
OPEN_FILES: Final = 32
"""How many segments of the metadata log keep their file open. They are not part of the limit for
partitions.
"""


def metadata_log_config(config: BrokerConfig) -> LogConfig:
    """The configuration of the metadata log, independent of the settings for topics."""
    internal_segment_bytes = config.get_optional_int("internal.metadata.log.segment.bytes")
    return replace(
        LogConfig.from_configs(config, {}),
        segment_bytes=internal_segment_bytes or config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        segment_jitter_ms=0,
        segment_index_bytes=INDEX_BYTES,
        retention_ms=-1,
        retention_bytes=-1,
        cleanup_policy=frozenset({"delete"}),
        max_message_bytes=(1 << 31) - 1,
        flush_messages=NEVER,
        flush_ms=NEVER,
        preallocate=False,
    )


class StoredBatch(NamedTuple):
    """A batch of the log. next_offset: exclusive; records: framed; empty for a control batch."""

    base_offset: int
    next_offset: int
    epoch: int
    records: Sequence[bytes]


class QuorumStorage:
    """The metadata log's directory. `open` must be called first.

    may_vote: False on a broker, which syncs nothing and fetches lost records again after a crash.
    """

    __slots__ = (
        "_epoch_state",
        "_lock",
        "_part_number",
        "control",
        "directory",
        "directory_id",
        "log",
        "log_config",
        "may_vote",
        "node_id",
        "retention_bytes",
        "retention_ms",
        "snapshots",
        "static_voters",
    )

    log: PartitionLog

    def __init__(
        self,
        log_directory: Path,
        *,
        node_id: int,
        directory_id: Uuid,
        log_config: LogConfig,
        static_voters: Sequence[Voter] = (),
        retention_bytes: int = 104857600,
        retention_ms: int = 604800000,
        may_vote: bool = True,
        lock: bool = False,
    ) -> None:
        self.directory = log_directory / str(METADATA_PARTITION)
        self.node_id = node_id
        self.directory_id = directory_id
        self.log_config = log_config
        self.may_vote = may_vote
        self.static_voters = VoterSet(static_voters)
        self.retention_bytes = retention_bytes
        self.retention_ms = retention_ms
        self.control = ControlState(self.static_voters)
        self.snapshots: list[SnapshotId] = []
        self._epoch_state = ElectionState()
        self._lock = DirectoryLock(log_directory) if lock else None
        self._part_number = 0

    # Opening.

    def open(self, now_ms: int) -> Snapshot | None:
        """Open or create the log, recover its tail, delete half-written snapshots. Returns the
        newest snapshot with metadata.

        Raises StartupError for damage that needs an operator.
        """
        if self._lock is not None:
            self._lock.acquire()
        if make_directory(self.directory):
            sync_directory(self.directory.parent)  # otherwise a power loss could lose a vote
        for name in remove_parts(self.directory):
            logger.warning("%s: deleted the half-written snapshot %s", self.directory, name)
        unlink(self.directory / "quorum-state.tmp")
        state = read_state(self.directory)
        self.snapshots = list_snapshots(self.directory)
        latest = self.snapshots[-1] if self.snapshots else None
        snapshot = None if latest is None else read_snapshot(self.directory / latest.file_name)
        if snapshot is not None and latest is not None:
            self.control.load_snapshot(latest, snapshot.configuration)
        recovery_point = 0 if latest is None else latest.end_offset
        gap: int | None = None
        if self.may_vote:
            check_metadata_log(self.directory, recovery_point)
        else:
            gap = first_gap(self.directory, recovery_point)
        try:
            self.log = PartitionLog.open(
                self.directory,
                METADATA_PARTITION,
                self.log_config,
                recovery_point=recovery_point,
                clean_shutdown=False,
                now_ms=now_ms,
                topic_id=METADATA_TOPIC_ID,
                open_files=OpenFiles(OPEN_FILES),
            )
        except CheckpointError as error:
            raise StartupError(f"{error}; mend the file, or remove it to do without it") from error
        if gap is not None:
            logger.warning("%s: gap in the log at offset %d; truncating to it", self.directory, gap)
            self.truncate(gap, now_ms=now_ms)
        self._join_snapshot_and_log(latest, now_ms)
        if state is None and self.log.log_end_offset > self.log.log_start_offset:
            logger.warning(
                "%s: quorum-state is missing; using the epoch of the log", self.directory
            )
        self._epoch_state = state or ElectionState()
        return snapshot if latest is not None and latest != BOOTSTRAP_ID else None

    def _join_snapshot_and_log(self, latest: SnapshotId | None, now_ms: int) -> None:
        """A log that does not reach its newest snapshot is discarded; a log that starts after it
        cannot be replayed.
        """
        log = self.log
        if latest is not None:
            start_offset = self._start_without_gaps(latest.end_offset)
            has_lost_all = log.log_start_offset < start_offset == log.log_end_offset
            if has_lost_all or not self.raft_log().covers(latest):
                self._begin_at(latest, now_ms)
            elif move_start(log, start_offset):
                logger.warning(
                    "%s: records before offset %d are missing but covered by a snapshot;"
                    " the log now starts there",
                    self.directory,
                    start_offset,
                )
        covered = 0 if latest is None else latest.end_offset
        if log.log_start_offset > covered:
            raise StartupError(
                f"{self.directory}: the metadata log begins at offset {log.log_start_offset}, but "
                "no snapshot holds what "
                "was before; restore the .checkpoint files of this directory from a backup"
            )

    def _start_without_gaps(self, covered: int) -> int:
        """The first offset from which the log has every record up to `covered`. If power is lost
        while a fetched snapshot replaces the log, the last pages of segments that were to be
        deleted may be missing; a replica that asks for such a record would wait for ever.
        """
        log = self.log
        start_offset = log.log_start_offset
        for following in log.segments.base_offsets[1:]:
            if start_offset < following <= covered and not self._has_record(following - 1):
                start_offset = following
        return start_offset

    def _has_record(self, offset: int) -> bool:
        try:
            batches = self.batches_of(self.read_batches(offset, max_bytes=1))
        except KafkaError:  # an incomplete batch
            return False
        return bool(batches) and batches[0].base_offset <= offset < batches[0].next_offset

    def _begin_at(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        self.log.truncate_fully(snapshot_id.end_offset, now_ms=now_ms)
        self.log.leader_epochs.assign(snapshot_id.epoch, snapshot_id.end_offset)

    @property
    def state(self) -> ElectionState:
        """The content of quorum-state."""
        return self._epoch_state

    def raft_log(self) -> RaftLog:
        """The core's view of the log. Only its start counts as synced: a killed process leaves
        unsynced pages.
        """
        log = self.log
        sizes = {each: self.snapshot_size(each) for each in self.snapshots}
        return RaftLog(
            start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
            flushed_offset=log.log_start_offset,
            epochs=log.leader_epochs.entries,
            snapshots=sizes,
        )

    @property
    def voters(self) -> VoterSet:
        """The voters: those in the log with kraft.version 1, else those of
        controller.quorum.voters.
        """
        return self.control.voters.last

    def check_own_vote(self) -> None:
        """Raises StartupError if the only voter is this node with another directory id: then no
        node of the quorum can be elected.
        """
        voters = self.voters
        if voters.ids != (self.node_id,):
            return
        for voter in voters:
            if voter.directory_id not in (self.directory_id, ZERO_UUID):
                raise StartupError(
                    f"{self.directory}: the quorum's voter {voter.id} has another directory.id "
                    "than meta.properties here: "
                    "one of the two comes from another copy of this node; bring back the one that "
                    "belongs to it"
                )

    # Writing.

    def write_state(
        self, state: ElectionState, *, kraft_version: int, voter_ids: Sequence[int]
    ) -> None:
        """Persist an election state. Blocks until it is on disk."""
        write_state(self.directory, state, kraft_version=kraft_version, voter_ids=voter_ids)
        self._epoch_state = state

    def write(self, batches: bytes | bytearray, *, now_ms: int) -> None:
        """Write whole batches at the log end, not synced. Raises LogDirectoryError."""
        limit_bytes = self.log_config.segment_bytes
        if len(batches) <= limit_bytes:
            self.log.append_as_follower(batches, now_ms=now_ms)
            return
        start = end = 0
        for position, header in iter_batches(batches):
            if position > start and position + header.size_bytes - start > limit_bytes:
                # a segment must be on disk before the next one exists
                self.log.append_as_follower(batches[start:position], now_ms=now_ms)
                self.log.flush()
                start = position
            end = position + header.size_bytes
        self.log.append_as_follower(batches[start:end], now_ms=now_ms)

    def truncate(self, end_offset: int, *, now_ms: int) -> None:
        """Remove all records from end_offset on. Blocks until it is synced."""
        self.log.truncate_to(end_offset, now_ms=now_ms)

    def install(self, snapshot_id: SnapshotId, *, now_ms: int) -> None:
        """Replace the log by a snapshot that is on disk: the log starts and ends at its end offset,
        synced, and older snapshots are deleted. Blocks.
        """
        self._begin_at(snapshot_id, now_ms)
        for older in [each for each in self.snapshots if each != snapshot_id]:
            unlink(self.directory / older.file_name)
        self.snapshots = [snapshot_id]

    def begin_flush(self) -> LogFlush:
        """The files to sync in a thread before the flush's `finish`."""
        return self.log.begin_flush()

    # Reading.

    def read(self, from_offset: int, to_offset: int) -> Iterator[StoredBatch]:
        """The batches of a range, in order. to_offset is exclusive.

        Also replays control batches into `control`, for the read at start.
        """
        offset = from_offset
        while offset < to_offset:
            found = self.log.read(offset, max_bytes=READ_BYTES, upper_offset=to_offset).records
            data = found.read() if isinstance(found, FileSlice) else found
            if not data:
                raise InvariantError(
                    f"{METADATA_PARTITION}: nothing at offset {offset}, below {to_offset}"
                )
            for position, header in iter_batches(data):
                batch = memoryview(data)[position : position + header.size_bytes]
                if header.is_control:
                    self.control.add_batch(batch)
                stored = _stored_batch(batch, header)
                offset = stored.next_offset
                yield stored

    def batches_of(self, data: bytes) -> list[StoredBatch]:
        """Whole batches, as `read` returns them; `control` is not changed."""
        view = memoryview(data)
        return [
            _stored_batch(view[position : position + header.size_bytes], header)
            for position, header in iter_batches(data)
        ]

    def read_batches(self, from_offset: int, *, max_bytes: int) -> bytes:
        """Whole batches from from_offset on, at most max_bytes, but at least one batch if there is
        one.
        """
        found = self.log.read(from_offset, max_bytes=max_bytes).records
        return found.read() if isinstance(found, FileSlice) else bytes(found)

    def last_timestamp_ms(self, end_offset: int) -> int:
        """The newest timestamp before end_offset, for a snapshot's header; 0 without any."""
        if end_offset <= self.log.log_start_offset:
            return 0
        found = self.log.read(end_offset - 1, max_bytes=1).records
        data = found.read() if isinstance(found, FileSlice) else found
        return max((header.max_timestamp for _, header in iter_batches(data)), default=0)

    # Snapshots and retention.

    def write_snapshot(
        self,
        snapshot_id: SnapshotId,
        chunks: Iterable[Sequence[bytes]],
        *,
        configuration: QuorumConfiguration,
        timestamp_ms: int,
        now_ms: int,
    ) -> None:
        """Write a snapshot's file. Blocks; only uses that file, so it may run in a thread.
        configuration: that at the snapshot's end offset.
        """
        part = self._new_part(snapshot_id)
        batches = build_snapshot(
            configuration,
            chunks,
            epoch=snapshot_id.epoch,
            last_contained_timestamp_ms=timestamp_ms,
            now_ms=now_ms,
        )
        write_snapshot(self.directory / snapshot_id.file_name, part, batches)

    def _new_part(self, snapshot_id: SnapshotId) -> Path:
        self._part_number += 1
        stem = snapshot_id.file_name.removesuffix(".checkpoint")
        return self.directory / f"{stem}-{os.getpid()}{self._part_number:06d}.checkpoint.part"

    def snapshot_written(self, snapshot_id: SnapshotId) -> None:
        """Add a snapshot whose file was written."""
        if snapshot_id not in self.snapshots:
            self.snapshots = sorted([*self.snapshots, snapshot_id])

    def discard_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Delete a snapshot's file that is not used. Blocks; may run in a thread."""
        unlink(self.directory / snapshot_id.file_name)

    def fetched_snapshot(self, snapshot_id: SnapshotId) -> FetchedSnapshot:
        """The file of a snapshot that a follower begins to fetch."""
        return FetchedSnapshot(self._new_part(snapshot_id), self.directory / snapshot_id.file_name)

    def read_snapshot_part(
        self, snapshot_id: SnapshotId, position: int, *, max_bytes: int
    ) -> bytes | None:
        """Bytes of a snapshot's file from position on; None if the file is missing."""
        path = self.directory / snapshot_id.file_name
        if not exists(path):
            return None
        return LogFile(os.fspath(path), read_only=True).read_at(position, max_bytes)

    def snapshot_size(self, snapshot_id: SnapshotId) -> int:
        """Size in bytes; 0 if the file is missing."""
        return file_size(str(self.directory / snapshot_id.file_name))

    def begin_retention(self, now_ms: int) -> SnapshotRetention:
        """A run of metadata.max.retention.* for a thread; afterwards call `retire`."""
        return SnapshotRetention(
            self.directory,
            self.snapshots,
            log_bytes=self.log.size_bytes,
            retention_bytes=self.retention_bytes,
            retention_ms=self.retention_ms,
            now_ms=now_ms,
        )

    def retire(self, deleted: Sequence[SnapshotId], now_ms: int) -> None:
        """Forget snapshots whose files were deleted, and remove the log before the oldest remaining
        one. The renames of its segments' files wait in the log's queue.
        """
        kept = [each for each in self.snapshots if each not in deleted]
        if len(kept) < len(self.snapshots):  # a fetched snapshot may have replaced them meanwhile
            self.snapshots = kept
            self.log.delete_records_before(kept[0].end_offset)
        self.log.delete_old_segments(now_ms, defer=True)

    def close(self) -> None:
        """Close the log."""
        self.log.close()
        if self._lock is not None:
            self._lock.release()


def _stored_batch(batch: memoryview, header: BatchHeader) -> StoredBatch:
    records: list[bytes] = []
    if not header.is_control:
        records = [record.value or b"" for record in iter_records(batch, header)]
    epoch = header.partition_leader_epoch
    return StoredBatch(header.base_offset, header.next_offset, epoch, records)


def storage_from_config(
    config: BrokerConfig, *, directory_id: Uuid, static_voters: Sequence[Voter]
) -> QuorumStorage:
    """The storage for the broker's configuration. static_voters: if empty, a node that forms the
    quorum alone is the only voter, until the log has a voter set.
    """
    metadata_directory = config.metadata_log_dir
    if not static_voters and config.forms_quorum_alone:
        static_voters = (Voter(config.node_id, ZERO_UUID),)
    return QuorumStorage(
        Path(metadata_directory),
        node_id=config.node_id,
        directory_id=directory_id,
        log_config=metadata_log_config(config),
        static_voters=static_voters,
        retention_bytes=config.get_int("metadata.max.retention.bytes"),
        retention_ms=config.get_int("metadata.max.retention.ms"),
        may_vote=config.is_controller,
        lock=metadata_directory not in config.log_dirs,
    )
