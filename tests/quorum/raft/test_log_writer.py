"""Appends and flushes: which batches a follower appends, and the result of a flush before a
truncation.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.quorum.raft.control import QuorumConfiguration, control_batch
from kbroker.quorum.raft.effects import AppendBatches, AppendRecords, Flush, Truncate
from kbroker.quorum.raft.log_writer import LogWriter
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.epoch_states import Unattached
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet
from tests.quorum.raft.replicas import voters_of


def writer(epoch: int = 5) -> tuple[LogWriter, QuorumState]:
    quorum = QuorumState(
        RaftConfig(ReplicaKey(1), "cluster"),
        log=RaftLog(end_offset=10, epochs=[(2, 0)]),
        control=ControlState(VoterSet()),
        high_watermark=0,
        random=Random(1),
    )
    quorum.state = Unattached(epoch, -1, None, None)
    return LogWriter(quorum), quorum


def batch(base_offset: int, epoch: int, count: int = 1) -> bytes:
    rows = [(1, None, b"v", ())] * count
    return bytes(build_batch(rows, base_offset=base_offset, partition_leader_epoch=epoch))


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


GOOD = batch(10, 3, 2)


@pytest.mark.parametrize(
    ("data", "appended", "is_whole"),
    [
        pytest.param(GOOD + batch(12, 5), GOOD + batch(12, 5), True, id="all"),
        pytest.param(b"", b"", True, id="nothing"),
        pytest.param(GOOD + batch(12, 6), GOOD, False, id="an epoch above the own"),
        pytest.param(GOOD + batch(12, 2), GOOD, False, id="an epoch below the last"),
        pytest.param(GOOD + batch(13, 3), GOOD, False, id="a gap"),
        pytest.param(batch(9, 3), b"", False, id="what is there"),
        pytest.param(GOOD + damaged(batch(12, 3)), GOOD, False, id="a wrong CRC"),
        pytest.param(GOOD + batch(12, 3)[:-1], GOOD, True, id="the last batch cut short"),
        pytest.param(GOOD + b"\0" * 100, GOOD, False, id="no batch"),
    ],
)
def test_only_batches_that_continue_the_log_are_appended(
    data: bytes, appended: bytes, is_whole: bool
) -> None:
    log_writer, quorum = writer()
    assert log_writer.append_batches(data, is_synced=True) == is_whole
    effects = quorum.take_effects()
    if not appended:
        assert effects == []
    else:
        end_offset = quorum.log.end_offset
        assert effects == [AppendBatches(10, end_offset, appended), Flush(end_offset)]


def test_records_that_come_during_a_flush_share_the_next() -> None:
    log_writer, quorum = writer()
    log_writer.append_records([b"a"])
    log_writer.append_records([b"b", b"c"])
    log_writer.append_records([b"d"])
    assert quorum.take_effects() == [
        AppendRecords(5, 10, [b"a"]),
        Flush(11),
        AppendRecords(5, 11, [b"b", b"c"]),
        AppendRecords(5, 13, [b"d"]),
    ]
    log_writer.flushed(11)
    assert quorum.log.flushed_offset == 11
    assert quorum.take_effects() == [Flush(14)]
    log_writer.flushed(14)
    assert log_writer.is_flushed
    assert quorum.take_effects() == []


def test_a_flush_from_before_a_truncation_says_nothing() -> None:
    log_writer, quorum = writer()
    log_writer.append_batches(batch(10, 3, 4), is_synced=True)
    log_writer.truncate(10)
    log_writer.append_batches(batch(10, 4, 4), is_synced=True)
    assert [type(each) for each in quorum.take_effects()] == [
        AppendBatches,
        Flush,
        Truncate,
        AppendBatches,
    ]
    log_writer.flushed(14)
    assert quorum.log.flushed_offset == 10
    assert quorum.take_effects() == [Flush(14)]
    log_writer.flushed(14)
    assert quorum.log.flushed_offset == 14


def test_voters_of_a_truncated_record_no_longer_count() -> None:
    log_writer, quorum = writer()
    records = QuorumConfiguration(1, tuple(voters_of(1, 2, 3))).records()
    data = control_batch(records, base_offset=10, epoch=3, timestamp_ms=1)
    log_writer.append_batches(bytes(data), is_synced=False)
    assert quorum.voters == voters_of(1, 2, 3)
    assert quorum.control.kraft_version == 1
    log_writer.truncate(10)
    assert quorum.voters == VoterSet()
    assert quorum.control.kraft_version == 0
    log_writer.truncate(10)
    assert sum(isinstance(each, Truncate) for each in quorum.take_effects()) == 1
