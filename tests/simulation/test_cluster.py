"""Simulated nodes are started, killed, paused and stopped, and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

from kbroker.client.cluster import Client
from kbroker.client.producer import Producer, ProducerConfig
from kbroker.model import InvariantError, TopicPartition
from kbroker.quorum.formatting.format import METADATA_FOLDER
from kbroker.simulation.cluster import DRAWN_SETTINGS, RESTART_S
from kbroker.testing.cluster_state import create_topics, partition_states, unhealed
from tests.simulation.worlds import SimulatedWorld

EVENTS = TopicPartition("events", 0)


async def begin(world: SimulatedWorld) -> None:
    """All nodes are there, and `events` has one partition on three of them."""
    for node in world.cluster.nodes.values():
        node.start()
    await create_topics(world.bootstrap, {"events": 1}, 3)


async def write(world: SimulatedWorld, value: bytes, *, timeout_s: float = 3) -> int:
    """Produce a record. Returns its offset."""
    async with (
        Client(world.bootstrap, timeout_s=timeout_s) as client,
        Producer(client, ProducerConfig(idempotent=True)) as producer,
    ):
        # Without a timestamp it would be the time of the machine that runs the test.
        sent = await producer.send_and_wait("events", value, partition=0, timestamp_ms=1)
        return sent.offset


async def healed(world: SimulatedWorld) -> None:
    for _ in range(60):
        if not unhealed(await partition_states(world.bootstrap), 3):
            return
        await asyncio.sleep(1)
    raise AssertionError("not healed")


async def leader(world: SimulatedWorld) -> int:
    async with Client(world.bootstrap, timeout_s=3) as client:
        return await client.leader(EVENTS)


def test_a_killed_leader_is_replaced_and_comes_back_with_its_data(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    async def script() -> None:
        await begin(world)
        assert await write(world, b"one") == 0
        first = world.cluster.nodes[await leader(world)]
        first.kill()
        assert not first.is_running
        assert await write(world, b"two") == 1
        assert await leader(world) != first.id
        first.start()
        await healed(world)
        assert first.lives == 2
        logs = {node.log_bytes(str(EVENTS)) for node in world.cluster.nodes.values()}
        assert len(logs) == 1 and b"one" in min(logs) and b"two" in min(logs)

    world.run(script)


def test_a_node_that_was_stopped_in_its_start_is_started_once(tmp_path: Path) -> None:
    """Its failed start is not tried again beside the new process, whose directories are locked."""
    world = SimulatedWorld(tmp_path)

    async def script() -> None:
        first, *others = world.cluster.nodes.values()
        first.start()
        await asyncio.sleep(0.5)
        await first.stop()
        first.kill()
        first.start()
        for node in others:
            node.start()
        await create_topics(world.bootstrap, {"events": 1}, 3)
        await asyncio.sleep(2 * RESTART_S)
        assert first.lives == 2
        await healed(world)

    world.run(script)


def test_a_node_that_fails_in_its_start_is_reported(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    async def script() -> None:
        first = world.cluster.nodes[1]
        first.start()
        await asyncio.sleep(0.5)  # it waits for the other controllers
        assert first._broker is not None
        first._context.run(first._broker.fail, InvariantError("broken for the test"))
        await asyncio.sleep(0.5)
        assert world.failures == ["node 1: InvariantError('broken for the test')"]
        world.failures.clear()

    world.run(script)


def test_a_record_waits_for_a_dead_follower_until_it_is_fenced(tmp_path: Path) -> None:
    """Not for replica.lag.time.max.ms, which is longer here, and not for another record."""
    with mock.patch.dict(DRAWN_SETTINGS, {"replica.lag.time.max.ms": ("30000",)}):
        world = SimulatedWorld(tmp_path)

    async def script() -> None:
        await begin(world)
        await write(world, b"one")
        await healed(world)
        leader_id = await leader(world)
        follower = next(node for node in world.cluster.nodes.values() if node.id != leader_id)
        loop = asyncio.get_running_loop()
        follower.kill()
        began_s = loop.time()
        await write(world, b"two", timeout_s=30)
        assert loop.time() - began_s < 5, "broker.session.timeout.ms is 3 s"

    world.run(script)


def test_a_paused_leader_is_replaced(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    async def script() -> None:
        await begin(world)
        first = world.cluster.nodes[await leader(world)]
        first.pause()
        assert not first.is_running
        await asyncio.sleep(6)
        assert await write(world, b"one") == 0
        first.resume()
        await healed(world)
        assert first.lives == 1

    world.run(script)


def test_a_node_that_stops_in_order_hands_over_its_leaderships(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    async def script() -> None:
        await begin(world)
        first = world.cluster.nodes[await leader(world)]
        await first.stop()
        assert not first.is_running
        assert await leader(world) != first.id
        first.start()
        await healed(world)

    world.run(script)


def test_more_than_three_nodes_have_three_controllers(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, nodes=5)
    configs = [node.config for node in world.cluster.nodes.values()]
    assert [config.is_controller for config in configs] == [True] * 3 + [False] * 2
    assert all(config.is_broker for config in configs)

    async def script() -> None:
        await begin(world)
        await healed(world)
        assert world.cluster.nodes[5].log_bytes(METADATA_FOLDER)

    world.run(script)
