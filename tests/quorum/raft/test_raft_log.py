"""The log's epochs and snapshots: each answer of Kafka's KafkaRaftLog, and changes."""

from __future__ import annotations

import pytest

from kbroker.model import InvariantError
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, OffsetAndEpoch, SnapshotId
from kbroker.quorum.raft.raft_log import FetchPosition, PositionKind, RaftLog
from tests.quorum.raft.decisions import Case, cases


def log_of(case: Case) -> RaftLog:
    first_offset = (case["batches"] or case["snapshots"] or [[0]])[0][0]
    log = RaftLog(start_offset=first_offset, end_offset=first_offset)
    for base_offset, epoch, count in case["batches"]:
        log.append(base_offset=base_offset, end_offset=base_offset + count, epoch=epoch)
    for end_offset, epoch in case["snapshots"]:
        log.add_snapshot(SnapshotId(end_offset, epoch), 1)
    log.clean(case["logStartOffset"], list(log.snapshots))
    return log


def test_each_answer_of_kafkas_log() -> None:
    lines = cases("raft-fetch-positions")
    assert len(lines) == 200
    for number, case in lines:
        log = log_of(case)
        where = f"raft-fetch-positions line {number}"
        assert log.end == (case["endOffset"], case["lastFetchedEpoch"]), where
        for name, snapshot_id in (
            ("earliestSnapshotId", log.earliest_snapshot_id),
            ("latestSnapshotId", log.latest_snapshot_id),
        ):
            assert snapshot_id == (case[name] and tuple(case[name])), where
        for index, asked in enumerate(case["asked"]):
            where = f"raft-fetch-positions line {number} question {index}: {asked}"
            found = log.validate_position(asked["offset"], asked["epoch"])
            assert found.kind.value == asked["kind"], where
            assert list(found.position) == asked["offsetAndEpoch"], where
            end = log.end_offset_for_epoch(asked["epoch"])
            assert list(end) == asked["endOffsetForEpoch"], where


def test_an_empty_replica_is_sent_to_a_snapshot_but_not_to_the_bootstrap_one() -> None:
    log = RaftLog(end_offset=10, epochs=[(1, 0)], snapshots={BOOTSTRAP_ID: 5})
    assert log.fetch_position(0, 0).kind is PositionKind.VALID
    log.add_snapshot(SnapshotId(5, 1), 7)
    assert log.fetch_position(0, 0) == FetchPosition(PositionKind.SNAPSHOT, OffsetAndEpoch(5, 1))
    assert log.validate_position(0, 0).kind is PositionKind.VALID


def test_truncation_forgets_epochs_and_what_was_flushed() -> None:
    log = RaftLog(end_offset=10, epochs=[(1, 0), (3, 4), (5, 8)])
    log.truncate(8)
    assert (log.end, log.flushed_offset) == ((8, 3), 8)
    log.append(base_offset=8, end_offset=12, epoch=4)
    assert log.end_offset_for_epoch(3) == (8, 3)
    assert (log.end, log.flushed_offset) == ((12, 4), 8)


def test_a_snapshot_replaces_the_log() -> None:
    log = RaftLog(end_offset=10, epochs=[(1, 0)], snapshots={SnapshotId(4, 1): 1})
    log.install(SnapshotId(30, 6), 99)
    assert (log.start_offset, log.end, log.flushed_offset) == (30, (30, 6), 30)
    assert log.snapshots == {SnapshotId(30, 6): 99}


@pytest.mark.parametrize(
    ("end_offset", "epoch", "is_covered"),
    [
        pytest.param(8, 3, True, id="its last record is in the log"),
        pytest.param(10, 5, True, id="it ends where the log ends"),
        pytest.param(2, 9, True, id="the log begins after it"),
        pytest.param(11, 5, False, id="it ends after the log"),
        pytest.param(8, 4, False, id="the log has another record there"),
        pytest.param(
            10, 4, False, id="the log has a later epoch, but is shorter by committed records"
        ),
    ],
)
def test_whether_the_log_covers_a_snapshot(end_offset: int, epoch: int, is_covered: bool) -> None:
    log = RaftLog(start_offset=2, end_offset=10, epochs=[(1, 2), (3, 4), (5, 8)])
    assert log.covers(SnapshotId(end_offset, epoch)) is is_covered


@pytest.mark.parametrize(
    ("base_offset", "end_offset", "epoch"), [(9, 11, 3), (11, 12, 3), (10, 10, 3), (10, 11, 2)]
)
def test_a_batch_must_continue_the_log(base_offset: int, end_offset: int, epoch: int) -> None:
    log = RaftLog(end_offset=10, epochs=[(3, 0)])
    with pytest.raises(InvariantError, match="does not continue"):
        log.append(base_offset=base_offset, end_offset=end_offset, epoch=epoch)


def test_retention_moves_the_start_and_forgets_what_is_before() -> None:
    log = RaftLog(end_offset=10, epochs=[(1, 0), (3, 4), (5, 8)])
    for offset, epoch in ((3, 1), (6, 3)):
        log.add_snapshot(SnapshotId(offset, epoch), 1)
    log.clean(6, [SnapshotId(6, 3), SnapshotId(7, 3)])
    assert (log.start_offset, list(log.snapshots)) == (6, [SnapshotId(6, 3)])
    assert log.end_offset_for_epoch(3) == (8, 3)
    assert log.fetch_position(5, 3).kind is PositionKind.SNAPSHOT
