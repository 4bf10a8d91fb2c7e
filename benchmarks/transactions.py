"""Transactions of kbroker and Apache Kafka 4.3.1 side by side: how many a second, how long one
takes.

    python benchmarks/transactions.py [--runs 3] [--transactions 400] [--json FILE]

Kafka's own producer (TransactionLoad.java) commits transactions of 100 records of 100 bytes over
six partitions, one after the other: one producer, then eight at a time. Medians of the runs; the
brokers take turns (benchmarks/side_by_side.py). `whole` is from begin to the end of
commitTransaction, `commit` is commitTransaction with all records acknowledged before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import SERVERS, Figures, Server, medians, table  # noqa: E402
from kbroker.model import StartupError  # noqa: E402
from scripts.kafka_jars import tools_class_path  # noqa: E402

LOAD = Path(__file__).with_name("TransactionLoad.java")
PRODUCERS = (1, 8)
PARTITIONS = 6
RECORDS = 100
RECORD_BYTES = 100
WARM_UP = 0.25
"""Share of the transactions that is not counted."""
TIMEOUT_S = 900.0


def load(server: Server, producers: int, transactions: int) -> Figures:
    """transactions: counted ones of each producer. Raises RuntimeError if the load fails."""
    warm_up = max(1, int(transactions * WARM_UP))
    numbers = [PARTITIONS, producers, warm_up + transactions, warm_up, RECORDS, RECORD_BYTES]
    command = ["java", "-Xmx512m", "-cp", tools_class_path(), str(LOAD), server.bootstrap_servers]
    before = server.cpu_seconds()
    done = subprocess.run(
        [*command, f"load-{producers}", *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"the load ended with code {done.returncode}: {done.stderr[-500:]}")
    spent = server.cpu_seconds() - before
    said = {name: rest for name, *rest in map(str.split, done.stdout.splitlines())}
    return {
        "transactions_per_s": float(said["rate"][0]),
        "whole_p50_ms": float(said["whole"][0]),
        "whole_p99_ms": float(said["whole"][1]),
        "commit_p50_ms": float(said["commit"][0]),
        "commit_p99_ms": float(said["commit"][1]),
        "cpu_ms_each": 1000 * spent / (producers * (warm_up + transactions)),
    }


def one_run(server: Server, transactions: int) -> dict[str, Figures]:
    """All loads on a server just started."""
    load(server, 1, max(1, transactions // 4))  # the server warms up
    return {
        f"{producers} producer{'s' * (producers > 1)}": load(server, producers, transactions)
        for producers in PRODUCERS
    }


def main() -> int:
    """Run, print the table, keep the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--transactions", type=int, default=400, help="of each producer")
    parser.add_argument("--servers", nargs="+", choices=sorted(SERVERS), default=list(SERVERS))
    parser.add_argument("--json", type=Path, help="write every run's figures here")
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Figures]]] = {name: [] for name in arguments.servers}
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        for number in range(arguments.runs):
            for name in arguments.servers:
                with SERVERS[name](base / f"{name}-{number}") as server:
                    time.sleep(5)
                    runs[name].append(one_run(server, arguments.transactions))
                shutil.rmtree(base / f"{name}-{number}", ignore_errors=True)
                print(f"run {number + 1} of {arguments.runs}: {name}", file=sys.stderr)
    except (RuntimeError, StartupError, TimeoutError) as error:
        print(f"transactions: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("\n".join(table({name: medians(found) for name, found in runs.items()})))
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
