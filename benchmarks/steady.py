"""Repeats a load on several servers in turns until all are warm, then takes the medians of the
rounds that follow.

A JVM compiles the code of a load while the load runs: Apache Kafka's CPU per GB of 1 KB records
falls to a third within four rounds. A figure of the first round says how fast a server warms up,
not what a record costs. `side_by_side` treats every server alike, kbroker included.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Final

Figures = Mapping[str, Mapping[str, float]]
"""Load to figure to value; one round may measure several loads (produce, then consume)."""

STEADY_FIGURE: Final = "cpu_s_per_gb"
TOLERANCE: Final = 0.1
"""Two rounds in a row whose CPU per byte differs by less are steady (a share of the smaller)."""

CPU_FIGURE: Final = "cpu_s"
CLOCK_TICKS_S: Final = 0.02
"""The system counts a process's CPU in ticks of 10 ms: two of them are no difference."""

MOST_WARM_UP_ROUNDS: Final = 10
"""A server that is not steady after so many rounds is measured as it is, and the table says so."""

MEASURED_ROUNDS: Final = 3
WARM_UP_ROUNDS: Final = "warm-up rounds"
"""The figure that says how many rounds came before the measured ones."""

UNSTEADY: Final = "unsteady"
"""The figure that is there, as 1, if the last two warm-up rounds still differed."""


def is_within_ticks(before_s: float, after_s: float) -> bool:
    """Whether two CPU times differ by no more than the system's clock ticks show."""
    return abs(before_s - after_s) <= CLOCK_TICKS_S * 1.001  # they are decimal fractions


def is_steady(before: Figures, after: Figures, tolerance: float = TOLERANCE) -> bool:
    """Whether the CPU per byte of every load differs by less than `tolerance`, or its CPU by no
    more than `CLOCK_TICKS_S`.
    """
    for load, figures in after.items():
        if STEADY_FIGURE not in figures:
            continue
        if CPU_FIGURE in figures and is_within_ticks(before[load][CPU_FIGURE], figures[CPU_FIGURE]):
            continue
        old, new = before[load][STEADY_FIGURE], figures[STEADY_FIGURE]
        if abs(old - new) >= tolerance * min(old, new):
            return False
    return True


def steady_medians(
    run_round: Mapping[str, Callable[[int], Figures]],
    *,
    measured: int = MEASURED_ROUNDS,
    most: int = MOST_WARM_UP_ROUNDS,
) -> dict[str, dict[str, dict[str, float]]]:
    """Call each server's `run_round` with 0, 1, ... until two rounds in a row are steady for every
    server (at least two, at most `most` rounds), then `measured` more. Returns the medians of the
    latter, per server, load and figure.

    The servers take turns within a round and at going first, so that what the machine does
    meanwhile hurts all alike, and all have had as many rounds when they are measured.
    """
    names = list(run_round)

    def round_of_all(number: int) -> dict[str, Figures]:
        first = number % len(names)
        return {name: run_round[name](number) for name in names[first:] + names[:first]}

    last, number = round_of_all(0), 1
    steady = dict.fromkeys(names, False)
    while not all(steady.values()) and number < most:
        current = round_of_all(number)
        number += 1
        steady = {name: is_steady(last[name], current[name]) for name in names}
        last = current
    rounds = [round_of_all(number + more) for more in range(measured)]
    return {
        name: {
            load: {
                figure: statistics.median(one[name][load][figure] for one in rounds)
                for figure in figures
            }
            | {WARM_UP_ROUNDS: float(number)}
            | ({} if steady[name] else {UNSTEADY: 1.0})
            for load, figures in rounds[0][name].items()
        }
        for name in names
    }
