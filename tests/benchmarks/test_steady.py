"""Rounds of a benchmark: warm-up until two in a row agree, then medians."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.steady import UNSTEADY, WARM_UP_ROUNDS, is_steady, steady_medians

Rounds = Callable[[int], dict[str, dict[str, float]]]


def rounds_of(*cpu: float) -> tuple[list[int], Rounds]:
    called: list[int] = []

    def run(number: int) -> dict[str, dict[str, float]]:
        called.append(number)
        return {"produce": {"cpu_s_per_gb": cpu[number], "mb_per_s": 100.0 + number}}

    return called, run


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(10.0, 10.9, True, id="within"),
        pytest.param(10.9, 10.0, True, id="within-falling"),
        pytest.param(10.0, 11.0, False, id="at-the-bound"),
        pytest.param(19.0, 5.7, False, id="warming"),
    ],
)
def test_two_rounds_are_steady(old: float, new: float, expected: bool) -> None:
    before, after = {"load": {"cpu_s_per_gb": old}}, {"load": {"cpu_s_per_gb": new}}
    assert is_steady(before, after) is expected


def test_every_load_of_a_round_must_be_steady() -> None:
    before = {"produce": {"cpu_s_per_gb": 5.0}, "consume": {"cpu_s_per_gb": 2.0}}
    after = {"produce": {"cpu_s_per_gb": 5.1}, "consume": {"cpu_s_per_gb": 1.0}}
    assert not is_steady(before, after)


def test_a_load_without_cpu_is_not_compared() -> None:
    assert is_steady({"idle": {"rss_mb": 1.0}}, {"idle": {"rss_mb": 9.0}})


def test_a_difference_of_two_clock_ticks_is_none() -> None:
    before = {"consume": {"cpu_s_per_gb": 0.8, "cpu_s": 0.08}}
    assert is_steady(before, {"consume": {"cpu_s_per_gb": 1.0, "cpu_s": 0.1}})
    assert not is_steady(before, {"consume": {"cpu_s_per_gb": 1.1, "cpu_s": 0.11}})


def test_measured_rounds_follow_the_warm_up() -> None:
    called, run = rounds_of(19.0, 12.0, 8.0, 6.0, 5.8, 5.0, 7.0, 5.6)
    found = steady_medians({"one": run}, measured=3)
    assert called == list(range(8))
    assert found["one"] == {
        "produce": {"cpu_s_per_gb": 5.6, "mb_per_s": 106.0, WARM_UP_ROUNDS: 5.0},
    }


def test_a_server_that_never_settles_is_marked() -> None:
    called, run = rounds_of(1.0, 2.0, 4.0, 8.0, 16.0)
    found = steady_medians({"one": run}, measured=2, most=3)
    assert called == [0, 1, 2, 3, 4]
    assert found["one"]["produce"][UNSTEADY] == 1.0
    assert found["one"]["produce"]["cpu_s_per_gb"] == 12.0


def test_servers_take_turns_and_wait_for_the_one_that_settles_last() -> None:
    order: list[tuple[str, int]] = []

    def server(name: str, *cpu: float) -> Rounds:
        def run(number: int) -> dict[str, dict[str, float]]:
            order.append((name, number))
            return {"produce": {"cpu_s_per_gb": cpu[number]}}

        return run

    found = steady_medians(
        {"quick": server("quick", 4.0, 4.0, 4.0, 5.0), "slow": server("slow", 19.0, 9.0, 9.0, 8.0)},
        measured=1,
    )
    names = [name for name, _ in order]
    assert names == ["quick", "slow", "slow", "quick", "quick", "slow", "slow", "quick"]
    assert found["quick"]["produce"] == {"cpu_s_per_gb": 5.0, WARM_UP_ROUNDS: 3.0}
    assert found["slow"]["produce"] == {"cpu_s_per_gb": 8.0, WARM_UP_ROUNDS: 3.0}
