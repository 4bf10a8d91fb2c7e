"""Control batches of the metadata log: leader change, snapshot header and footer, kraft.version and
voters.

Only the quorum reads them; they are never passed to the metadata. Layout: key int16 version 0,
int16 type; value the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import ControlType, control_key, control_type
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.codecs import codec
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.stored.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint, endpoint_fields


class QuorumConfiguration(msgspec.Struct, frozen=True):
    """The quorum's configuration in control records: kraft.version and, from version 1 on, the
    voters.
    """

    kraft_version: int = 0
    voters: tuple[Voter, ...] = ()

    def after(self, records: Sequence[Record]) -> QuorumConfiguration:
        """The configuration after one control batch."""
        kraft_version, voters = self.kraft_version, self.voters
        for record in records:
            match quorum_record(record):
                case KRaftVersionRecord() as version:
                    kraft_version = version.k_raft_version
                case VotersRecord() as found:
                    voters = voters_of_record(found)
        return QuorumConfiguration(kraft_version, voters)

    def records(self) -> list[tuple[ControlType, Message]]:
        """The control records with this configuration; none for a static quorum."""
        if self.kraft_version == 0:
            return []
        version = KRaftVersionRecord(version=0, k_raft_version=self.kraft_version)
        return [
            (ControlType.KRAFT_VERSION, version),
            (ControlType.KRAFT_VOTERS, voters_record(self.voters)),
        ]


def voters_of_record(record: VotersRecord) -> tuple[Voter, ...]:
    """The voters of a Voters record."""
    return tuple(
        Voter(
            voter.voter_id,
            voter.voter_directory_id,
            VoterEndpoint.all_of(voter.endpoints),
            (
                voter.k_raft_version_feature.min_supported_version,
                voter.k_raft_version_feature.max_supported_version,
            ),
        )
        for voter in record.voters
    )


def voters_record(voters: Iterable[Voter]) -> VotersRecord:
    """The Voters record of a voter set."""
    return VotersRecord(
        version=0,
        voters=[
            VotersRecord.Voter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=endpoint_fields(VotersRecord.Endpoint, voter.endpoints),
                k_raft_version_feature=VotersRecord.KRaftVersionFeature(
                    min_supported_version=voter.supported_versions[0],
                    max_supported_version=voter.supported_versions[1],
                ),
            )
            for voter in voters
        ],
    )


def control_batch(
    records: Sequence[tuple[ControlType, Message]],
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """A control batch of these records, all in version 0."""
    rows: list[
        tuple[int | None, bytes | None, bytes | None, Sequence[tuple[bytes, bytes | None]]]
    ] = [
        (timestamp_ms, control_key(kind), codec.encode(message, 0), ()) for kind, message in records
    ]
    return build_batch(rows, base_offset=base_offset, partition_leader_epoch=epoch, is_control=True)


def leader_change(
    leader_id: int, voter_ids: Sequence[int], granting_ids: Sequence[int]
) -> tuple[ControlType, Message]:
    """The record at the start of each epoch. granting_ids: the voters that elected the leader."""
    message = LeaderChangeMessage(
        version=0,
        leader_id=leader_id,
        voters=[LeaderChangeMessage.Voter(voter_id=voter) for voter in voter_ids],
        granting_voters=[LeaderChangeMessage.Voter(voter_id=voter) for voter in granting_ids],
    )
    return ControlType.LEADER_CHANGE, message


def snapshot_header(last_contained_timestamp_ms: int) -> tuple[ControlType, Message]:
    """The first record of a snapshot."""
    header = SnapshotHeaderRecord(
        version=0, last_contained_log_timestamp=last_contained_timestamp_ms
    )
    return ControlType.SNAPSHOT_HEADER, header


def snapshot_footer() -> tuple[ControlType, Message]:
    """The last record of a snapshot; a file without it was not finished."""
    return ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord(version=0)


def control_kind(record: Record) -> ControlType:
    """The type of a control record; UNKNOWN, which is skipped, for one of a later release."""
    try:
        return control_type(record)
    except KafkaError:
        return ControlType.UNKNOWN


def quorum_record(record: Record) -> KRaftVersionRecord | VotersRecord | None:
    """The content of a record that changes the quorum; None for any other control record."""
    kind, value = control_kind(record), record.value or b""
    if kind is ControlType.KRAFT_VERSION:
        return codec.decode(KRaftVersionRecord, value, 0)[0]
    if kind is ControlType.KRAFT_VOTERS:
        return codec.decode(VotersRecord, value, 0)[0]
    return None


def control_records(batch: bytes | bytearray | memoryview) -> list[Record]:
    """The records of a control batch."""
    return list(iter_records(batch))
