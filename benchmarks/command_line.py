"""What a command costs before it does anything: CPU time of `kbroker --help` and of some commands'
help, of which `--help` alone has a bound.

    python benchmarks/command_line.py [--runs 10]

CPU time is user and system time of the process, the smallest of the runs: that of a machine which
does other things as well has nothing to do with us. The first run is not counted: it may write
bytecode.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HELP_S: Final = 0.25
"""The bound of `kbroker --help`."""

COMMANDS: Final = ((), ("topics",), ("consume",), ("serve",))


def cpu_seconds(arguments: Sequence[str], runs: int) -> float:
    """The least CPU time of so many runs of `kbroker` with these arguments."""
    command = [sys.executable, "-m", "kbroker", *arguments]
    found = []
    for _ in range(runs + 1):
        before = os.times()
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        found.append(
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system
        )
    return min(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    for words in COMMANDS:
        seconds = cpu_seconds((*words, "--help"), runs)
        print(f"{' '.join(('kbroker', *words, '--help')):28}{seconds:6.2f} s of CPU")
        if not words and seconds > HELP_S:
            sys.exit(f"kbroker --help took more than {HELP_S} s")


if __name__ == "__main__":
    main()
