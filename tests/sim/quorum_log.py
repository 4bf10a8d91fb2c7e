"""What a simulated node of the quorum keeps on its `SimDisk`: the metadata log as one file of
record batches, `quorum-state`, and snapshots, with what a crash leaves of them.

The formats are Kafka's but for the number of files. An operation that the disk refuses raises
OSError, and the node ends. `batches` mirrors the log's file, so that reads cost nothing;
`durable_end_offset` is what a loss of power leaves, at least: the checks compare it with what the
quorum counts as committed.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kbroker.protocol.batch_header import check_crc, iter_batches
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import iter_records
from kbroker.quorum.raft.control import QuorumConfiguration, control_records
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voter_set import VoterSet
from kbroker.quorum.snapshots import Snapshot, parse_snapshot
from tests.sim.disk import SimDisk

ROOT = "/metadata"
STATE = f"{ROOT}/quorum-state"
LOG_PREFIX = "log-"
NEW = f"{ROOT}/new"


class LogBatch(NamedTuple):
    """A batch of the log. values: of its data records; voters: the set that its records make the
    newest one, None if they do not change it.
    """

    base_offset: int
    end_offset: int
    epoch: int
    data: bytes
    values: tuple[bytes, ...]
    voters: VoterSet | None


class Batches:
    """Batches by their bytes: each is decoded once, however many nodes have it."""

    def __init__(self) -> None:
        self._known: dict[bytes, LogBatch] = {}

    def split(self, data: bytes) -> list[LogBatch]:
        """The whole, undamaged batches at the begin of data."""
        known = self._known.get(data)
        if known is not None:
            return [known]
        found = []
        try:
            for position, header in iter_batches(data, partial_ok=True):
                if not check_crc(data, position, header):
                    break
                batch = bytes(data[position : position + header.size_bytes])
                if batch not in self._known:
                    voters, values = None, ()
                    if header.is_control:
                        changed = QuorumConfiguration().after(control_records(batch)).voters
                        voters = VoterSet(changed) if changed else None
                    else:
                        values = tuple(each.value or b"" for each in iter_records(batch))
                    self._known[batch] = LogBatch(
                        header.base_offset,
                        header.next_offset,
                        header.partition_leader_epoch,
                        batch,
                        values,
                        voters,
                    )
                found.append(self._known[batch])
        except KafkaError:
            pass  # torn: the log ends before it
        return found


@dataclass
class StoredSnapshot:
    """A snapshot's bytes and what they say."""

    data: bytes
    content: Snapshot


class QuorumLog:
    """The files of one node. `open` first, in each new process."""

    def __init__(self, disk: SimDisk, known: Batches) -> None:
        self._disk = disk
        self._known = known
        self.state = ElectionState()
        self.start_offset = 0
        self.batches: list[LogBatch] = []
        self._voter_batches: list[LogBatch] = []
        self.snapshots: dict[SnapshotId, StoredSnapshot] = {}
        self.durable_end_offset = 0
        self.truncation_count = 0
        self._file = -1
        self._size_bytes = 0
        self._part: tuple[SnapshotId, int] | None = None
        disk.make_root(ROOT)

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.start_offset

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        found: list[tuple[int, int]] = []
        for batch in self.batches:
            if not found or batch.epoch > found[-1][0]:
                found.append((batch.epoch, batch.base_offset))
        return found

    def voters(self) -> VoterSet | None:
        """The newest voter set of the log, or of the newest snapshot if the log has none."""
        if self._voter_batches:
            return self._voter_batches[-1].voters
        for snapshot_id in sorted(self.snapshots, reverse=True):
            voters = self.snapshots[snapshot_id].content.configuration.voters
            if snapshot_id.end_offset <= self.start_offset and voters:
                return VoterSet(voters)
        return None

    def configuration_at(self, end_offset: int) -> QuorumConfiguration:
        """What the control records below end_offset say of the quorum."""
        found = QuorumConfiguration()
        for snapshot_id in sorted(self.snapshots):
            if snapshot_id.end_offset <= self.start_offset:
                found = self.snapshots[snapshot_id].content.configuration
        for batch in self.batches:
            if batch.end_offset <= end_offset and batch.voters is not None:
                found = found.after(control_records(batch.data))
        return found

    def batches_between(self, from_offset: int, end_offset: int) -> list[LogBatch]:
        """The batches from from_offset to end_offset (exclusive), which are borders of batches."""
        found = []
        for batch in reversed(self.batches):
            if batch.base_offset < from_offset:
                break
            if batch.end_offset <= end_offset:
                found.append(batch)
        found.reverse()
        return found

    def holds(self, batch: LogBatch) -> bool:
        """Whether batch is durably here, in the log or covered by a snapshot."""
        if batch.end_offset > self.durable_end_offset:
            return False
        if batch.base_offset < self.start_offset:
            return True
        index = bisect_left(self.batches, (batch.base_offset,))
        return index < len(self.batches) and self.batches[index] == batch

    def epoch_before(self, offset: int) -> int:
        """The epoch of the record before offset; -1 if it is not in the log."""
        index = bisect_left(self.batches, (offset,)) - 1
        return self.batches[index].epoch if index >= 0 else -1

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
        self.start_offset = int(logs[-1].removeprefix(LOG_PREFIX))
        path = f"{ROOT}/{logs[-1]}"
        data = disk.read(path)
        self.batches = []
        end_offset = self.start_offset
        for batch in self._known.split(data):
            if batch.base_offset != end_offset:
                break
            self.batches.append(batch)
            end_offset = batch.end_offset
        self._voter_batches = [each for each in self.batches if each.voters is not None]
        self._size_bytes = sum(len(batch.data) for batch in self.batches)
        self._file = disk.open(path, os.O_RDWR)
        disk.ftruncate(self._file, self._size_bytes)
        disk.fsync(self._file)
        self.durable_end_offset = end_offset
        latest = max(self.snapshots, default=None)
        if latest is not None and end_offset < latest.end_offset:
            self.install(latest)
        first = [each for each in self.snapshots if each.end_offset <= self.start_offset]
        if first:
            self._drop_snapshots(max(first))

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
        batches = self._known.split(data)
        assert base_offset == self.end_offset, f"append at {base_offset} of {self.end_offset}"
        self._write(self._file, data, self._size_bytes)
        self._size_bytes += len(data)
        for batch in batches:
            assert batch.base_offset == self.end_offset, "batches with a gap"
            self.batches.append(batch)
            if batch.voters is not None:
                self._voter_batches.append(batch)
        return batches

    def truncate(self, end_offset: int) -> None:
        """Remove everything from end_offset on, synced."""
        while self.batches and self.batches[-1].base_offset >= end_offset:
            self._size_bytes -= len(self.batches.pop().data)
        while self._voter_batches and self._voter_batches[-1].base_offset >= end_offset:
            self._voter_batches.pop()
        assert self.end_offset <= end_offset, f"{end_offset} is within a batch"
        self.truncation_count += 1
        self.durable_end_offset = min(self.durable_end_offset, self.end_offset)
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
        self.truncation_count += 1
        disk.close(self._file)
        self._create(start_offset, b"".join(batch.data for batch in batches))
        path = f"{ROOT}/{_log_name(start_offset)}"
        if path != old:
            disk.unlink(old)
        self._file = disk.open(path, os.O_RDWR)
        self.start_offset = start_offset
        self.batches = batches
        self._voter_batches = [each for each in batches if each.voters is not None]
        self._size_bytes = sum(len(batch.data) for batch in batches)
        self.durable_end_offset = self.end_offset

    def _create(self, start_offset: int, data: bytes) -> None:
        self._write_file(NEW, f"{ROOT}/{_log_name(start_offset)}", data)

    def _drop_snapshots(self, oldest: SnapshotId) -> None:
        for snapshot_id in [each for each in self.snapshots if each < oldest]:
            self._disk.unlink(f"{ROOT}/{snapshot_id.file_name}")
            del self.snapshots[snapshot_id]


def _log_name(start_offset: int) -> str:
    return f"{LOG_PREFIX}{start_offset:020d}"
