"""The control records of the log by offset: the newest voters and kraft.version take effect at
once, committed or not; truncation restores earlier ones. KIP-853. Kafka's
KRaftControlRecordStateMachine.
"""

from __future__ import annotations

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.control_records import KRaftVersionRecord, VotersRecord
from kbroker.quorum.raft.control import (
    QuorumConfiguration,
    control_records,
    quorum_record,
    voters_of_record,
)
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_history import History, VoterHistory
from kbroker.quorum.raft.voters.voter_set import VoterSet


class ControlState:
    """Voters and kraft.version of one node's log. static_voters: those of
    controller.quorum.voters.
    """

    __slots__ = ("_kraft_versions", "voters")

    def __init__(self, static_voters: VoterSet) -> None:
        self.voters = VoterHistory(static_voters)
        self._kraft_versions: History[int] = History()

    @property
    def kraft_version(self) -> int:
        """The newest kraft.version; 0 before the first record of one."""
        return self._kraft_versions.newest(0)

    def configuration_at(self, offset: int) -> QuorumConfiguration:
        """kraft.version and voters as of offset (inclusive), for a snapshot that ends after it."""
        voters = self.voters.value_at(offset)
        return QuorumConfiguration(
            self._kraft_versions.value_at(offset) or 0, () if voters is None else tuple(voters)
        )

    def load_snapshot(self, snapshot_id: SnapshotId, configuration: QuorumConfiguration) -> None:
        """Start from a snapshot's configuration, with the offset before the snapshot's end."""
        self.voters.clear()
        self._kraft_versions.clear()
        if configuration.kraft_version:
            offset = snapshot_id.end_offset - 1
            self._kraft_versions.add(offset, configuration.kraft_version)
            self.voters.add(offset, VoterSet(configuration.voters))

    def add_batch(self, batch: bytes | memoryview) -> None:
        """Replay one control batch of the log."""
        decoded = [(each.offset, quorum_record(each)) for each in control_records(batch)]
        for offset, record in decoded:  # decode all before any takes effect
            if record is not None:
                self.add_record(offset, record)

    def add_record(self, offset: int, record: Message) -> None:
        """Replay one record of the log; records that do not change the quorum are ignored."""
        match record:
            case KRaftVersionRecord():
                self._kraft_versions.add(offset, record.k_raft_version)
            case VotersRecord():
                self.voters.add(offset, VoterSet(voters_of_record(record)))

    def truncate_new(self, end_offset: int) -> None:
        """The log was truncated to end_offset."""
        self.voters.truncate_new(end_offset)
        self._kraft_versions.truncate_new(end_offset)

    def truncate_old(self, start_offset: int) -> None:
        """The log starts at start_offset."""
        self.voters.truncate_old(start_offset)
        self._kraft_versions.truncate_old(start_offset)
