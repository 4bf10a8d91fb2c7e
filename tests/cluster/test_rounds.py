"""Controllers and brokers through rounds of faults: nothing that was acknowledged is lost, an epoch
has one leader, and the logs are equal.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.network import network_problem
from tests.cluster.rounds import Options, play_rounds
from tests.cluster.schedule import Kind

pytestmark = pytest.mark.skipif(network_problem() is not None, reason=network_problem() or "")


def test_the_line_that_replays_a_failure_names_what_it_was_drawn_from() -> None:
    options = Options(seed=4, rounds=50, brokers=2)
    assert options.line(7) == "python -m tests.cluster.rounds --seed 4 --rounds 7 --brokers 2"
    fewer = Options(seed=4, kinds=(Kind.KILL, Kind.CUT), loads=("wire",))
    assert fewer.line(3).endswith("--rounds 3 --brokers 0 --kinds kill,cut --loads wire")
    data = Options(data=True, loads=("reader",))
    assert data.line(3) == (
        "python -m tests.cluster.rounds --seed 17 --rounds 3 --data --loads reader"
    )


def test_three_rounds(tmp_path: Path) -> None:
    options = Options(seed=627, rounds=3, loads=("wire",))  # kill, cut, full disk of the leader
    summary = play_rounds(options, tmp_path)
    assert summary.acknowledged > 20
    assert summary.log_bytes > 1000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("brokers", [0, 2])
def test_fifty_rounds(brokers: int, tmp_path: Path) -> None:
    summary = play_rounds(Options(seed=17, rounds=50, brokers=brokers), tmp_path)
    assert summary.epochs > 10
    assert summary.acknowledged > 500


FEW_LOADS = (
    "confluent-producer",
    "aiokafka-producer",
    "confluent-member1",
    "confluent-member2",
    "reader",
)


@pytest.mark.clients
@pytest.mark.timeout(420)
def test_six_rounds_under_producers_and_consumers(tmp_path: Path) -> None:
    options = Options(data=True, seed=149, rounds=6, loads=FEW_LOADS)
    summary = play_rounds(options, tmp_path)
    assert summary.acknowledged > 500
    assert summary.log_bytes > 50_000


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.timeout(3600)
def test_a_hundred_rounds_under_producers_and_consumers(tmp_path: Path) -> None:
    summary = play_rounds(Options(data=True, seed=17, rounds=100), tmp_path)
    assert summary.epochs > 10
    assert summary.acknowledged > 20_000
