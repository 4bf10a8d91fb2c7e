"""The quorum's core under simulated faults: 500 seeds now, 100,000 in the slow run, and the mutants
that the seeds must find. A failed seed is one line, with the command that replays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pytest

from tests.sim.quorum_mutants import DRIVER_MUTANTS, MUTANTS
from tests.sim.quorum_world import QuorumWorld, run_seed
from tests.sim.simulation import SimulationFailure

SEEDS = 500
SEEDS_PER_TEST = 50
SLOW_SEEDS = 100_000
SLOW_SEEDS_PER_TEST = 1_000
FIND_WITHIN = 500
FORMER_FAILURES = (
    *(928, 1328, 1765, 2578, 3335, 3385, 4117, 8388, 11186, 17497, 17907),
    *(23702, 44716, 65102, 78031),
)
"""Seeds above SEEDS that have failed once."""


@lru_cache(maxsize=SEEDS)
def counts_of(seed: int) -> Mapping[str, int]:
    """What happened in it. A seed runs once, whichever tests look at it; SimulationFailure."""
    return run_seed(seed).counts()


def run_seeds(first: int, count: int) -> None:
    """Run them; the failures are reported as their lines, without a traceback."""
    failures = []
    for seed in range(first, first + count):
        try:
            counts_of(seed)
        except SimulationFailure as failure:
            failures.append(str(failure))
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold(first: int) -> None:
    run_seeds(first, SEEDS_PER_TEST)


@pytest.mark.sim
@pytest.mark.parametrize("seed", FORMER_FAILURES)
def test_a_seed_that_failed_passes(seed: int) -> None:
    run_seeds(seed, 1)


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(SEEDS, SLOW_SEEDS, SLOW_SEEDS_PER_TEST))
def test_the_invariants_hold_for_many_seeds(first: int) -> None:
    run_seeds(first, min(SLOW_SEEDS_PER_TEST, SLOW_SEEDS - first))


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*MUTANTS, *DRIVER_MUTANTS])
def test_a_mutant_is_found(name: str) -> None:
    with (MUTANTS | DRIVER_MUTANTS)[name]():
        for seed in range(FIND_WITHIN):
            try:
                run_seed(seed, uses_driver=True if name in DRIVER_MUTANTS else None)
            except SimulationFailure:
                return
    pytest.fail(f"{name} is not found by {FIND_WITHIN} seeds", pytrace=False)


def test_a_seed_runs_the_same_way_each_time() -> None:
    def trace(seed: int) -> list[str]:
        world = QuorumWorld(seed, is_traced=True)
        world.run()
        return world.simulation.trace

    assert trace(7) == trace(7) and trace(7) != trace(8)


def test_a_failure_is_one_line_with_the_command_that_replays_it() -> None:
    with MUTANTS["uncommitted_records_applied"](), pytest.raises(SimulationFailure) as failure:
        for seed in range(FIND_WITHIN):
            run_seed(seed)
    text = str(failure.value)
    assert "\n" not in text and "; replay: python -m tests.sim.replay quorum " in text


def test_the_seeds_cover_what_can_happen() -> None:
    """The faults have effects: elections, restarts, truncations, snapshots fetched, records lost
    that were not acknowledged.
    """
    seen: dict[str, int] = {}
    for seed in range(30):
        for name, count in counts_of(seed).items():
            seen[name] = seen.get(name, 0) + count
    assert all(seen.values()), seen


def test_the_seeds_of_the_driver_cover_what_can_happen() -> None:
    """As above, for nodes that run the driver and its storage. They are slower, so as few seeds run
    as suffice.
    """
    seen: dict[str, int] = {}
    for seed in range(60):
        world = run_seed(seed, uses_driver=True)
        for name, count in world.counts().items():
            seen[name] = seen.get(name, 0) + count
        if all(seen.values()):
            return
    pytest.fail(str(seen))
