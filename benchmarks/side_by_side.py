"""kbroker and Apache Kafka 4.3.1 under the same load, in turns, one table of ratios.

    python benchmarks/side_by_side.py [--runs 3] [--megabytes 500] [--only NAME ...] [--json FILE]

Both are started on an empty folder with the same properties and warmed up, then driven by Kafka's
own perf tools (benchmarks/kafka_perf.py). Every figure is the median of the runs; the runs of the
two brokers take turns, so that a busy machine hurts both. CPU seconds are those of the broker's
process, per GB (1e9 bytes) of values.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import kafka_perf  # noqa: E402
from benchmarks.kafka_perf import Load  # noqa: E402
from kbroker.testing.process import BrokerProcess  # noqa: E402
from scripts.apache_kafka import ApacheKafka  # noqa: E402

Server = BrokerProcess | ApacheKafka
Figures = dict[str, float]

PROPERTIES = {
    "num.partitions": "6",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "3600000",
}
WARM_UP_BYTES = 300_000_000
LATENCY_RECORDS = 5_000
PAUSE_S = 1.0
"""Before and after a load, for what the last one left to do."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Produce to a topic of its own, then consume it.

    properties: of the producer, beside acks=all. rate: records per second, -1 without limit. share:
    how much of --megabytes it takes.
    """

    name: str
    record_bytes: int
    properties: tuple[str, ...] = ()
    rate: int = -1
    share: float = 1.0

    def records(self, megabytes: int) -> int:
        """How many records make its share of so many MB."""
        return int(megabytes * 1_000_000 * self.share / self.record_bytes)


WORKLOADS = (
    Workload("1 KB", 1000),
    Workload("100 B", 100, share=0.4),
    Workload("1 KB lz4", 1000, ("compression.type=lz4",)),
    Workload("10 KB, batch 1 MB", 10_000, ("batch.size=1048576", "max.request.size=4194304")),
)
LATENCY = "end to end, 100 B, acks=1"


def measured(server: Server, size: int, work: Callable[[], Load]) -> Figures:
    """One load on a server, `size` bytes of values."""
    time.sleep(PAUSE_S)
    before = server.cpu_seconds()
    load = work()
    time.sleep(PAUSE_S)
    spent = server.cpu_seconds() - before
    figures = {"cpu_s_per_gb": spent / (size / 1e9)}
    for name in ("mb_per_s", "average_ms", "p50_ms", "p99_ms", "p999_ms"):
        value = getattr(load, name)
        if value is not None:
            figures[name] = value
    return figures


def one_run(server: Server, megabytes: int, only: set[str]) -> dict[str, Figures]:
    """All workloads on a server just started."""
    bootstrap = server.bootstrap_servers
    found: dict[str, Figures] = {"idle": {"rss_mb": server.resident_bytes() / 1e6}}
    warm_up = WARM_UP_BYTES // 1000
    kafka_perf.produce(bootstrap, "warm-up", records=warm_up, record_bytes=1000)
    kafka_perf.consume(bootstrap, "warm-up", records=warm_up)
    for number, load in enumerate(WORKLOADS):
        if only and load.name not in only:
            continue
        topic, records = f"load-{number}", load.records(megabytes)
        size = records * load.record_bytes

        def produce(load: Workload = load, topic: str = topic, records: int = records) -> Load:
            return kafka_perf.produce(
                bootstrap,
                topic,
                records=records,
                record_bytes=load.record_bytes,
                properties=load.properties,
                records_per_s=load.rate,
            )

        def consume(topic: str = topic, records: int = records) -> Load:
            return kafka_perf.consume(bootstrap, topic, records=records)

        found[f"produce {load.name}"] = measured(server, size, produce)
        found[f"consume {load.name}"] = measured(server, size, consume)
    if not only or LATENCY in only:
        found[LATENCY] = measured(
            server,
            LATENCY_RECORDS * 100,
            lambda: kafka_perf.end_to_end(
                bootstrap, "latency", records=LATENCY_RECORDS, record_bytes=100
            ),
        )
    found["after the above"] = {"rss_mb": server.resident_bytes() / 1e6}
    return found


def kbroker(folder: Path) -> Server:
    return BrokerProcess(folder, overrides=PROPERTIES)


def apache_kafka(folder: Path) -> Server:
    return ApacheKafka(folder, overrides=PROPERTIES, heap="1g")


SERVERS: dict[str, Callable[[Path], Server]] = {"kbroker": kbroker, "kafka": apache_kafka}


def medians(runs: list[dict[str, Figures]]) -> dict[str, Figures]:
    """The median of each figure over the runs."""
    return {
        load: {name: statistics.median(run[load][name] for run in runs) for name in runs[0][load]}
        for load in runs[0]
    }


def table(results: dict[str, dict[str, Figures]]) -> list[str]:
    """Markdown: a row for each load and figure, with kbroker's share of Kafka's."""
    names = list(results)
    lines = [f"| load | figure | {' | '.join(names)} | ratio |", "|---|---|" + "---|" * 3]
    for load, figures in results[names[0]].items():
        for figure in figures:
            values = [results[name][load][figure] for name in names]
            ratio = f"{values[0] / values[1]:.2f}" if len(values) == 2 and values[1] else ""
            cells = " | ".join(f"{value:.2f}" for value in values)
            lines.append(f"| {load} | {figure} | {cells} | {ratio} |")
    return lines


def main() -> int:
    """Run, print the table, keep the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500, help="of values, for each load")
    parser.add_argument("--only", action="append", default=[], help="these loads only")
    parser.add_argument("--servers", nargs="+", choices=sorted(SERVERS), default=list(SERVERS))
    parser.add_argument("--json", type=Path, help="write every run's figures here")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    runs: dict[str, list[dict[str, Figures]]] = {name: [] for name in arguments.servers}
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        for number in range(arguments.runs):
            for name in arguments.servers:
                folder = base / f"{name}-{number}"
                with SERVERS[name](folder) as server:
                    time.sleep(5)
                    runs[name].append(one_run(server, arguments.megabytes, set(arguments.only)))
                shutil.rmtree(folder, ignore_errors=True)
                print(f"run {number + 1} of {arguments.runs}: {name}", file=sys.stderr)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("\n".join(table({name: medians(found) for name, found in runs.items()})))
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
