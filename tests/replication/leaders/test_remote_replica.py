"""When a follower counts as caught up: now at the leader's end, or since it asked for what was."""

from __future__ import annotations

import pytest

from kbroker.replication.leaders.remote_replica import NEVER_MS, NO_FETCH_EPOCH, RemoteReplica

LAG_MS = 100
EPOCH = 7


def fetch(
    replica: RemoteReplica, offset: int, *, leader_end: int, now_ms: int, log_start_offset: int = 0
) -> None:
    replica.fetched(
        fetch_offset=offset,
        log_start_offset=log_start_offset,
        leader_end=leader_end,
        broker_epoch=EPOCH,
        now_ms=now_ms,
    )


@pytest.mark.parametrize(("in_sync", "since_ms"), [(True, 7), (False, NEVER_MS)])
def test_at_the_start_only_the_isr_counts_as_caught_up(in_sync: bool, since_ms: int) -> None:
    replica = RemoteReplica(7, in_sync=in_sync)
    assert replica.last_caught_up_ms == since_ms
    assert replica.log_end_offset == replica.log_start_offset == -1
    assert replica.broker_epoch == NO_FETCH_EPOCH
    assert replica.is_caught_up(leader_end=5, now_ms=7 + LAG_MS, lag_max_ms=LAG_MS) is in_sync
    assert not replica.is_caught_up(leader_end=5, now_ms=8 + LAG_MS, lag_max_ms=LAG_MS)


def test_a_fetch_notes_where_the_follower_is() -> None:
    replica = RemoteReplica(0, in_sync=False)
    fetch(replica, 4, leader_end=9, now_ms=50, log_start_offset=2)
    assert (replica.log_end_offset, replica.log_start_offset) == (4, 2)
    assert replica.broker_epoch == EPOCH
    assert replica.last_caught_up_ms == NEVER_MS


@pytest.mark.parametrize("offset", [9, 10])
def test_at_the_leaders_end_it_is_caught_up_now(offset: int) -> None:
    replica = RemoteReplica(0, in_sync=False)
    fetch(replica, offset, leader_end=9, now_ms=50)
    assert replica.last_caught_up_ms == 50


def test_asking_for_what_was_the_end_is_being_caught_up_then() -> None:
    """Under steady writes a follower never is at the end, and is in sync all the same."""
    replica = RemoteReplica(0, in_sync=False)
    fetch(replica, 0, leader_end=10, now_ms=100)
    fetch(replica, 9, leader_end=20, now_ms=200)
    assert replica.last_caught_up_ms == NEVER_MS
    fetch(replica, 20, leader_end=30, now_ms=300)
    assert replica.last_caught_up_ms == 200
    fetch(replica, 30, leader_end=40, now_ms=400)
    assert replica.last_caught_up_ms == 300


def test_the_time_never_goes_back() -> None:
    replica = RemoteReplica(500, in_sync=True)
    fetch(replica, 10, leader_end=10, now_ms=100)
    assert replica.last_caught_up_ms == 500
    fetch(replica, 10, leader_end=20, now_ms=200)
    assert replica.last_caught_up_ms == 500


def test_an_idle_follower_at_the_end_stays_caught_up() -> None:
    replica = RemoteReplica(0, in_sync=False)
    fetch(replica, 9, leader_end=9, now_ms=50)
    later_ms = 50 + LAG_MS + 1
    assert replica.is_caught_up(leader_end=9, now_ms=later_ms, lag_max_ms=LAG_MS)
    assert replica.is_caught_up(leader_end=10, now_ms=later_ms - 1, lag_max_ms=LAG_MS)
    assert not replica.is_caught_up(leader_end=10, now_ms=later_ms, lag_max_ms=LAG_MS)


def test_a_session_that_goes_on_confirms_where_it_is() -> None:
    replica = RemoteReplica(0, in_sync=False)
    fetch(replica, 9, leader_end=9, now_ms=50)
    replica.was_at_end(700)
    replica.was_at_end(600)
    assert replica.last_caught_up_ms == 700


@pytest.mark.parametrize(("in_sync", "since_ms"), [(True, 90), (False, NEVER_MS)])
def test_a_reelected_leader_keeps_offsets_but_no_times(in_sync: bool, since_ms: int) -> None:
    replica = RemoteReplica(0, in_sync=True)
    fetch(replica, 4, leader_end=9, now_ms=50, log_start_offset=2)
    replica.leader_reelected(leader_end=9, now_ms=90, in_sync=in_sync)
    assert (replica.log_end_offset, replica.log_start_offset) == (4, 2)
    assert replica.last_caught_up_ms == since_ms
    fetch(replica, 9, leader_end=20, now_ms=100)
    assert replica.last_caught_up_ms == since_ms, "the last fetch was before the election"
