"""`kbroker sim`: what it prints, and its exit code."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest

from kbroker.cli.app import run
from kbroker.simulation import run as simulation
from kbroker.simulation.run import Options, RunOutcome


def test_a_short_life(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--seed", "3", "--minutes", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("everything heals") for line in lines)
    assert any(line.endswith("records acknowledged") for line in lines)
    assert lines[-1].startswith("seed 3: no anomaly (")


def test_an_anomaly_is_named_with_the_command_that_does_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_seed(options: Options, note: object) -> RunOutcome:
        wrong = ["t-0: lost: a of p"] if options.seed == 5 else []
        return RunOutcome(options, wrong, Counter(killed=2), seconds=31.5, steps=7)

    with mock.patch.object(simulation, "run_seed", run_seed):
        assert run(["sim", "--seed", "4", "--seeds", "3", "--minutes", "0.5", "--quiet"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "        2 killed",
        "seed 4: no anomaly (31.5 simulated seconds, 7 steps)",
        "        2 killed",
        "ANOMALY t-0: lost: a of p",
        "seed 5: t-0: lost: a of p; kbroker sim --seed 5 --nodes 3 --minutes 0.5 "
        "(31.5 simulated seconds, 7 steps)",
        "        2 killed",
        "seed 6: no anomaly (31.5 simulated seconds, 7 steps)",
    ]


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--nodes", "2"]) == 2
    assert "--nodes" in capsys.readouterr().err
