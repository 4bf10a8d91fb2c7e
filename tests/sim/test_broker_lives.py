"""Seeds of `broker_lives`: brokers come into service whatever happens to the active controller. A
failed seed is one line, with the command that replays it.
"""

from __future__ import annotations

import pytest

from kbroker.broker import node_to_controller
from tests.sim.broker_lives import run_seed
from tests.sim.simulation import SimulationFailure

SEEDS = 16
SLOW_SEEDS = 2_000
SLOW_SEEDS_PER_TEST = 100


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_broker_comes_into_service(seed: int) -> None:
    run_seed(seed)


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, SLOW_SEEDS, SLOW_SEEDS_PER_TEST))
def test_every_broker_comes_into_service_for_many_seeds(first: int) -> None:
    for seed in range(first, first + SLOW_SEEDS_PER_TEST):
        run_seed(seed)


@pytest.mark.sim
def test_a_channel_that_keeps_to_the_first_controller_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seeds can fail."""
    monkeypatch.setattr(node_to_controller, "_RETRIED", frozenset())
    with pytest.raises(SimulationFailure):
        for seed in range(SEEDS):
            run_seed(seed)
