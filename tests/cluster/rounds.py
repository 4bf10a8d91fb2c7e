"""Rounds of faults on a real cluster under load, and what must hold after each of them.

    python -m tests.cluster.rounds [--seed 17] [--rounds 50] [--brokers 0] [--folder PATH]
    python -m tests.cluster.rounds --data [--seed 17] [--rounds 100] [--folder PATH]

Three controllers, and brokers beside them: two, or none, for which simulated ones register; clients
change the metadata. With --data the three nodes are controllers and brokers, and clients produce
and consume. Each round draws faults (`schedule`), carries them out (`faults`), and waits until
every client is acknowledged something again. The schedule follows from the seed; what meets a fault
does not, so a failure may need several runs of its line. Needs root; names that the run makes are
in `run_names`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kbroker.protocol.errors import KafkaError
from tests.cluster import data_run, metadata_run
from tests.cluster.faults import possible_kinds
from tests.cluster.network import network_problem
from tests.cluster.run import Run, Summary
from tests.cluster.schedule import Kind, draw_schedule

CHECK_EVERY: Final = 10

Report = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What one run is drawn from. brokers: only without data. loads: None for those that this
    cluster and machine can have.
    """

    data: bool = False
    seed: int = 17
    rounds: int = 50
    brokers: int = 0
    kinds: tuple[Kind, ...] = tuple(Kind)
    loads: tuple[str, ...] | None = None

    def usable(self) -> Options:
        """Without the kinds that this machine cannot have."""
        possible = possible_kinds()
        return replace(self, kinds=tuple(kind for kind in self.kinds if kind in possible))

    def line(self, rounds: int) -> str:
        """The command that replays so many rounds."""
        words = ["python -m tests.cluster.rounds", f"--seed {self.seed}", f"--rounds {rounds}"]
        words.append("--data" if self.data else f"--brokers {self.brokers}")
        if self.kinds != tuple(Kind):
            words.append(f"--kinds {','.join(kind.value for kind in self.kinds)}")
        if self.loads is not None:
            words.append(f"--loads {','.join(self.loads)}")
        return " ".join(words)

    def new_run(self, folder: Path) -> Run:
        """A run of the kind that these options name."""
        if self.data:
            return data_run.DataRun(folder, loads=self.loads or data_run.usual_loads())
        loads = self.loads or metadata_run.usual_loads(self.brokers)
        return metadata_run.MetadataRun(folder, brokers=self.brokers, loads=loads)


class RoundFailure(AssertionError):
    """What did not hold, and the line that replays it."""


def play_rounds(options: Options, folder: Path, report: Report = lambda line: None) -> Summary:
    """All rounds of a seed. Raises RoundFailure."""
    options = options.usable()
    schedule = draw_schedule(
        options.seed, options.rounds, brokers=options.brokers, kinds=options.kinds
    )
    number, plan = 0, None
    run = options.new_run(folder)
    try:
        with ExitStack() as stack:
            run.begin(stack)
            for number, plan in enumerate(schedule, 1):
                begun = time.monotonic()
                run.play(plan)
                if number % CHECK_EVERY == 0:
                    run.check_clients()
                report(f"round {number}: {plan} ({time.monotonic() - begun:.1f} s)")
            return run.finish()
    except (AssertionError, TimeoutError, KafkaError) as error:
        raise RoundFailure(
            f"round {number} ({plan}): {error}; logs in {folder}; "
            f"replay: {options.line(max(number, 1))}"
        ) from error


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", action="store_true", help="clients produce and consume")
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--rounds", type=int, default=Options.rounds)
    parser.add_argument("--brokers", type=int, default=Options.brokers)
    parser.add_argument("--kinds", default=",".join(kind.value for kind in Kind))
    data_loads = ", ".join(data_run.LOADS)
    parser.add_argument(
        "--loads", help=f"java, confluent (needs brokers), wire; with --data: {data_loads}"
    )
    parser.add_argument("--folder", type=Path, help="kept; a temporary one otherwise")
    arguments = parser.parse_args()
    problem = network_problem()
    if problem is not None:
        print(f"rounds: {problem}", file=sys.stderr)
        return 2
    options = Options(
        data=arguments.data,
        seed=arguments.seed,
        rounds=arguments.rounds,
        brokers=arguments.brokers,
        kinds=tuple(Kind(name) for name in arguments.kinds.split(",")),
        loads=tuple(arguments.loads.split(",")) if arguments.loads else None,
    )
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="kbroker-rounds-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"rounds: {folder} is not empty", file=sys.stderr)
        return 2
    try:
        summary = play_rounds(options, folder, lambda line: print(line, flush=True))
    except RoundFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(
        f"{options.rounds} rounds: {summary.acknowledged} operations acknowledged and none lost, "
        f"{summary.epochs} epochs with one leader each, {summary.log_bytes} equal bytes of log"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
