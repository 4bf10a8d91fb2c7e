"""The core as a script: events in, effects out, in order."""

from __future__ import annotations

import pytest

from kbroker.model import InvariantError
from kbroker.quorum.raft.election import ElectionState, LogPosition
from kbroker.quorum.raft.single_voter import (
    AppendLeaderChange,
    AppendRecords,
    Commit,
    Flush,
    PersistState,
    Raft,
    RequestVotes,
    StepDown,
)

DIRECTORY = b"d" * 16


def raft(
    voters: set[int], *, state: ElectionState | None = None, log: LogPosition | None = None
) -> Raft:
    return Raft(
        state or ElectionState(),
        log or LogPosition(0, 0),
        node_id=1,
        directory_id=DIRECTORY,
        voters=voters,
    )


def leader(voters: set[int]) -> Raft:
    core = raft(voters)
    core.start()
    for voter in sorted(voters - {1}):
        core.vote_received(voter, 1)
    core.leader_change_appended(1)
    return core


def test_the_state_is_on_disk_before_the_first_batch() -> None:
    core = raft({1}, state=ElectionState(epoch=4), log=LogPosition(4, 50))
    assert core.start() == [
        PersistState(ElectionState(epoch=5, leader_id=1)),
        AppendLeaderChange(epoch=5, base_offset=50, voters=(1,)),
    ]
    assert core.leader_change_appended(3) == [Flush(53)]
    assert core.flushed(53) == [Commit(53)]
    assert (core.epoch, core.next_offset, core.high_watermark) == (5, 53, 53)


def test_an_epoch_is_never_below_that_of_the_log() -> None:
    core = raft({1}, state=ElectionState(epoch=2, voted_id=1), log=LogPosition(7, 50))
    assert core.start()[0] == PersistState(ElectionState(epoch=8, leader_id=1))


def test_what_is_proposed_during_a_flush_shares_the_next() -> None:
    core = leader({1})
    assert core.propose([b"a", b"b"]) == [AppendRecords(1, 1, [b"a", b"b"])]
    assert core.propose([b"c"]) == [AppendRecords(1, 3, [b"c"])]
    assert core.flushed(1) == [Commit(1), Flush(4)]
    assert core.flushed(4) == [Commit(4)]
    assert core.propose([b"d"]) == [AppendRecords(1, 4, [b"d"]), Flush(5)]


def test_several_voters_commit_by_majority_and_only_from_their_epoch_on() -> None:
    core = raft({1, 2, 3}, log=LogPosition(0, 10))
    assert core.start() == [
        PersistState(ElectionState(epoch=1, voted_id=1, voted_directory_id=DIRECTORY)),
        RequestVotes(epoch=1, voters=(2, 3), log=LogPosition(0, 10)),
    ]
    assert core.vote_received(2, 0) == []
    assert core.vote_received(3, 1) == [
        PersistState(ElectionState(epoch=1, leader_id=1)),
        AppendLeaderChange(epoch=1, base_offset=10, voters=(1, 2, 3)),
    ]
    core.leader_change_appended(1)
    assert core.flushed(11) == []
    assert core.acked(2, 10) == []
    assert core.acked(9, 11) == []
    assert core.acked(2, 11) == [Commit(11)]
    assert core.acked(3, 11) == []


def test_a_leader_that_is_overtaken_steps_down() -> None:
    core = leader({1})
    assert core.epoch_seen(1) == []
    assert core.epoch_seen(3, 2) == [
        PersistState(ElectionState(epoch=3, leader_id=2)),
        StepDown(3),
    ]
    assert core.flushed(1) == []
    with pytest.raises(InvariantError, match="without leading"):
        core.propose([b"x"])


def test_nothing_cannot_be_proposed() -> None:
    with pytest.raises(InvariantError, match="0 records"):
        leader({1}).propose([])
