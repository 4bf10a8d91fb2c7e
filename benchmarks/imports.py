"""What `kbroker serve` imports, and what it costs: the import profile of its start.

    python benchmarks/imports.py [--runs 5]

Starts a broker under `-X importtime` and stops it once it listens. Milliseconds are those of each
module's own code, the smallest of the runs; by room, and the dearest outside of kbroker.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
SHOWN = 12


def profile(folder: Path) -> dict[str, int]:
    """Microseconds of each module that one start imports."""
    command = [
        *(sys.executable, "-X", "importtime", "-m", "kbroker", "serve"),
        *("--override", f"log.dirs={folder}"),
        *("--override", "listeners=PLAINTEXT://127.0.0.1:0"),
    ]
    with (folder.with_suffix(".err")).open("w+") as errors:
        broker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
        )
        with broker:
            if broker.stdout is not None:
                broker.stdout.readline()
            broker.terminate()
        errors.seek(0)
        found = (_LINE.match(line) for line in errors)
        return {match[2]: int(match[1]) for match in found if match}


def room(module: str) -> str:
    """kbroker's rooms one by one, all else by its first name."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "kbroker" else parts[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(parser.parse_args().runs + 1):
            runs.append(profile(Path(folder) / str(number)))
    runs = runs[1:]  # the first one wrote the bytecode
    best = {module: min(run.get(module, 1 << 60) for run in runs) for module in runs[0]}
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for module, micros in best.items():
        times[room(module)] += micros
        counts[room(module)] += 1
    print(f"{len(best)} modules, {sum(best.values()) / 1000:.0f} ms")
    ours = sum(micros for name, micros in times.items() if name.startswith("kbroker"))
    print(f"of these kbroker's own: {ours / 1000:.0f} ms")
    print("| room | modules | ms |\n|---|---|---|")
    for name, micros in times.most_common(SHOWN + 6):
        print(f"| {name} | {counts[name]} | {micros / 1000:.1f} |")


if __name__ == "__main__":
    main()
