"""What a Produce and a Fetch request cost the broker's process in machine instructions, cache
misses and mispredicted branches, as valgrind's cachegrind counts them.

    python benchmarks/machine_instructions.py [--requests 2000] [--only NAME ...] [--before DIR]

Of two runs of a broker, the second gets `--requests` more Produce requests than the first, or has
its topic read `PASSES` times more: the difference is what these cost, without the start. A Fetch
takes up to 1 MB of each partition, whatever the batches, and the last of a pass finds nothing. The
counts hardly depend on what else the machine does: two of the same sources differ by up to 0.6 %,
where CPU times differ by 10 %. The kernel's part is not counted. Python's hash seed is fixed, since
it moves names in dictionaries. Needs valgrind.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import checkout, source_command  # noqa: E402
from benchmarks.wire import (  # noqa: E402
    Case,
    Client,
    ProduceRequests,
    consume,
    create_topics,
    produce,
)
from benchmarks.wire_cost import CASES, PARTITIONS  # noqa: E402
from kbroker.protocol.batches.compression import Compression  # noqa: E402
from kbroker.testing.process import BrokerProcess  # noqa: E402

WARM_UP_REQUESTS = 500
PASSES = 10
WARM_UP_PASSES = 3
START_TIMEOUT_S = 120.0
TOPIC = "counted"
LZ4 = (
    Case("6 x 16 KB of 1 KB records, lz4", 6, 15, 1000, Compression.LZ4),
    Case("1 x 16 KB of 1 KB records, lz4", 1, 15, 1000, Compression.LZ4),
)
FIGURES = {
    "instructions": r"I +refs: +([\d,]+)",
    "I1 misses": r"I1 +misses: +([\d,]+)",
    "D1 misses": r"D1 +misses: +([\d,]+)",
    "mispredicted": r"Mispredicts: +([\d,]+)",
}

Counts = dict[str, float]


def counted(tree: Path, case: Case, requests: int, passes: int = 0) -> tuple[Counts, int]:
    """All that a broker run from the sources in tree counts until it has stopped, which got so many
    requests beside those of the warm-up and whose topic was then read so often; and how many
    Fetch requests that took.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = folder / "cachegrind.log"
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes"]
        valgrind += ["--cachegrind-out-file=/dev/null", f"--log-file={report}"]
        with BrokerProcess(
            folder / "data",
            overrides={"log.retention.ms": "-1"},
            command=(*valgrind, *source_command(tree)),
            start_timeout_s=START_TIMEOUT_S,
        ) as broker:
            create_topics(broker, [(TOPIC, PARTITIONS)])
            client = Client(broker.host, broker.port)
            produce(client, ProduceRequests(case, TOPIC), WARM_UP_REQUESTS + requests)
            polls = sum(consume(client, TOPIC, case.batches)[0] for _ in range(passes))
            client.close()
        text = report.read_text()
    found = {}
    for figure, pattern in FIGURES.items():
        match = re.search(pattern, text)
        if match is None:
            raise SystemExit(f"valgrind does not count {figure}: {text[-300:]}")
        found[figure] = float(match[1].replace(",", ""))
    return found, polls


def per_produce(tree: Path, case: Case, requests: int) -> Counts:
    (few, _), (many, _) = counted(tree, case, 0), counted(tree, case, requests)
    return {figure: (many[figure] - few[figure]) / requests for figure in FIGURES}


def per_fetch(tree: Path, case: Case, requests: int) -> Counts:
    few, fewer_polls = counted(tree, case, requests, WARM_UP_PASSES)
    many, more_polls = counted(tree, case, requests, WARM_UP_PASSES + PASSES)
    polls = more_polls - fewer_polls
    return {figure: (many[figure] - few[figure]) / polls for figure in FIGURES}


def shown(counts: Counts) -> list[str]:
    return [f"{counts[figure]:15,.0f}" for figure in FIGURES]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--only", action="append", default=[], help="these cases only")
    parser.add_argument("--before", type=checkout, help="another checkout, counted as well")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed (Debian: apt-get install valgrind)")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONHASHSEED"] = "0"
    trees = [ROOT] if arguments.before is None else [ROOT, arguments.before]
    for tree in trees:  # not to be counted
        compileall.compile_dir(tree / "kbroker", quiet=1)
    print("          ", *(f"{figure:>15}" for figure in FIGURES))
    for case in (*CASES, *LZ4):
        if arguments.only and case.name not in arguments.only:
            continue
        for api, per_request in (("Produce", per_produce), ("Fetch", per_fetch)):
            costs = per_request(ROOT, case, arguments.requests)
            print(f"{api}, {case.name}\n    now   ", *shown(costs), flush=True)
            if arguments.before is None:
                continue
            before = per_request(arguments.before, case, arguments.requests)
            print("    before", *shown(before), flush=True)
            changes = {figure: costs[figure] / before[figure] - 1 for figure in FIGURES}
            print("    change", *(f"{changes[figure]:+15.1%}" for figure in FIGURES), flush=True)


if __name__ == "__main__":
    main()
