"""Replication under simulated faults: 200 seeds now, 100,000 in the slow run, and the mutants that
the seeds must find. A failed seed is one line, with the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import pytest

from tests.replication.follower_world import FollowerWorld
from tests.replication.followers import test_follower
from tests.replication.leaders import test_isr
from tests.sim.replication_mutants import DECIDED_MUTANTS, MUTANTS
from tests.sim.replication_world import ReplicationWorld, run_seed
from tests.sim.simulation import SimulationFailure

SEEDS = 200
SEEDS_PER_TEST = 25
SLOW_SEEDS = 100_000
SLOW_SEEDS_PER_TEST = 1_000
FIND_WITHIN = 200
FORMER_FAILURES = (1704, 9852, 19475)
"""Seeds above SEEDS that have failed once."""


@lru_cache(maxsize=SEEDS)
def counts_of(seed: int) -> Mapping[str, int]:
    """What happened in it. A seed runs once, whichever tests look at it; SimulationFailure."""
    return run_seed(seed).counts


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
def test_nothing_acknowledged_is_lost_and_replicas_end_equal(first: int) -> None:
    run_seeds(first, SEEDS_PER_TEST)


@pytest.mark.sim
@pytest.mark.parametrize("seed", FORMER_FAILURES)
def test_a_seed_that_failed_once(seed: int) -> None:
    run_seeds(seed, 1)


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(SEEDS, SLOW_SEEDS, SLOW_SEEDS_PER_TEST))
def test_nothing_acknowledged_is_lost_in_many_seeds(first: int) -> None:
    run_seeds(first, min(SLOW_SEEDS_PER_TEST, SLOW_SEEDS - first))


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with MUTANTS[name]():
        for seed in range(FIND_WITHIN):
            try:
                run_seed(seed)
            except SimulationFailure:
                return
    pytest.fail(f"{name} is not found by {FIND_WITHIN} seeds", pytrace=False)


@pytest.mark.parametrize(
    ("name", "compare"),
    [
        ("committed_instead_of_maximal_isr", test_isr.test_every_line_of_a_leader_is_kafkas),
        (
            "truncation_to_the_wrong_epochs_end",
            lambda folder: (
                test_follower.test_a_diverging_answer_cuts_the_log_and_applies_no_high_watermark(
                    FollowerWorld(folder)
                )
            ),
        ),
    ],
)
def test_a_mutant_decides_otherwise_than_kafka(
    name: str, compare: Callable[[Path], None], tmp_path: Path
) -> None:
    compare(tmp_path)
    with DECIDED_MUTANTS[name](), pytest.raises(AssertionError):
        compare(tmp_path)


def test_a_seed_runs_the_same_way_each_time() -> None:
    def trace(seed: int) -> tuple[list[str], int]:
        world = ReplicationWorld(seed, is_traced=True)
        world.run()
        return world.simulation.trace, world.simulation.step_count

    assert trace(4) == trace(4) != trace(6)


def test_a_failure_is_one_line_with_the_command_that_replays_it() -> None:
    name = "high_watermark_moves_below_min_isr"
    with MUTANTS[name](), pytest.raises(SimulationFailure) as failure:
        for seed in range(FIND_WITHIN):
            run_seed(seed)
    text = str(failure.value)
    assert "\n" not in text and "; replay: python -m tests.sim.replay replication " in text


def test_the_seeds_cover_what_can_happen() -> None:
    """The faults have effects: elections, restarts, truncations, logs that are emptied and start
    again, records acknowledged and refused.
    """
    seen: dict[str, int] = {}
    for seed in range(40):
        for name, count in counts_of(seed).items():
            seen[name] = seen.get(name, 0) + count
    for name in (
        "acknowledged",
        "begun anew",
        "elections",
        "power losses",
        "records deleted",
        "refused NOT_ENOUGH_REPLICAS",
        "refused NOT_LEADER_OR_FOLLOWER",
        "refused REQUEST_TIMED_OUT",
        "restarts",
        "truncations",
    ):
        assert seen.get(name), f"no {name}: {seen}"
