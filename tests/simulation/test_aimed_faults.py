"""Each aimed fault has its effect, and leaves a cluster that heals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from kbroker.simulation import aimed_faults
from kbroker.simulation.aimed_faults import Aim, AimedFaults
from kbroker.simulation.run import Options
from kbroker.testing.cluster_state import create_topics, partition_states, unhealed
from tests.simulation.worlds import SimulatedWorld

SEEDS = {Aim.SUCCESSION: 3, Aim.DEPOSED: 2}
"""Of the aims that need no clients."""


@pytest.mark.parametrize("aim", SEEDS)
def test_an_aim_ends_and_the_cluster_heals(aim: Aim, tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, seed=SEEDS[aim])
    notes: list[str] = []

    class OneAim(Random):
        """Draws the aim first."""

        def choice(self, options):  # type: ignore[no-untyped-def]  # as of `Random`
            return aim if aim in options else super().choice(options)

    faults = AimedFaults(world.cluster, world.network, OneAim(1), notes.append)

    async def script() -> None:
        for node in world.cluster.nodes.values():
            node.start()
        await create_topics(world.bootstrap, {"events": 2}, 3)
        await asyncio.sleep(3)
        before = await partition_states(world.bootstrap)
        await faults.run()
        assert all(node.is_running for node in world.cluster.nodes.values())
        for _ in range(60):
            await asyncio.sleep(1)
            states = await partition_states(world.bootstrap)
            if states.keys() >= before.keys() and not unhealed(states, 3):
                return
        raise AssertionError("not healed")

    world.run(script)
    assert faults.counts == {aim.value: 1}
    assert not any("given up" in note for note in notes), notes
    lives = sorted(node.lives for node in world.cluster.nodes.values())
    assert lives == ([1, 2, 2] if aim is Aim.SUCCESSION else [1, 1, 1])


def test_an_aim_without_partitions_is_given_up(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    notes: list[str] = []
    faults = AimedFaults(world.cluster, world.network, Random(1), notes.append)

    async def script() -> None:
        for node in world.cluster.nodes.values():
            node.start()
        await asyncio.sleep(aimed_faults.DEPOSED_S)
        await faults.run()

    world.run(script)
    assert "given up" in notes[-1]


def test_some_seeds_are_aimed() -> None:
    assert [seed for seed in range(20) if Options(seed=seed).is_aimed] == [3, 11, 19]
    assert not Options(seed=3, nodes=2).is_aimed
