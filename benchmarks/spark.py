"""The Spark pack and Spark's Kafka source: kbroker beside Apache Kafka 4.3.1, and the pack beside
what one would write with Spark alone.

    python benchmarks/spark.py [--parts read archive sink source] [--rounds 5] [--warm-up 5]
        [--megabytes 200] [--batches 300] [--json FILE]

    read      both brokers, rows per second that a batch query reads, and the broker's CPU: 100 B
              and 1 KB, 1 and 12 partitions, plain and lz4
    archive   `archive` beside a query written by hand, Spark's CPU
    sink      `kafka_sink` beside Spark's sink, which writes at least once; batches of a few rows
    source    the format `kbroker` beside Spark's Kafka connector
    workers   `archive` on a standalone cluster of one worker and of two, a core each
    compact   files of an hour of a topic of 12 partitions, a batch every 10 s, before and after
    memory    the driver of an `archive` over --batches batches

Without --parts the first four run, in a quarter of an hour. All loads of a part take turns in one
Spark session (workers: clusters of their own) until two rounds in a row differ by less than 10 % in
CPU per byte; medians of the rounds after that. --json keeps what a part found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import archive_files  # noqa: E402
from benchmarks.side_by_side import SERVERS, Figures, Results, Server, table  # noqa: E402
from benchmarks.spark_loads import (  # noqa: E402
    RATE,
    SMALL_BATCHES,
    SMALL_ROWS,
    Filled,
    archived,
    read,
    small_batches,
    written,
)
from benchmarks.spark_long import (  # noqa: E402
    MEMORY_HEADING,
    archive_on_workers,
    driver_memory,
)
from benchmarks.steady import STEADY_FIGURE, steady_medians  # noqa: E402
from spark_jobs.session import open_session, ship  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("read", "archive", "sink", "source", "workers", "compact", "memory")
DEFAULT_PARTS: Final = PARTS[:4]
SMALL_SHARE: Final = 0.4
"""Of --megabytes, in records of 100 B, of which Spark reads fewer bytes per second."""

SESSION: Final = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
}
READ_GOALS: Final = {RATE: 0.97, STEADY_FIGURE: 0.9}
PART_GOALS: Final = {"archive": 0.9, "sink": 0.5, "source": 0.4, "workers": 1.6}
"""Of rows per second."""

Ways = Mapping[str, Callable[[int], Mapping[str, Figures]]]


class Part:
    """What a part works with. found: its results, tables of lines that are ready, by name."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.rounds: int = arguments.rounds
        self.warm_up: int = arguments.warm_up
        self.megabytes: int = arguments.megabytes
        self.batches: int = arguments.batches
        self.folder = folder
        self.found: dict[str, Results] = {}

    def topic(self, record_bytes: int, partitions: int, codec: str = "none") -> Filled:
        """A load of its share of --megabytes."""
        share = SMALL_SHARE if record_bytes < 1000 else 1.0
        records = int(self.megabytes * 1_000_000 * share / record_bytes)
        return Filled(record_bytes, partitions, codec, records)

    def measure(self, name: str, ways: Ways, goals: Mapping[tuple[str, str], float]) -> None:
        """Measure ways in turns and print their table. The first is held against the second."""
        results = steady_medians(ways, measured=self.rounds, most=self.warm_up)
        known = self.found.setdefault(name, {})
        for way, figures in results.items():
            known.setdefault(way, {}).update(figures)
        show(table(results, goals))


def show(lines: Sequence[str]) -> None:
    """Print, also into a pipe, what is there already."""
    print("\n".join((*lines, "")), flush=True)


def named(load: str, run: Callable[[], Figures]) -> Callable[[int], Mapping[str, Figures]]:
    """A round of one load."""
    return lambda number: {load: run()}


def read_part(part: Part, spark: SparkSession, servers: Mapping[str, Server]) -> None:
    for record_bytes, partitions, codec in product((100, 1000), (1, 12), ("none", "lz4")):
        topic = part.topic(record_bytes, partitions, codec)
        for server in servers.values():
            topic.fill(server.bootstrap_servers)
        ways = {
            name: named(topic.title, partial(read, spark, server, topic))
            for name, server in servers.items()
        }
        goals = {(topic.title, figure): goal for figure, goal in READ_GOALS.items()}
        part.measure("read", ways, goals)


def archive_part(part: Part, spark: SparkSession, servers: Mapping[str, Server]) -> None:
    server = servers["kbroker"]
    for record_bytes in (100, 1000):
        topic = part.topic(record_bytes, 3)
        topic.fill(server.bootstrap_servers)
        run = partial(archived, spark, server, topic, part.folder)
        ways = {
            "archive": named(topic.title, partial(run, by_hand=False)),
            "by hand": named(topic.title, partial(run, by_hand=True)),
        }
        part.measure("archive", ways, {(topic.title, RATE): PART_GOALS["archive"]})


def sink_part(part: Part, spark: SparkSession, servers: Mapping[str, Server]) -> None:
    server = servers["kbroker"]
    ship(spark)
    few = Filled(100, 1, "none", SMALL_BATCHES * SMALL_ROWS)
    loads = [(part.topic(size, 2), written) for size in (100, 1000)]
    for topic, load in [*loads, (few, small_batches)]:
        topic.fill(server.bootstrap_servers)
        title = topic.title if load is written else f"{SMALL_ROWS} rows a batch (goal: 0.3 s)"
        run = partial(load, spark, server, topic, part.folder)
        ways = {
            "kafka_sink": named(title, partial(run, sink="kafka_sink")),
            "Spark's sink": named(title, partial(run, sink="Spark's sink")),
            "kafka_sink, keep": named(title, partial(run, sink="kafka_sink keep")),
        }
        part.measure("sink", ways, {(title, RATE): PART_GOALS["sink"]})


def source_part(part: Part, spark: SparkSession, servers: Mapping[str, Server]) -> None:
    from spark_jobs.data_source.source import register

    server = servers["kbroker"]
    ship(spark)
    register(spark)
    for record_bytes, codec in product((100, 1000), ("none", "lz4")):
        topic = part.topic(record_bytes, 4, codec)
        topic.fill(server.bootstrap_servers)
        ways = {
            "kbroker": named(topic.title, partial(read, spark, server, topic, "kbroker")),
            "connector": named(topic.title, partial(read, spark, server, topic, "kafka")),
        }
        part.measure("source", ways, {(topic.title, RATE): PART_GOALS["source"]})


def memory_part(part: Part, spark: SparkSession, servers: Mapping[str, Server]) -> None:
    server = servers["kbroker"]
    topic = Filled(100, 1, "none", part.batches)
    topic.fill(server.bootstrap_servers)
    show(MEMORY_HEADING[:1])
    samples = []
    for sample in driver_memory(spark, server, topic, part.batches, part.folder):
        show([str(sample)])
        samples.append(sample)
    heaps = [sample.heap_mb for sample in samples]
    show([f"heap of the last three samples by that of the first three: {growth(heaps):.2f}"])
    part.found["memory"] = {
        "driver": {
            f"{sample.batches} batches": {
                "heap_mb": sample.heap_mb,
                "jvm_mb": sample.jvm_mb,
                "python_mb": sample.python_mb,
            }
            for sample in samples
        }
    }


def growth(values: Sequence[float]) -> float:
    """How much larger the last three are than the first three."""
    return statistics.median(values[-3:]) / statistics.median(values[:3])


IN_SESSION: Final[dict[str, Callable[[Part, SparkSession, Mapping[str, Server]], None]]] = {
    "read": read_part,
    "archive": archive_part,
    "sink": sink_part,
    "source": source_part,
    "memory": memory_part,
}


def workers_part(part: Part, servers: Mapping[str, Server]) -> None:
    server = servers["kbroker"]
    topic = part.topic(1000, 12)
    topic.fill(server.bootstrap_servers)
    found: dict[int, list[float]] = {2: [], 1: []}
    for number in range(part.rounds):
        for workers in (1, 2) if number % 2 else (2, 1):
            found[workers].append(archive_on_workers(server, topic, workers)[RATE])
    results = {
        f"{workers} workers": {topic.title: {RATE: statistics.median(rates)}}
        for workers, rates in found.items()
    }
    part.found["workers"] = results
    show(table(results, {(topic.title, RATE): PART_GOALS["workers"]}))


def compact_part(part: Part) -> None:
    found = archive_files.compacted()
    took = f"{found.elapsed_s:.1f} s, {found.cpu_s:.1f} CPU-s"
    show([f"an hour: {found.before}; after compact: {found.after} ({took})"])
    counts = {"before": found.before, "after": found.after}
    part.found["compact"] = {
        name: {"an hour": {"files": float(files.count), "mb": files.size_bytes / 1e6}}
        for name, files in counts.items()
    }


def run_parts(parts: Sequence[str], part: Part) -> None:
    """Run parts in the order of PARTS, with the servers that they need."""
    wanted = [name for name in PARTS if name in parts]
    kinds = ["kbroker", "kafka"] if "read" in wanted else ["kbroker"]
    in_session = [name for name in wanted if name in IN_SESSION]
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        if wanted != ["compact"]:
            for kind in kinds:
                servers[kind] = stack.enter_context(SERVERS[kind](part.folder / kind))
            time.sleep(5)
        if in_session:
            with open_session("kbroker benchmark", SESSION) as spark:
                for name in in_session:
                    show([f"{name}:"])
                    IN_SESSION[name](part, spark, servers)
        if "workers" in wanted:
            show(["workers:"])
            workers_part(part, servers)
    if "compact" in wanted:
        show(["compact:"])
        compact_part(part)


def main() -> int:
    """Run, print tables, keep the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=DEFAULT_PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="measured ones, after the warm-up")
    parser.add_argument("--warm-up", type=int, default=5, help="at most so many rounds before")
    parser.add_argument("--megabytes", type=int, default=200, help="of values, for each load")
    parser.add_argument("--batches", type=int, default=300, help="of the part memory")
    parser.add_argument("--json", type=Path, help="keep the figures of the parts here")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{date.today()}, load {os.getloadavg()[0]:.1f}, medians of {arguments.rounds} rounds"
    )
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as name:
        part = Part(arguments, Path(name))
        run_parts(arguments.parts, part)
    if arguments.json:
        known = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        arguments.json.write_text(json.dumps(known | part.found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
