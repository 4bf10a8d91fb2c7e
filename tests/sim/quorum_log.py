"""What a simulated node of the quorum keeps on its `SimDisk`: the metadata log as one file of
record batches, `quorum-state`, and snapshots, with what a crash leaves of them.

The formats are Kafka's but for the number of files. An operation that the disk refuses raises
OSError, and the node ends. `batches` mirrors the log's file, so that reads cost nothing;
`durable_end_offset` is what a loss of power leaves, at least: the checks compare it with what the
quorum counts as committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kbroker.quorum.disk.snapshots import parse_snapshot
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.raft_log import RaftLog
from tests.sim.disk import SimDisk
from tests.sim.quorum_mirror import Batches, LogBatch, LogMirror, StoredSnapshot

ROOT = "/metadata"
STATE = f"{ROOT}/quorum-state"
LOG_PREFIX = "log-"
NEW = f"{ROOT}/new"


class QuorumLog(LogMirror):
    """The files of one node. `open` first, in each new process."""

    def __init__(self, disk: SimDisk, known: Batches) -> None:
        super().__init__(known)
        self._disk = disk
        self.state = ElectionState()
        self._file = -1
        self._size_bytes = 0
        self._part: tuple[SnapshotId, int] | None = None
        disk.make_root(ROOT)

    # -- opening ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Read what the disk kept, cut a torn tail, and sync what is left."""
        disk = self._disk
        names = [entry.name for entry in disk.scandir(ROOT)]
        for name in names:
            if name == "new" or name.endswith((".part", ".tmp")):
                disk.unlink(f"{ROOT}/{name}")
        self._part = None
        self._sync_directory()  # the process before may have ended between a rename and its sync
        self.state = self._read_state() if "quorum-state" in names else ElectionState()
        self.snapshots = {}
        for name in names:
            if name.endswith(".checkpoint"):
                snapshot_id = SnapshotId(int(name[:20]), int(name[21:31]))
                data = disk.read(f"{ROOT}/{name}")
                self.snapshots[snapshot_id] = StoredSnapshot(data, parse_snapshot(data, Path(name)))
        logs = sorted(name for name in names if name.startswith(LOG_PREFIX))
        if not logs:
            self._create(0, b"")
            logs = [_log_name(0)]
        for name in logs[:-1]:
            disk.unlink(f"{ROOT}/{name}")
        start_offset = end_offset = int(logs[-1].removeprefix(LOG_PREFIX))
        path = f"{ROOT}/{logs[-1]}"
        data = disk.read(path)
        batches = []
        for batch in self.known.split(data):
            if batch.base_offset != end_offset:
                break
            batches.append(batch)
            end_offset = batch.end_offset
        self.replace(start_offset, batches)
        self._size_bytes = sum(len(batch.data) for batch in self.batches)
        self._file = disk.open(path, os.O_RDWR)
        disk.ftruncate(self._file, self._size_bytes)
        disk.fsync(self._file)
        self.durable_end_offset = end_offset
        latest = max(self.snapshots, default=None)
        if latest is not None and not self._raft_log().covers(latest):
            self.install(latest)  # fetched, and the process ended before it replaced the log
        first = [each for each in self.snapshots if each.end_offset <= self.start_offset]
        if first:
            self._drop_snapshots(max(first))

    def _raft_log(self) -> RaftLog:
        return RaftLog(
            start_offset=self.start_offset, end_offset=self.end_offset, epochs=self.epochs()
        )

    def _read_state(self) -> ElectionState:
        epoch, leader_id, voted_id, directory_id = self._disk.read(STATE).split(b" ")
        return ElectionState(
            int(epoch), int(leader_id), int(voted_id), bytes.fromhex(directory_id.decode())
        )

    # -- quorum-state -----------------------------------------------------------------------------

    def write_state(self, state: ElectionState) -> None:
        """Replace the file, synced."""
        data = b"%d %d %d %s" % (
            state.epoch, state.leader_id, state.voted_id, state.voted_directory_id.hex().encode()
        )  # fmt: skip
        self._write_file(f"{STATE}.tmp", STATE, data)
        self.state = state

    def _write_file(self, temporary: str, path: str, data: bytes) -> None:
        disk = self._disk
        file = disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._write(file, data, 0)
        disk.fsync(file)
        disk.close(file)
        disk.replace(temporary, path)
        self._sync_directory()

    def _write(self, file: int, data: bytes, position: int) -> None:
        while data:
            written = self._disk.pwrite(file, data, position)
            data, position = data[written:], position + written

    def _sync_directory(self) -> None:
        directory = self._disk.open(ROOT, os.O_RDONLY)
        self._disk.fsync(directory)
        self._disk.close(directory)

    # -- the log ----------------------------------------------------------------------------------

    def append(self, data: bytes, base_offset: int) -> list[LogBatch]:
        """Append whole batches, not synced."""
        batches = self.known.split(data)
        assert base_offset == self.end_offset, f"append at {base_offset} of {self.end_offset}"
        self._write(self._file, data, self._size_bytes)
        self._size_bytes += len(data)
        self.add(batches)
        return batches

    def truncate(self, end_offset: int) -> None:
        """Remove everything from end_offset on, synced."""
        self._size_bytes -= sum(len(each.data) for each in self.cut(end_offset))
        self._disk.ftruncate(self._file, self._size_bytes)
        self._disk.fsync(self._file)
        self.durable_end_offset = self.end_offset

    def begin_flush(self) -> Callable[[], None]:
        """Begin to sync the log up to its present end; the result is called at the end of that."""
        end_fsync = self._disk.begin_fsync(self._file)
        end_offset, truncation_count = self.end_offset, self.truncation_count

        def end() -> None:
            end_fsync()
            if truncation_count == self.truncation_count:
                self.durable_end_offset = max(self.durable_end_offset, end_offset)

        return end

    def read(self, from_offset: int, max_bytes: int) -> bytes:
        """Whole batches from from_offset to the end, at most max_bytes but at least one."""
        found: list[bytes] = []
        size_bytes = 0
        for batch in reversed(self.batches):
            if batch.end_offset <= from_offset:
                break
            found.append(batch.data)
        found.reverse()
        for count, data in enumerate(found):
            size_bytes += len(data)
            if count and size_bytes > max_bytes:
                return b"".join(found[:count])
        return b"".join(found)

    # -- snapshots --------------------------------------------------------------------------------

    def write_snapshot(self, snapshot_id: SnapshotId, data: bytes) -> None:
        """A snapshot that this node made, or that `format` made."""
        name = f"{ROOT}/{snapshot_id.file_name}"
        self._write_file(f"{name}.part", name, data)
        self.snapshots[snapshot_id] = StoredSnapshot(data, parse_snapshot(data, Path(name)))

    def write_part(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Bytes of a fetched snapshot."""
        disk = self._disk
        name = f"{ROOT}/{snapshot_id.file_name}.part"
        if position == 0:
            self._close_part()
            file = disk.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self._part = snapshot_id, file
        assert self._part is not None and self._part[0] == snapshot_id, "another part is written"
        self._write(self._part[1], data, position)

    def _close_part(self) -> None:
        if self._part is not None:
            self._disk.close(self._part[1])
            self._part = None

    def finish_part(self, snapshot_id: SnapshotId) -> StoredSnapshot:
        """Give a fetched snapshot its name, synced."""
        assert self._part is not None and self._part[0] == snapshot_id, "another part is finished"
        name = f"{ROOT}/{snapshot_id.file_name}"
        data = self._disk.read(f"{name}.part")
        stored = StoredSnapshot(data, parse_snapshot(data, Path(name)))
        self._disk.fsync(self._part[1])
        self._close_part()
        self._disk.replace(f"{name}.part", name)
        self._sync_directory()
        self.snapshots[snapshot_id] = stored
        return stored

    def install(self, snapshot_id: SnapshotId) -> None:
        """The log begins and ends at the snapshot's end, synced; older snapshots go."""
        self._rewrite(snapshot_id.end_offset, [])
        self._drop_snapshots(snapshot_id)

    def clean(self, snapshot_id: SnapshotId) -> None:
        """Retention: the log begins at the snapshot's end, older snapshots go."""
        kept = [each for each in self.batches if each.base_offset >= snapshot_id.end_offset]
        self._rewrite(snapshot_id.end_offset, kept)
        self._drop_snapshots(snapshot_id)

    def _rewrite(self, start_offset: int, batches: list[LogBatch]) -> None:
        disk = self._disk
        if start_offset == self.start_offset and batches == self.batches:
            return
        old = f"{ROOT}/{_log_name(self.start_offset)}"
        disk.close(self._file)
        self._create(start_offset, b"".join(batch.data for batch in batches))
        path = f"{ROOT}/{_log_name(start_offset)}"
        if path != old:
            disk.unlink(old)
        self._file = disk.open(path, os.O_RDWR)
        self._size_bytes = sum(len(batch.data) for batch in batches)
        self.replace(start_offset, batches)

    def _create(self, start_offset: int, data: bytes) -> None:
        self._write_file(NEW, f"{ROOT}/{_log_name(start_offset)}", data)

    def _drop_snapshots(self, oldest: SnapshotId) -> None:
        for snapshot_id in [each for each in self.snapshots if each < oldest]:
            self._disk.unlink(f"{ROOT}/{snapshot_id.file_name}")
            del self.snapshots[snapshot_id]


def _log_name(start_offset: int) -> str:
    return f"{LOG_PREFIX}{start_offset:020d}"
