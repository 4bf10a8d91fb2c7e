"""`kbroker sim`: a whole cluster on simulated time, with faults, and a verdict on its clients."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kbroker.simulation.run import RunOutcome

EPILOG = """
The nodes are those that `kbroker serve` runs. Time, network and threads are simulated, so ten
minutes take about one, and a run of the same seed does the same again. Nodes are killed, stopped,
paused and cut off from each other and from clients, while producers, transactional producers, a
group and readers work. Then everything heals, and the verdict follows: whether each acknowledged
record is there, once and in order, at the same offset for every reader; whether transactions are
visible as a whole or not at all; whether committed offsets went back; whether each request is
answered; whether the replicas have the same bytes.

\b
Examples:
  kbroker sim --seed 7
  kbroker sim --seed 7 --nodes 5 --minutes 10
  kbroker sim --seed 1 --seeds 100 --quiet
"""


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("sim", epilog=EPILOG)
def sim(
    seed: Annotated[int, typer.Option("--seed", "-s", help="What everything follows from.")] = 1,
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", min=3, max=20, help="The first three are controllers.")
    ] = 3,
    minutes: Annotated[
        float, typer.Option("--minutes", "-m", min=0.01, help="Simulated time with faults.")
    ] = 1.0,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Run so many seeds, beginning with --seed.")
    ] = 1,
    transactions: Annotated[
        bool, typer.Option(help="Whether there are transactional producers.")
    ] = True,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdict only, not what happens.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Log what the nodes log, too.")] = False,
) -> None:
    """Run a simulated cluster under faults, and judge it."""
    from kbroker.simulation.run import Options, run_seed

    logging.basicConfig(
        level=logging.INFO if log else logging.CRITICAL + 1,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    failed = 0
    for each in range(seed, seed + seeds):
        options = Options(each, nodes, minutes, transactions)
        outcome = run_seed(options, (lambda line: None) if quiet else print)
        print_verdict(outcome)
        failed += bool(outcome.anomalies)
    if failed:
        raise typer.Exit(1)


def print_verdict(outcome: RunOutcome) -> None:
    """What happened, in numbers, and what was wrong."""
    for name, count in sorted(outcome.counts.items()):
        print(f"  {count:>7} {name}")
    for anomaly in outcome.anomalies:
        print(f"ANOMALY {anomaly}")
    seconds = f"{outcome.seconds:.1f} simulated seconds, {outcome.steps} steps"
    if outcome.anomalies:
        print(f"{outcome.failure_line} ({seconds})")
    else:
        print(f"seed {outcome.options.seed}: no anomaly ({seconds})")
