"""What the simulated node's files keep: a torn tail is cut, what was synced stays."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.quorum.disk.snapshots import build_snapshot
from kbroker.quorum.raft.control import QuorumConfiguration, control_batch
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voters.voter_set import Voter, VoterSet
from tests.sim.disk import SimDisk
from tests.sim.quorum_log import QuorumLog
from tests.sim.quorum_mirror import Batches

SEEDS = range(30)
VOTERS = VoterSet([Voter(1, b"1" * 16), Voter(2, b"2" * 16)])


def batch(base_offset: int, *, epoch: int = 1) -> bytes:
    records = [(0, None, b"%d" % (base_offset + index), ()) for index in range(2)]
    return bytes(build_batch(records, base_offset=base_offset, partition_leader_epoch=epoch))


def voters_batch(base_offset: int) -> bytes:
    records = QuorumConfiguration(1, tuple(VOTERS)).records()
    return bytes(control_batch(records, base_offset=base_offset, epoch=1, timestamp_ms=0))


def log_on(disk: SimDisk) -> QuorumLog:
    log = QuorumLog(disk, Batches())
    log.open()
    return log


def reopened(disk: SimDisk, *, power_loss: bool) -> QuorumLog:
    disk.restart(power_loss=power_loss)
    return log_on(disk)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_of_power_keeps_what_was_synced_and_a_prefix_of_the_rest(seed: int) -> None:
    disk = SimDisk(Random(seed))
    log = log_on(disk)
    for offset in (0, 2, 4):
        log.append(batch(offset), offset)
    end = log.begin_flush()
    log.append(batch(6), 6)
    assert log.durable_end_offset == 0
    end()
    assert log.durable_end_offset == 6
    log.append(batch(8), 8)
    again = reopened(disk, power_loss=True)
    assert again.end_offset in (6, 8, 10)
    assert again.batches == log.batches[: len(again.batches)]
    assert again.durable_end_offset == again.end_offset


def test_a_kill_loses_nothing() -> None:
    disk = SimDisk(Random(1))
    log = log_on(disk)
    log.append(batch(0) + batch(2), 0)
    log.write_state(ElectionState(3, 1, 2, b"2" * 16))
    again = reopened(disk, power_loss=False)
    assert (again.end_offset, again.state) == (4, ElectionState(3, 1, 2, b"2" * 16))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_truncation_is_durable_and_a_flush_before_it_says_nothing_of_what_follows(
    seed: int,
) -> None:
    disk = SimDisk(Random(seed))
    log = log_on(disk)
    log.append(batch(0) + batch(2) + voters_batch(4), 0)
    assert log.voters() == VOTERS
    end = log.begin_flush()
    log.truncate(2)
    assert log.voters() is None
    log.append(batch(2, epoch=2), 2)
    end()
    assert log.durable_end_offset == 2 and log.epochs() == [(1, 0), (2, 2)]
    again = reopened(disk, power_loss=True)
    assert again.epochs() in ([(1, 0)], [(1, 0), (2, 2)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_that_was_installed_survives_and_replaces_the_log(seed: int) -> None:
    disk = SimDisk(Random(seed))
    log = log_on(disk)
    log.append(batch(0), 0)
    snapshot_id = SnapshotId(10, 3)
    data = b"".join(
        build_snapshot(
            QuorumConfiguration(1, tuple(VOTERS)), [[b"x"]], epoch=3,
            last_contained_timestamp_ms=0, now_ms=0,
        )
    )  # fmt: skip
    log.write_part(snapshot_id, 0, data[:50])
    log.write_part(snapshot_id, 50, data[50:])
    assert log.finish_part(snapshot_id).content.records == [b"x"]
    log.install(snapshot_id)
    again = reopened(disk, power_loss=True)
    assert (again.start_offset, again.end_offset, again.voters()) == (10, 10, VOTERS)
    again.append(batch(10, epoch=3), 10)
    assert again.read(10, 1) == batch(10, epoch=3) and again.epoch_before(12) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_vote_that_was_written_is_there_after_a_loss_of_power(seed: int) -> None:
    disk = SimDisk(Random(seed))
    log = log_on(disk)
    for epoch in range(1, 6):
        log.write_state(ElectionState(epoch, -1, epoch % 3))
    assert reopened(disk, power_loss=True).state == ElectionState(5, -1, 2)
