"""What a simulated node has in its metadata log, as the checks see it: batches, voters, snapshots,
and how much of it a loss of power leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kbroker.protocol.batches.batch_header import check_crc, iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import KafkaError
from kbroker.quorum.disk.snapshots import Snapshot
from kbroker.quorum.raft.control import QuorumConfiguration, control_records
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import VoterSet


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

    @cached_property
    def voters(self) -> VoterSet:
        """Those that the snapshot names."""
        return VoterSet(self.content.configuration.voters)


class LogMirror:
    """Batches from start_offset on. durable_end_offset: what a loss of power leaves, at least."""

    def __init__(self, known: Batches) -> None:
        self.known = known
        self.start_offset = 0
        self.batches: list[LogBatch] = []
        self._voter_batches: list[LogBatch] = []
        self.snapshots: dict[SnapshotId, StoredSnapshot] = {}
        self.durable_end_offset = 0
        self.truncation_count = 0

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
            if snapshot_id.end_offset <= self.start_offset:
                voters = self.snapshots[snapshot_id].voters
                if voters:
                    return voters
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

    # -- changes ----------------------------------------------------------------------------------

    def add(self, batches: list[LogBatch]) -> None:
        """These batches continue the log."""
        for batch in batches:
            assert batch.base_offset == self.end_offset, "batches with a gap"
            self.batches.append(batch)
            if batch.voters is not None:
                self._voter_batches.append(batch)

    def cut(self, end_offset: int) -> list[LogBatch]:
        """Everything from end_offset on is removed, and returned, the last batch first."""
        removed = []
        while self.batches and self.batches[-1].base_offset >= end_offset:
            removed.append(self.batches.pop())
        while self._voter_batches and self._voter_batches[-1].base_offset >= end_offset:
            self._voter_batches.pop()
        assert self.end_offset <= end_offset, f"{end_offset} is within a batch"
        self.truncation_count += 1
        self.durable_end_offset = min(self.durable_end_offset, self.end_offset)
        return removed

    def begin_at(self, start_offset: int) -> None:
        """What is before start_offset was deleted."""
        self.start_offset = start_offset
        self.batches = [each for each in self.batches if each.base_offset >= start_offset]
        self._voter_batches = [each for each in self.batches if each.voters is not None]

    def replace(self, start_offset: int, batches: list[LogBatch]) -> None:
        """The log is these batches, all of them durable."""
        self.truncation_count += 1
        self.start_offset = start_offset
        self.batches = batches
        self._voter_batches = [each for each in batches if each.voters is not None]
        self.durable_end_offset = self.end_offset
