"""Control records of the metadata log: their bytes, and their configuration."""

from __future__ import annotations

import pytest

from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.batches.records import Record
from kbroker.protocol.codecs import codec
from kbroker.protocol.messages.stored.control_records import (
    LeaderChangeMessage,
    SnapshotHeaderRecord,
)
from kbroker.quorum.raft.control import (
    QuorumConfiguration,
    control_batch,
    control_kind,
    control_records,
    leader_change,
    snapshot_footer,
    snapshot_header,
)
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint

VOTERS = (
    Voter(1, b"d" * 16, (VoterEndpoint("CONTROLLER", "localhost", 9093),)),
    Voter(2, b"e" * 16, (VoterEndpoint("A", "h", 1), VoterEndpoint("B", "::1", 65535))),
)
CONFIGURATION = QuorumConfiguration(1, VOTERS)


def batch_of(configuration: QuorumConfiguration) -> list[Record]:
    batch = control_batch(configuration.records(), base_offset=5, epoch=7, timestamp_ms=99)
    return control_records(batch)


def test_a_configuration_survives_its_records() -> None:
    assert QuorumConfiguration().after(batch_of(CONFIGURATION)) == CONFIGURATION


def test_later_records_replace_earlier_ones_each_of_its_kind() -> None:
    fewer = QuorumConfiguration(1, VOTERS[:1])
    assert CONFIGURATION.after(batch_of(fewer)) == fewer
    (version, _) = batch_of(CONFIGURATION)
    assert QuorumConfiguration(0, VOTERS).after([version]) == CONFIGURATION


def test_a_static_quorum_has_no_records() -> None:
    assert QuorumConfiguration(0, ()).records() == []


def test_other_control_records_change_no_configuration() -> None:
    others = [leader_change(1, (1, 2), (1,)), snapshot_header(5), snapshot_footer()]
    records = control_records(control_batch(others, base_offset=0, epoch=1, timestamp_ms=1))
    assert CONFIGURATION.after(records) == CONFIGURATION
    assert [control_kind(record) for record in records] == [
        ControlType.LEADER_CHANGE,
        ControlType.SNAPSHOT_HEADER,
        ControlType.SNAPSHOT_FOOTER,
    ]


def test_the_batch_of_a_leader_change() -> None:
    batch = control_batch(
        [leader_change(2, (1, 2, 3), (2,))], base_offset=40, epoch=6, timestamp_ms=123
    )
    header = read_batch_header(batch)
    assert header.is_control and not header.is_transactional
    assert (header.base_offset, header.partition_leader_epoch) == (40, 6)
    assert (header.base_timestamp, header.producer_id) == (123, -1)
    (record,) = control_records(batch)
    assert record.key == b"\0\0\0\2"
    assert record.value is not None
    message, _ = codec.decode(LeaderChangeMessage, record.value, 0)
    assert message.leader_id == 2
    assert [voter.voter_id for voter in message.voters] == [1, 2, 3]
    assert [voter.voter_id for voter in message.granting_voters] == [2]


def test_a_snapshots_header_has_the_time_of_its_last_record() -> None:
    _, message = snapshot_header(77)
    assert isinstance(message, SnapshotHeaderRecord)
    assert message.last_contained_log_timestamp == 77


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (b"\0\0\0\5", ControlType.KRAFT_VERSION),
        (b"\0\0\0\6", ControlType.KRAFT_VOTERS),
        (b"\0\1\0\6", ControlType.KRAFT_VOTERS),
        (b"\0\0\0\6later", ControlType.KRAFT_VOTERS),
        (b"\0\0\0\x63", ControlType.UNKNOWN),
        (b"\0\0\xff\xff", ControlType.UNKNOWN),
        (b"\0\0\0", ControlType.UNKNOWN),
        (b"", ControlType.UNKNOWN),
        (None, ControlType.UNKNOWN),
    ],
)
def test_kinds(key: bytes | None, kind: ControlType) -> None:
    assert control_kind(Record(0, 0, key, b"", [])) is kind


def test_kinds_that_are_unknown_are_skipped() -> None:
    assert CONFIGURATION.after([Record(0, 0, b"\0\0\0\x63", b"\xff", [])]) == CONFIGURATION
