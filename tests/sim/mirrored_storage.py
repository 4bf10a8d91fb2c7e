"""The storage of a kbroker node, with a mirror of its log for the checks of the simulation. What a
start finds on the disk is compared with what the process before had on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kbroker.log.state.flush import LogFlush
from kbroker.quorum.disk.snapshots import Snapshot, read_snapshot
from kbroker.quorum.disk.storage import QuorumStorage, metadata_log_config
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter
from kbroker.settings.broker import BrokerConfig
from tests.sim.disk import SimDisk
from tests.sim.quorum_mirror import LogMirror, StoredSnapshot

ROOT: Final = "/metadata"
LOG_CONFIG: Final = replace(
    metadata_log_config(BrokerConfig.from_properties({"node.id": "1"})),
    segment_index_bytes=4096,
    file_delete_delay_ms=0,
)


class MirroredStorage(QuorumStorage):
    """mirror: outlives the process. What is appended and truncated is told to it by the node, since
    the driver buffers batches.
    """

    __slots__ = ("_disk", "_mirror")

    def __init__(
        self,
        key: ReplicaKey,
        disk: SimDisk,
        mirror: LogMirror,
        *,
        static_voters: Sequence[Voter],
        segment_bytes: int,
        keeps_little: bool,
        may_vote: bool,
    ) -> None:
        super().__init__(
            Path(ROOT),
            node_id=key.id,
            directory_id=key.directory_id,
            log_config=replace(LOG_CONFIG, segment_bytes=segment_bytes),
            static_voters=static_voters,
            retention_bytes=0 if keeps_little else -1,
            retention_ms=-1,
            may_vote=may_vote,
        )
        self._disk = disk
        self._mirror = mirror

    def open(self, now_ms: int) -> Snapshot | None:
        """See `QuorumStorage`."""
        snapshot = super().open(now_ms)
        mirror, log = self._mirror, self.log
        # A node that cannot vote syncs nothing by itself, and cuts its log at the first gap.
        end = mirror.durable_end_offset if self.may_vote else 0
        durable = [each for each in mirror.batches if each.end_offset <= end]
        with self._disk.at_rest():
            data, offset = b"", log.log_start_offset
            while offset < log.log_end_offset:
                part = self.read_batches(offset, max_bytes=1 << 20)
                offset = self.batches_of(part)[-1].next_offset
                data += part
            mirror.replace(log.log_start_offset, mirror.known.split(data))
            self._mirror_snapshots()
        kept = {batch.base_offset: batch for batch in mirror.batches}
        for batch in durable:
            is_covered = batch.base_offset < mirror.start_offset
            is_here = kept.get(batch.base_offset) == batch
            assert is_covered or is_here, f"offset {batch.base_offset} was on disk and is gone"
        return snapshot

    def _mirror_snapshots(self) -> None:
        mirror = self._mirror
        mirror.snapshots = {each: self._stored(each) for each in self.snapshots}

    def _stored(self, snapshot_id: SnapshotId) -> StoredSnapshot:
        known = self._mirror.snapshots.get(snapshot_id)
        if known is not None:
            return known
        path = self.directory / snapshot_id.file_name
        return StoredSnapshot(self._disk.read(str(path)), read_snapshot(path))

    def install(self, snapshot_id: SnapshotId, *, now_ms: int) -> None:
        """See `QuorumStorage`."""
        self._mirror.durable_end_offset = 0
        super().install(snapshot_id, now_ms=now_ms)
        self._mirror.replace(snapshot_id.end_offset, [])
        with self._disk.at_rest():
            self._mirror_snapshots()

    def snapshot_written(self, snapshot_id: SnapshotId) -> None:
        """See `QuorumStorage`."""
        super().snapshot_written(snapshot_id)
        with self._disk.at_rest():
            self._mirror_snapshots()

    def retire(self, deleted: Sequence[SnapshotId], now_ms: int) -> None:
        """See `QuorumStorage`."""
        super().retire(deleted, now_ms)
        self._mirror.begin_at(self.log.log_start_offset)
        with self._disk.at_rest():
            self._mirror_snapshots()

    def begin_flush(self) -> LogFlush:
        """See `QuorumStorage`."""
        mirror, flush = self._mirror, super().begin_flush()
        end_offset, truncation_count = mirror.end_offset, mirror.truncation_count

        def end(_: LogFlush, is_synced: bool) -> None:
            flush.finish(is_synced=is_synced)
            if is_synced and truncation_count == mirror.truncation_count:
                mirror.durable_end_offset = max(mirror.durable_end_offset, end_offset)

        return LogFlush(
            flush.files,
            end,
            up_to=flush.up_to,
            change=flush.change,
            epoch_change=flush.epoch_change,
        )
