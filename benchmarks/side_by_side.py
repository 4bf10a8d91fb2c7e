"""kbroker and Apache Kafka 4.3.1 under the same load, in turns, one table of ratios.

    python benchmarks/side_by_side.py [--runs 3] [--rounds 3] [--megabytes 250] [--seconds 10]
        [--only NAME ...] [--json FILE] [--plots FOLDER] [--before DIR]

Both servers are started on an empty folder with the same properties and driven by Kafka's own perf
tools (benchmarks/kafka_perf.py). First each topic is written at full speed and read afterwards;
then come workloads with the names and shapes of the OpenMessaging benchmark, in which a producer
sends at a fixed rate (a tenth of OpenMessaging's, because clients and broker share a small machine)
while a consumer reads.

All servers run at once, and one is loaded at a time. Each load is repeated, the servers taking
turns within a round and at going first, until two rounds in a row differ by less than 10 % in CPU
per byte on each of them; only the rounds after that count (benchmarks/steady.py). So a JVM's
compiler is not measured as a cost of records, and a machine that is busy for some minutes hurts all
alike. Every figure is the median over the runs of the medians of their measured rounds. CPU seconds
are those of the broker's process, per GB (1e9 bytes) of values produced or read.

--json keeps the runs: another call with the same file adds its own, and the table and the plots are
of all. --before measures the sources in another folder as a third broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import kafka_perf  # noqa: E402
from benchmarks.kafka_perf import Load  # noqa: E402
from benchmarks.steady import CPU_FIGURE, MEASURED_ROUNDS, steady_medians  # noqa: E402
from benchmarks.svg import bars  # noqa: E402
from kbroker.client.cluster import Client, check  # noqa: E402
from kbroker.protocol.messages.admin.topics import (  # noqa: E402
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.testing.process import BrokerProcess  # noqa: E402
from scripts.apache_kafka import ApacheKafka  # noqa: E402

Server = BrokerProcess | ApacheKafka
Figures = dict[str, float]
Results = dict[str, dict[str, Figures]]
"""Server to load to figures."""

PROPERTIES = {
    "num.partitions": "6",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "3600000",
    "log.segment.delete.delay.ms": "1000",  # see DELETION_S
}
LATENCY_RECORDS = 5_000
BARE_BYTES_PER_S = 60_000_000
PAUSE_S = 1.0
"""Before and after a load, for what the last one left to do."""
DELETION_S = 3.0
"""For a server to delete the files of a round's topic. It is the next one to be loaded if it goes
first in the next round, which would be charged with the deletion.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Produce to a topic of its own as fast as it goes, then consume it.

    properties: of the producer, beside acks=all. share: how much of --megabytes it takes.
    """

    name: str
    record_bytes: int
    properties: tuple[str, ...] = ()
    share: float = 1.0

    def records(self, megabytes: int) -> int:
        """How many records make its share of so many MB."""
        return int(megabytes * 1_000_000 * self.share / self.record_bytes)

    def topic(self, number: int) -> str:
        """The topic of a round."""
        return f"{self.name.replace(' ', '-').replace(',', '')}-{number}"


@dataclass(frozen=True, slots=True)
class Paced:
    """A producer and a consumer at once, as in the OpenMessaging benchmark. rate: records per
    second, -1 without limit. backlog: MB that the topic holds before the consumer begins.
    """

    name: str
    partitions: int
    record_bytes: int
    rate: int
    backlog: int = 0

    def records(self, megabytes: int, seconds: float) -> int:
        """What the producer sends beside the consumer."""
        if self.rate < 0:
            return megabytes * 1_000_000 // self.record_bytes
        return int(self.rate * seconds)


WORKLOADS = (
    Workload("1 KB", 1000),
    Workload("100 B", 100, share=0.4),
    Workload("1 KB lz4", 1000, ("compression.type=lz4",)),
    Workload("10 KB, batch 1 MB", 10_000, ("batch.size=1048576", "max.request.size=4194304")),
)
PACED = (
    Paced("1-topic-1-partition-100b", 1, 100, 50_000),
    Paced("1-topic-1-partition-1kb", 1, 1000, 5_000),
    Paced("1-topic-16-partitions-1kb", 16, 1000, 5_000),
    Paced("1-topic-100-partitions-1kb", 100, 1000, 5_000),
    Paced("max-rate-1-topic-1-partition-1kb", 1, 1000, -1),
    Paced("backlog-1-topic-1-partition-1kb", 1, 1000, 5_000, backlog=400),
)
LATENCY = "end to end, 100 B, acks=1"
GOALS = {
    ("produce 1 KB", "cpu_s_per_gb"): 0.4,
    ("produce 1 KB", "mb_per_s"): 1.2,
    ("produce 100 B", "cpu_s_per_gb"): 0.4,
    ("produce 100 B", "mb_per_s"): 1.2,
    ("produce 1 KB lz4", "cpu_s_per_gb"): 0.45,
    ("produce 1 KB lz4", "mb_per_s"): 1.0,
    ("produce 10 KB, batch 1 MB", "cpu_s_per_gb"): 0.5,
    ("produce 10 KB, batch 1 MB", "mb_per_s"): 1.2,
    ("consume 1 KB", "cpu_s_per_gb"): 0.8,
    ("consume 100 B", "cpu_s_per_gb"): 0.8,
    ("consume 1 KB lz4", "cpu_s_per_gb"): 0.75,
    ("consume 10 KB, batch 1 MB", "cpu_s_per_gb"): 0.85,
    ("consume 1 KB", "mb_per_s"): 1.0,
    ("consume 100 B", "mb_per_s"): 1.0,
    ("consume 1 KB lz4", "mb_per_s"): 1.0,
    ("consume 10 KB, batch 1 MB", "mb_per_s"): 1.0,
    ("after the above", "rss_mb"): 0.11,
    ("idle", "rss_mb"): 0.12,
}
"""Ratios to Apache Kafka in the same run."""


class Measured(Protocol):
    """A server, or the nodes of a cluster taken together."""

    @property
    def bootstrap_servers(self) -> str: ...
    def cpu_seconds(self) -> float: ...


def measured(server: Measured, size: int, work: Callable[[], Load]) -> Figures:
    """One load on a server, `size` bytes of values."""
    time.sleep(PAUSE_S)
    before = server.cpu_seconds()
    load = work()
    time.sleep(PAUSE_S)
    spent = server.cpu_seconds() - before
    figures = {"cpu_s_per_gb": spent / (size / 1e9), CPU_FIGURE: spent}
    for name in ("mb_per_s", "average_ms", "p50_ms", "p99_ms", "p999_ms"):
        value = getattr(load, name)
        if value is not None:
            figures[name] = value
    return figures


def one_run(
    servers: Mapping[str, Server], megabytes: int, seconds: float, only: set[str], rounds: int
) -> Results:
    """All workloads on servers just started."""
    found: Results = {}
    for name, server in servers.items():
        found[name] = {
            "idle": {"rss_mb": server.resident_bytes() / 1e6},
            "bare write of 16 KB": {"cpu_s_per_gb": bare_write(server.data.parent)},
        }

    def measure(run_round: Callable[[Server, int], dict[str, Figures]]) -> None:
        each = {
            name: partial(named_round, name, run_round, server) for name, server in servers.items()
        }
        for name, figures in steady_medians(each, measured=rounds).items():
            found[name] |= figures

    for load in WORKLOADS:
        if not only or load.name in only:
            measure(partial(produce_and_consume, load, megabytes))
    if not only or LATENCY in only:
        measure(latency_round)
    for name, server in servers.items():
        found[name]["after the above"] = {"rss_mb": server.resident_bytes() / 1e6}
    for paced in PACED:
        if not only or paced.name in only:
            measure(partial(paced_round, paced, megabytes, seconds))
    if not only:
        for name, server in servers.items():
            found[name]["at the end"] = {"rss_mb": server.resident_bytes() / 1e6}
    return found


def named_round(
    name: str,
    run_round: Callable[[Server, int], dict[str, Figures]],
    server: Server,
    number: int,
) -> dict[str, Figures]:
    """A round. Raises RecordsLostError, which tells the server."""
    try:
        return run_round(server, number)
    except kafka_perf.RecordsLostError as error:
        raise kafka_perf.RecordsLostError(f"{name}: {error}") from error


def produce_and_consume(
    load: Workload, megabytes: int, server: Measured, number: int
) -> dict[str, Figures]:
    """One round: a topic is written at full speed, read, and deleted."""
    bootstrap, topic = server.bootstrap_servers, load.topic(number)
    records = load.records(megabytes)
    size = records * load.record_bytes
    produced = measured(
        server,
        size,
        partial(
            kafka_perf.produce,
            bootstrap,
            topic,
            records=records,
            record_bytes=load.record_bytes,
            properties=load.properties,
        ),
    )
    consumed = measured(
        server, size, partial(kafka_perf.consume, bootstrap, topic, records=records)
    )
    end_round(bootstrap, topic)
    return {f"produce {load.name}": produced, f"consume {load.name}": consumed}


def latency_round(server: Server, number: int) -> dict[str, Figures]:
    """One record at a time from a producer to a consumer."""
    found = measured(
        server,
        LATENCY_RECORDS * 100,
        lambda: kafka_perf.end_to_end(
            server.bootstrap_servers,
            f"latency-{number}",
            records=LATENCY_RECORDS,
            record_bytes=100,
        ),
    )
    return {LATENCY: found}


def bare_write(folder: Path) -> float:
    """CPU seconds per GB of writing to a new file as fast as a producer sends: what no broker can
    do without. Much of it is the system finding memory for the page cache.
    """
    piece, pieces = os.urandom(16 * 1024), 8_000
    spent, started = 0.0, time.monotonic()
    path = folder / "bare"
    with path.open("wb", buffering=0) as file:
        for number in range(pieces):
            time.sleep(
                max(0.0, started + number * len(piece) / BARE_BYTES_PER_S - time.monotonic())
            )
            before = time.thread_time()
            file.write(piece)
            spent += time.thread_time() - before
    path.unlink()
    return spent / (pieces * len(piece) / 1e9)


def paced_round(
    load: Paced, megabytes: int, seconds: float, server: Server, number: int
) -> dict[str, Figures]:
    """One round of a producer and a consumer at once; of a backlog the consumer's rate counts."""
    bootstrap, records = server.bootstrap_servers, load.records(megabytes, seconds)
    topic = f"{load.name}-{number}"
    asyncio.run(create_topic(bootstrap, topic, load.partitions))
    before = load.backlog * 1_000_000 // load.record_bytes
    if before:
        kafka_perf.produce(bootstrap, topic, records=before, record_bytes=load.record_bytes)

    def both() -> Load:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(kafka_perf.consume, bootstrap, topic, records=before + records)
            produced = kafka_perf.produce(
                bootstrap,
                topic,
                records=records,
                record_bytes=load.record_bytes,
                records_per_s=load.rate,
            )
            consumed = reading.result()
        if before:
            return replace(produced, mb_per_s=consumed.mb_per_s)
        return produced

    found = measured(server, (before + 2 * records) * load.record_bytes, both)
    end_round(bootstrap, topic)
    return {load.name: found}


def end_round(bootstrap: str, topic: str) -> None:
    """Delete the topic of a round and wait until its files are deleted too."""
    asyncio.run(delete_topic(bootstrap, topic))
    time.sleep(DELETION_S)


async def create_topic(bootstrap: str, name: str, partitions: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    async with Client(bootstrap) as cluster:
        response = await cluster.to_controller(request, CreateTopicsResponse)
        check(response.topics[0].error_code, response.topics[0].error_message)


async def delete_topic(bootstrap: str, name: str) -> None:
    state = DeleteTopicsRequest.DeleteTopicState(name=name)
    request = DeleteTopicsRequest(topics=[state], timeout_ms=60_000)
    async with Client(bootstrap) as cluster:
        response = await cluster.to_controller(request, DeleteTopicsResponse)
        check(response.responses[0].error_code, response.responses[0].error_message)


def kbroker(folder: Path) -> Server:
    return BrokerProcess(folder, overrides=PROPERTIES)


def apache_kafka(folder: Path) -> Server:
    return ApacheKafka(folder, overrides=PROPERTIES, heap="1g")


SERVERS: dict[str, Callable[[Path], Server]] = {"kbroker": kbroker, "kafka": apache_kafka}


def source_tree(tree: Path) -> Callable[[Path], Server]:
    """A kbroker run from other sources."""
    command = source_command(tree)
    return lambda folder: BrokerProcess(folder, overrides=PROPERTIES, command=command)


def checkout(text: str) -> Path:
    """The folder that `--before` names. Without kbroker's sources in it, Python would import those
    of this checkout instead, and the comparison would be one with itself.
    """
    tree = Path(text)
    if not (tree / "kbroker" / "__main__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text} is no folder with a checkout of kbroker")
    return tree


def source_command(tree: Path) -> tuple[str, ...]:
    """`kbroker` of the sources in a folder."""
    program = f"import runpy, sys; sys.path.insert(0, {str(tree.resolve())!r}); " + (
        "runpy.run_module('kbroker', run_name='__main__', alter_sys=True)"
    )
    return sys.executable, "-c", program


def medians(runs: list[dict[str, Figures]]) -> dict[str, Figures]:
    """The median of each figure over the runs that have it."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for load, figures in run.items():
            for name, value in figures.items():
                found.setdefault(load, {}).setdefault(name, []).append(value)
    return {
        load: {name: statistics.median(values) for name, values in figures.items()}
        for load, figures in found.items()
    }


def table(results: Results, goals: Mapping[tuple[str, str], float] = GOALS) -> list[str]:
    """Markdown: a row for each load and figure; kbroker's share of Kafka's, and the goal."""
    names = list(results)
    lines = [
        f"| load | figure | {' | '.join(names)} | ratio | goal |",
        "|---|---|" + "---|" * (len(names) + 2),
    ]
    for load, figures in results[names[0]].items():
        for figure in figures:
            if figure == CPU_FIGURE:
                continue  # the share of a GB tells more
            values = [results[name].get(load, {}).get(figure, math.nan) for name in names]
            ratio = f"{values[0] / values[1]:.2f}" if len(values) > 1 and values[1] else ""
            goal = goals.get((load, figure))
            cells = " | ".join(f"{value:.3g}" for value in values)
            lines.append(
                f"| {load} | {figure} | {cells} | {ratio} | {'' if goal is None else goal} |"
            )
    return lines


def write_plots(folder: Path, results: Results) -> None:
    """One SVG of ratios for each figure."""
    folder.mkdir(parents=True, exist_ok=True)
    ours, theirs = results["kbroker"], results["kafka"]
    titles = {
        "cpu_s_per_gb": "CPU of the broker per GB, as a share of Apache Kafka's (less is better)",
        "mb_per_s": "Throughput, as a share of Apache Kafka's (more is better)",
        "p99_ms": "99th percentile of latency, as a share of Apache Kafka's (less is better)",
        "rss_mb": "Resident memory, as a share of Apache Kafka's (less is better)",
    }
    for figure, title in titles.items():
        ratios = {
            load: figures[figure] / theirs[load][figure]
            for load, figures in ours.items()
            if figures.get(figure) and theirs.get(load, {}).get(figure)
        }
        if ratios:
            plot = bars(title, ratios, mark=1.0, mark_name="Apache Kafka")
            (folder / f"side-by-side-{figure.replace('_', '-')}.svg").write_text(plot)


def complete_run(
    makers: Mapping[str, Callable[[Path], Server]],
    folder: Path,
    run: Callable[[Mapping[str, Server]], Results],
) -> Results | None:
    """One run of servers started on empty folders. None if a producer lost records, which is
    printed: after one start in some twenty Apache Kafka refuses the first batch of a producer until
    it expires, with OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    try:
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(make(folder / name)) for name, make in makers.items()
            }
            time.sleep(5)
            return run(servers)
    except kafka_perf.RecordsLostError as error:
        print(error, file=sys.stderr, flush=True)
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run, print the table, keep the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--rounds", type=int, default=MEASURED_ROUNDS, help="measured ones, after the warm-up"
    )
    parser.add_argument("--megabytes", type=int, default=250, help="of values, for each load")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load with a rate")
    parser.add_argument("--only", action="append", default=[], help="these loads only")
    parser.add_argument("--servers", nargs="+", choices=sorted(SERVERS), default=list(SERVERS))
    parser.add_argument("--json", type=Path, help="keep every run's figures here, with older ones")
    parser.add_argument("--plots", type=Path, help="write SVGs of the ratios into this folder")
    parser.add_argument("--before", type=checkout, help="another checkout, measured as well")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    servers = {name: SERVERS[name] for name in arguments.servers}
    if arguments.before is not None:
        servers["before"] = source_tree(arguments.before)
    runs: dict[str, list[dict[str, Figures]]] = {name: [] for name in servers}
    if arguments.json and arguments.json.exists():
        runs |= json.loads(arguments.json.read_text())
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        run = partial(
            one_run,
            megabytes=arguments.megabytes,
            seconds=arguments.seconds,
            only=set(arguments.only),
            rounds=arguments.rounds,
        )
        for number in range(arguments.runs):
            figures = complete_run(servers, base / str(number), run)
            while figures is None:
                print(f"run {number + 1} once more", file=sys.stderr, flush=True)
                figures = complete_run(servers, base / str(number), run)
            for name in servers:
                runs[name].append(figures[name])
            print(f"run {number + 1} of {arguments.runs} is done", file=sys.stderr, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(runs, indent=1))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{date.today()}, medians of {min(map(len, runs.values()))} runs"
    )
    results = {name: medians(found) for name, found in runs.items()}
    print("\n".join(table(results)))
    if arguments.plots and {"kbroker", "kafka"} <= results.keys():
        write_plots(arguments.plots, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
