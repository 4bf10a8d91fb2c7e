"""What a controller logs when the metadata quorum has no majority, and when it has one again."""

from __future__ import annotations

import pytest

from kbroker.node.leader_watch import CHECK_MS, LeaderWatch
from kbroker.quorum.status import QuorumStatus
from tests.sim.timers import SimTimers

FOLLOWER = QuorumStatus("follower", 2, 7, -1, 100, 100, 7, 3)


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self.caplog = caplog
        self.timers = SimTimers()
        self.status: QuorumStatus | None = None
        self.watch = LeaderWatch(
            lambda: self.status,
            self.timers,
            node_id=1,
            warn_after_ms=8_000,
            controllers="controller.quorum.bootstrap.servers=a:1",
        )
        self.watch.start()

    def lines(self, seconds: int, *states: str, commits: int = 0) -> list[str]:
        """Those of so many seconds, in which the replica goes through the states again and again
        and so many records are committed between two checks.
        """
        self.caplog.clear()
        for check in range(seconds * 1000 // CHECK_MS):
            if states:
                status = self.status or FOLLOWER
                high_watermark = status.high_watermark + commits
                state = states[check % len(states)]
                self.status = status._replace(state=state, high_watermark=high_watermark)
            self.timers.advance(CHECK_MS)
        return [record.getMessage() for record in self.caplog.records]


def test_a_follower_that_looks_for_a_leader_in_vain_says_so_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It follows the same dead leader of the same epoch between two rounds of pre-votes."""
    world = World(caplog)
    assert not world.lines(20, "follower")
    lines = world.lines(100, *["prospective"] * 3, *["follower"] * 4)
    assert [line.partition("(")[0] for line in lines] == [
        f"Node 1: no leader of the metadata quorum has answered for {seconds} s "
        for seconds in (8, 16, 32, 64)
    ]
    assert lines[0].endswith(
        "(epoch 7, voters known here: 3, controller.quorum.bootstrap.servers=a:1): unless a "
        "majority of the voters run and reach one another, metadata cannot change"
    )
    (again,) = world.lines(20, "follower", commits=1)
    assert again.startswith("Node 1: the metadata quorum works again after 100 s: node 2 leads it")


def test_an_election_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    assert not world.lines(10)  # the quorum has not started
    assert not world.lines(7, "unattached", "prospective", "candidate")
    assert not world.lines(20, "leader", commits=1)
    assert not world.lines(7, "resigned", "unattached")
    assert not world.lines(20, "follower", commits=1)


def test_a_quorum_that_commits_nothing_works(caplog: pytest.LogCaptureFixture) -> None:
    """metadata.max.idle.interval.ms=0"""
    world = World(caplog)
    for state in ("follower", "observer", "leader"):
        assert not world.lines(100, state)


def test_a_node_that_never_finds_the_others_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    assert len(world.lines(10, "unattached", "prospective")) == 1


def test_nothing_is_said_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    world.lines(1, "prospective")
    world.watch.close()
    assert not world.lines(100, "prospective")
