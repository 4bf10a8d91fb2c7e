"""What a Produce and a Fetch request cost the broker over a real socket: CPU, system calls, bytes.

    python benchmarks/wire_cost.py [--megabytes 300] [--only NAME ...] [--before DIR] [--no-strace]

A client in this process sends prepared requests as Kafka's Java clients do (an idempotent producer
with five requests under way; a consumer with a session) and looks at every answer. CPU is the
broker's own user and system time; bytes are what it passed through read and write calls
(/proc/<pid>/io; sendfile counts twice); system calls are counted by `strace -c`
in a short run of its own, since strace slows them down. Linux only.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import checkout  # noqa: E402
from benchmarks.wire import (  # noqa: E402
    Case,
    Client,
    ProduceRequests,
    consume,
    create_topics,
    produce,
)
from kbroker.testing.process import BrokerProcess  # noqa: E402

PARTITIONS = 6
STRACE_REQUESTS = 400

CASES = (
    Case("6 x 16 KB of 1 KB records", 6, 15, 1000),
    Case("1 x 16 KB of 1 KB records", 1, 15, 1000),
    Case("6 x 16 KB of 100 B records", 6, 147, 100),
    Case("1 record of 100 B", 1, 1, 100),
    Case("1 x 1 MB of 10 KB records", 1, 100, 10_000),
    Case("4 x 1 MB of 10 KB records", 4, 100, 10_000),
)


@dataclass(slots=True)
class Cost:
    """Of one request, on average; cpu_us is user and system_us together."""

    cpu_us: float
    system_us: float
    wall_us: float
    payload_bytes: float
    io_bytes: float
    calls: float = 0.0
    call_names: str = ""

    def __str__(self) -> str:
        return (
            f"{self.cpu_us:8.1f} us CPU ({self.system_us:6.1f} of the system), "
            f"{self.cpu_us * 1000 / self.payload_bytes:6.2f} s/GB, wall {self.wall_us:8.1f} us, "
            f"{self.payload_bytes:8.0f} B, through calls {self.io_bytes:8.0f} B, "
            f"{self.calls:6.2f} system calls: {self.call_names}"
        )


def system_seconds(pid: int) -> float:
    """Of the process, in the system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / os.sysconf("SC_CLK_TCK")


def io_bytes(pid: int) -> int:
    fields = dict(
        line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines() if line
    )
    return int(fields["rchar"]) + int(fields["wchar"])


def measured(broker: BrokerProcess, work: Callable[[], tuple[int, int]]) -> Cost:
    """work returns (requests, bytes)."""
    pid = broker.pid
    cpu, system, io = broker.cpu_seconds(), system_seconds(pid), io_bytes(pid)
    wall = time.perf_counter()
    count, size = work()
    wall = time.perf_counter() - wall
    cpu, system = broker.cpu_seconds() - cpu, system_seconds(pid) - system
    return Cost(
        cpu / count * 1e6,
        system / count * 1e6,
        wall / count * 1e6,
        size / count,
        (io_bytes(pid) - io) / count,
    )


def traced(broker: BrokerProcess, cost: Cost, work: Callable[[], tuple[int, int]]) -> None:
    """Add the system calls of a request. work as in `measured`."""
    with tempfile.NamedTemporaryFile("r") as out:
        command = ["strace", "-c", "-f", "-U", "name,calls", "-o", out.name, "-p", str(broker.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        if tracer.stderr is not None:
            tracer.stderr.readline()  # "attached"
        count, _ = work()
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        lines = [line.split() for line in out.read().splitlines()]
    calls = {line[0]: int(line[1]) for line in lines if len(line) >= 2 and line[1].isdigit()}
    total = calls.pop("total", 0) or sum(calls.values())
    cost.calls = total / count
    most = sorted(calls.items(), key=lambda item: -item[1])
    cost.call_names = ", ".join(f"{name} {n / count:.2f}" for name, n in most if n / count >= 0.05)


def costs(
    broker: BrokerProcess, megabytes: int, only: set[str], trace: bool
) -> Iterator[tuple[str, Cost]]:
    for number, case in enumerate(CASES):
        if only and case.name not in only:
            continue
        topic = f"cost-{number}"
        create_topics(broker, [(topic, PARTITIONS)])
        client = Client(broker.host, broker.port)
        requests = ProduceRequests(case, topic)
        size = len(requests.frame)
        count = max(50, min(10_000, megabytes * 1_000_000 // size))
        produce(client, requests, max(10, count // 10))

        def produced(
            count: int = count,
            client: Client = client,
            requests: ProduceRequests = requests,
            size: int = size,
        ) -> tuple[int, int]:
            produce(client, requests, count)
            return count, count * size

        cost = measured(broker, produced)
        if trace:
            few = min(count, STRACE_REQUESTS)
            traced(broker, cost, partial(produced, few))
        yield f"Produce, {case.name}", cost

        consumed = partial(consume, client, topic, case.batches)
        consumed()
        cost = measured(broker, consumed)
        if trace:
            traced(broker, cost, partial(consumed, limit=20))
        yield f"Fetch, {case.name}", cost
        client.close()


def broker_of(tree: Path, folder: Path) -> BrokerProcess:
    """A broker run from the sources in tree."""
    program = f"import runpy, sys; sys.path.insert(0, {str(tree)!r}); " + (
        "runpy.run_module('kbroker', run_name='__main__', alter_sys=True)"
    )
    return BrokerProcess(
        folder, overrides={"log.retention.ms": "-1"}, command=(sys.executable, "-c", program)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=300, help="for each case")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--no-strace", action="store_true")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--before", type=checkout, help="another checkout, measured in turns with this"
    )
    arguments = parser.parse_args()
    trace = not arguments.no_strace and shutil.which("strace") is not None
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    trees = [ROOT] if arguments.before is None else [arguments.before.resolve(), ROOT]
    for run in range(arguments.runs):
        # in turns at going first, as the second one runs while the disk takes what the first wrote
        for tree in trees if run % 2 == 0 else reversed(trees):
            print(f"run {run + 1}, {tree}")
            with (
                tempfile.TemporaryDirectory() as folder,
                broker_of(tree, Path(folder) / "data") as broker,
            ):
                for name, cost in costs(broker, arguments.megabytes, set(arguments.only), trace):
                    print(f"{name:<36} {cost}", flush=True)


if __name__ == "__main__":
    main()
