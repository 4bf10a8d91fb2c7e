"""Random faults, and their end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from kbroker.simulation.faults import MOST_AT_ONCE, Faults, Kind
from kbroker.simulation.network import Conditions
from kbroker.testing.cluster_state import create_topics, partition_states, unhealed
from tests.simulation.worlds import SimulatedWorld


def test_faults_strike_and_end(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    notes: list[str] = []
    faults = Faults(world.cluster, world.network, Random(3), notes.append)

    async def script() -> None:
        for node in world.cluster.nodes.values():
            node.start()
        await create_topics(world.bootstrap, {"events": 1}, 3)
        task = asyncio.ensure_future(faults.run())
        worst = 0
        for _ in range(100):
            await asyncio.sleep(0.3)
            worst = max(worst, sum(not n.is_running for n in world.cluster.nodes.values()))
        task.cancel()
        await faults.heal()
        assert 0 < worst <= MOST_AT_ONCE
        assert all(node.is_running for node in world.cluster.nodes.values())
        assert world.network.conditions == Conditions()
        for _ in range(60):
            await asyncio.sleep(1)
            if not unhealed(await partition_states(world.bootstrap), 3):
                return
        raise AssertionError("not healed")

    world.run(script)
    assert sum(faults.counts.values()) >= 3
    assert set(faults.counts) <= {kind.value for kind in Kind}


def test_a_cut_is_named_by_whom_it_separates(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    faults = Faults(world.cluster, world.network, Random(3), lambda note: None)
    out, into = {(1, 2), (1, 3)}, {(2, 1), (3, 1)}

    async def script() -> None:
        assert set(faults.cuts_of(1, Kind.CUT_OUT)) == out
        assert set(faults.cuts_of(1, Kind.CUT_IN)) == into
        assert set(faults.cuts_of(1, Kind.CUT)) == out | into
        assert set(faults.cuts_of(1, Kind.ISOLATE)) == out | into | {(0, 1), (1, 0)}
        (one, other) = faults.cuts_of(1, Kind.CUT_PAIR)
        assert one == (1, other[0]) and other[1] == 1
        assert faults.cuts_of(1, Kind.KILL) == []

    world.run(script)
