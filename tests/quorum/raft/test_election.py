"""Elections: one voter, and the rules that more voters will need."""

from __future__ import annotations

import pytest

from kbroker.model import ZERO_UUID, InvariantError
from kbroker.quorum.raft.election import NOBODY, Election, ElectionState, LogPosition, Role

DIRECTORY = b"d" * 16
LOG = LogPosition(3, 100)


def election(voters: set[int], state: ElectionState | None = None) -> Election:
    return Election(
        state or ElectionState(epoch=4), node_id=1, directory_id=DIRECTORY, voters=voters
    )


def test_a_single_voter_elects_itself() -> None:
    one = election({1})
    one.stand()
    assert one.state == ElectionState(epoch=5, voted_id=1, voted_directory_id=DIRECTORY)
    assert one.lead_if_elected()
    assert one.role is Role.LEADER
    assert one.state == ElectionState(epoch=5, leader_id=1)


@pytest.mark.parametrize(("voters", "needed"), [({1, 2}, 2), ({1, 2, 3}, 2), ({1, 2, 3, 4, 5}, 3)])
def test_a_majority_is_needed(voters: set[int], needed: int) -> None:
    one = election(voters)
    one.stand()
    others = sorted(voters - {1})
    votes = 1
    while votes < needed:
        assert one.role is Role.CANDIDATE
        assert not one.lead_if_elected()
        won = one.vote_received(others.pop(), 5)
        votes += 1
        assert won == (votes == needed)
    assert one.role is Role.LEADER


def test_votes_that_do_not_count() -> None:
    one = election({1, 2, 3})
    one.stand()
    assert not one.vote_received(2, 4)
    assert not one.vote_received(9, 5)
    assert not one.vote_received(1, 5)
    assert one.role is Role.CANDIDATE


def test_a_higher_epoch_ends_leadership() -> None:
    one = election({1})
    one.stand()
    one.lead_if_elected()
    assert not one.epoch_seen(4, 2)
    assert one.epoch_seen(9, 2)
    assert (one.role, one.state) == (Role.FOLLOWER, ElectionState(epoch=9, leader_id=2))
    assert not one.epoch_seen(9, 2)
    with pytest.raises(InvariantError, match="two leaders"):
        one.epoch_seen(9, 3)


def test_one_vote_per_epoch() -> None:
    one = election({1, 2, 3})
    assert one.grant(2, DIRECTORY, LOG, LOG)
    assert one.grant(2, DIRECTORY, LOG, LOG)
    assert not one.grant(2, ZERO_UUID, LOG, LOG)
    assert not one.grant(3, DIRECTORY, LOG, LOG)
    assert one.state.voted_id == 2


@pytest.mark.parametrize(
    ("log", "granted"),
    [
        (LogPosition(3, 100), True),
        (LogPosition(3, 101), True),
        (LogPosition(4, 0), True),
        (LogPosition(3, 99), False),
        (LogPosition(2, 1000), False),
    ],
)
def test_a_vote_only_for_a_log_that_is_not_behind(log: LogPosition, granted: bool) -> None:
    assert election({1, 2}).grant(2, DIRECTORY, log, LOG) is granted


def test_no_vote_where_there_is_a_leader_or_no_voter() -> None:
    assert not election({1, 2}, ElectionState(4, leader_id=1)).grant(2, DIRECTORY, LOG, LOG)
    assert not election({1, 2}).grant(3, DIRECTORY, LOG, LOG)
    assert election({1, 2}).state.voted_id == NOBODY


def test_a_node_that_is_no_voter_holds_no_election() -> None:
    with pytest.raises(InvariantError, match="not among the voters"):
        election({2})


def test_a_leader_does_not_stand() -> None:
    one = election({1})
    one.stand()
    one.lead_if_elected()
    with pytest.raises(InvariantError, match="stands for election"):
        one.stand()
