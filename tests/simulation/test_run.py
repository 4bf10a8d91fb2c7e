"""Whole clusters by seed: no anomaly, the same each time, and defects that are found. A failed seed
is one line, with the command that does the same again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import pytest

from kbroker.simulation import run
from kbroker.simulation.run import Options, RunOutcome, run_seed
from tests.simulation.mutants import MUTANTS

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]

SEEDS = 40
SEEDS_PER_TEST = 5
SLOW_SEEDS = 5_000
SLOW_SEEDS_PER_TEST = 50
MINUTES = 0.1
FIND_WITHIN = 60
FOUND_BY = {
    "high_watermark_from_a_diverging_answer": 3,
    "markers_are_dropped_after_an_error": 35,
}
"""Seeds that find mutants. Without a mutant they are among those of `test_no_anomaly`."""
SLOWLY_FOUND_BY = {
    "committed_instead_of_maximal_isr": 67,
    "coordinators_trust_the_tail": 75,
    "epoch_check_skipped": 3,
    "truncation_to_the_wrong_epochs_end": 43,
}
FORMER_FAILURES = (3350, 4052)
"""Seeds that failed: a broker that had been cut off, or did not know of a change of some
milliseconds ago, was asked which replicas are in sync.
"""
MUTANT_HEAL_S = 10.0
"""Instead of HEAL_TIMEOUT_S: what a mutant has broken may never heal."""


@lru_cache(maxsize=SEEDS)
def outcome_of(seed: int) -> RunOutcome:
    """Of a life of `MINUTES`; it is run once."""
    return run_seed(Options(seed=seed, minutes=MINUTES))


def run_seeds(first: int, count: int) -> None:
    """Run them; the failures are reported as their lines, without a traceback."""
    failures = []
    for seed in range(first, first + count):
        outcome = outcome_of(seed)
        if outcome.anomalies:
            failures.append(outcome.failure_line)
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_anomaly(first: int) -> None:
    run_seeds(first, SEEDS_PER_TEST)


@pytest.mark.parametrize("seed", FORMER_FAILURES)
def test_a_seed_that_failed_passes(seed: int) -> None:
    run_seeds(seed, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(SEEDS, SLOW_SEEDS, SLOW_SEEDS_PER_TEST))
def test_no_anomaly_in_many_seeds(first: int) -> None:
    run_seeds(first, min(SLOW_SEEDS_PER_TEST, SLOW_SEEDS - first))


@pytest.mark.slow
def test_no_anomaly_in_a_long_life_of_five_nodes() -> None:
    outcome = run_seed(Options(seed=1, nodes=5, minutes=5))
    assert outcome.anomalies == []
    assert min(outcome.counts[kind] for kind in ("killed", "paused", "stopped in order")) > 0


def test_a_seed_does_the_same_each_time() -> None:
    one, other = outcome_of(3), outcome_of(4)
    again = run_seed(Options(seed=3, minutes=MINUTES))
    assert (one.trace, one.steps, one.counts) == (again.trace, again.steps, again.counts)
    assert one.trace != other.trace


def test_everything_is_done_in_some_seed() -> None:
    outcome = run_seed(Options(seed=2, minutes=0.25))
    for name in (
        "records acknowledged",
        "records read",
        "commits",
        "committed offsets fetched",
        "transactions committed",
        "transactions aborted",
    ):
        assert outcome.counts[name] > 0, outcome.counts


def anomalies_of(seed: int, name: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(run, "HEAL_TIMEOUT_S", MUTANT_HEAL_S)
    with nullcontext() if name is None else MUTANTS[name]():
        return run_seed(Options(seed=seed, minutes=MINUTES)).anomalies


@pytest.mark.parametrize("name", FOUND_BY)
def test_the_seed_of_a_mutant_finds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert anomalies_of(FOUND_BY[name], name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWLY_FOUND_BY)
def test_the_seed_of_a_mutant_finds_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert anomalies_of(SLOWLY_FOUND_BY[name], None, monkeypatch) == []
    assert anomalies_of(SLOWLY_FOUND_BY[name], name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - {*FOUND_BY, *SLOWLY_FOUND_BY}))
def test_a_mutant_is_found(name: str) -> None:
    mutant: Callable[[], AbstractContextManager[object]] = MUTANTS[name]
    with mutant():
        for seed in range(FIND_WITHIN):
            if run_seed(Options(seed=seed, minutes=MINUTES)).anomalies:
                return
    pytest.fail(f"{name} is not found by {FIND_WITHIN} seeds", pytrace=False)


def test_a_failure_is_one_line_with_the_command_that_replays_it() -> None:
    outcome = RunOutcome(Options(seed=7, minutes=0.5), anomalies=["this is wrong", "that too"])
    assert outcome.failure_line == (
        "seed 7: this is wrong (and 1 more); kbroker sim --seed 7 --nodes 3 --minutes 0.5"
    )
    assert Options(transactions=False).line().endswith("--minutes 1 --no-transactions")
