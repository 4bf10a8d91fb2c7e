"""The wall clock is set, by a second or by days, forward or back: no member of any kind of group is
removed because of it, and no partition is reassigned. (Classic groups: `classic/test_group`.)
"""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.consumers import settle as settle_consumers
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.group.streams_members import StreamsThread
from tests.coordinator.group.streams_members import settle as settle_threads
from tests.coordinator.simulation import World
from tests.sim.timers import CLOCKS_AHEAD_MS

ROUNDS = 60
"""Seconds: longer than any session."""


@pytest.mark.parametrize("ahead_ms", CLOCKS_AHEAD_MS)
def test_consumers(ahead_ms: int) -> None:
    world = World()
    consumers = [Consumer(world, name) for name in "ab"]
    settle_consumers(world, consumers)
    epochs = [consumer.epoch for consumer in consumers]
    world.timers.wall_jump_ms = ahead_ms
    for _ in range(ROUNDS):
        world.timers.advance(1_000)
        for consumer in consumers:
            consumer.poll()
            assert consumer.error is ErrorCode.NONE
    assert [consumer.epoch for consumer in consumers] == epochs


@pytest.mark.parametrize("ahead_ms", CLOCKS_AHEAD_MS)
def test_streams(ahead_ms: int) -> None:
    world = World()
    threads = [StreamsThread(world, name) for name in "ab"]
    settle_threads(world, threads)
    epochs = [thread.epoch for thread in threads]
    world.timers.wall_jump_ms = ahead_ms
    for _ in range(ROUNDS):
        world.timers.advance(1_000)
        for thread in threads:
            thread.poll()
            assert thread.error is ErrorCode.NONE
    assert [thread.epoch for thread in threads] == epochs


@pytest.mark.parametrize("ahead_ms", CLOCKS_AHEAD_MS)
def test_readers_of_share_groups(ahead_ms: int) -> None:
    shares = Shares()
    epoch = shares.join("m").member_epoch
    for _ in range(5):
        shares.world.timers.advance(2_000)
        epoch = shares.ask(member_id="m", member_epoch=epoch).member_epoch
    shares.world.timers.wall_jump_ms = ahead_ms
    for _ in range(ROUNDS):
        shares.world.timers.advance(1_000)
        answer = shares.ask(member_id="m", member_epoch=epoch)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, epoch)
