"""The same seed gives the same log, byte for byte, with any hash seed of Python: decisions do not
depend on the order of a set. Failures of a simulation are reproducible, and two brokers with the
same input make the same decisions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.model import TopicPartition
from tests.coordinator.group import test_migration_simulation
from tests.coordinator.group.classic import test_simulation
from tests.coordinator.group.consumer import test_simulation as test_consumer_simulation
from tests.coordinator.group.share import test_simulation as test_share_simulation
from tests.coordinator.group.streams import test_simulation as test_streams_simulation

ROOT = Path(__file__).parents[3]
SEEDS = range(300, 304)


def logs() -> bytes:
    """Of all kinds of groups, one behind the other."""
    worlds = []
    for seed in SEEDS:
        classic = test_simulation.Simulation(seed)
        consumers = test_consumer_simulation.Simulation(seed)
        migrations = test_migration_simulation.Simulation(seed)
        streams = test_streams_simulation.Simulation(seed)
        shares = test_share_simulation.Simulation(seed)
        for run in (classic.run, consumers.run, migrations.run, streams.run, shares.run):
            run()
        worlds += [classic.world, consumers.world, migrations.world, streams.world]
        worlds.append(shares.shares.world)
    place = TopicPartition(GROUP_TOPIC, 0)
    return b"".join(batch for world in worlds for batch in world.log.batches[place])


@pytest.mark.sim
def test_decisions_do_not_hang_on_the_hash_seed() -> None:
    program = (
        "import hashlib, logging; logging.disable(); "
        "from tests.coordinator.group.test_determinism import logs; "
        "print(hashlib.sha256(logs()).hexdigest())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
        )
        for hash_seed in (0, 1)
    ]
    digests = {process.communicate(timeout=100)[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(digests) == 1
