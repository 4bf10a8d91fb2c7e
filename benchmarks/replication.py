"""Three nodes of kbroker and three of Apache Kafka 4.3.1, each a controller and a broker, with
topics of three replicas: throughput and CPU, the gap when a leader is killed, the return of a
replica, and what an idle cluster costs.

    python benchmarks/replication.py [--runs 3] [--parts load failover recovery idle]
        [--loads "1 KB" "100 B"] [--rounds 3] [--megabytes 250] [--timeouts NAME ...] [--kills 2]
        [--catch-up 1000] [--partitions 1000] [--seconds 20] [--settle 20] [--before DIR]
        [--servers kbroker kafka] [--json FILE]

The properties of both are the same (benchmarks/replica_nodes.py); min.insync.replicas is 2. Each
part has a cluster of its own, on an empty folder:

- `load`: Kafka's ProducerPerformance with acks=all writes to 6 partitions at full speed, and
  ConsumerPerformance reads them. Rounds are repeated until two in a row differ by less than 10 % in
  CPU per byte (benchmarks/steady.py); those after them count. CPU seconds are those of all three
  nodes per GB (1e9 bytes) of values produced or read: each byte is written three times.
- `failover`: kill -9 of a partition's leader, of one that is the active controller and of one that
  is not: the longest gap between acknowledgements to a producer, and between records received by a
  consumer (benchmarks/leader_kill.py); with Kafka's timeouts, and with short ones.
- `recovery`: a broker is stopped, once by SIGTERM and once by SIGKILL, --catch-up MB are produced
  to partitions that it has replicas of, and it is started again. From its start: seconds until it
  is a broker of the cluster, and until it is in every ISR; CPU of it, and of the two others.
- `idle`: CPU seconds a second and resident memory of the active controller's node, of another one,
  and CPU of all three, without topics and with --partitions of three replicas each, over --seconds
  after --settle seconds.

The clusters take turns, one part at a time, and at going first; every figure is the median over the
runs. --json keeps the runs: another call with the same file adds its own. --before measures the
sources in another folder too. A run of all parts takes some half an hour on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import kafka_perf  # noqa: E402
from benchmarks.controllers import MIB, in_turn, topic_requests  # noqa: E402
from benchmarks.leader_kill import gap_figures, kill_leader  # noqa: E402
from benchmarks.replica_nodes import (  # noqa: E402
    PROPERTIES,
    REPLICAS,
    TIMEOUTS,
    MakeNode,
    ReplicaCluster,
    is_in_sync,
    is_listed,
    kafka_node,
    kbroker_node,
    running_cluster,
)
from benchmarks.side_by_side import (  # noqa: E402
    WORKLOADS,
    Figures,
    Results,
    Workload,
    checkout,
    delete_topic,
    medians,
    produce_and_consume,
    table,
)
from benchmarks.steady import MEASURED_ROUNDS, steady_medians  # noqa: E402
from kbroker.model import StartupError  # noqa: E402
from kbroker.protocol.errors import KafkaError  # noqa: E402
from kbroker.testing.cluster_state import create_topics  # noqa: E402

PARTITIONS = int(PROPERTIES["num.partitions"])
RECORD_BYTES = 1000
START_SETTLE_S = 5.0
WRITE_SETTLE_S = 3.0
"""After what a returned replica lacks was produced."""
LOADS = {load.name: load for load in WORKLOADS if load.name in ("1 KB", "100 B")}
STOPS: Mapping[str, Callable[[ReplicaCluster, int], object]] = {
    "SIGTERM": lambda cluster, node: cluster.nodes[node].stop(),
    "SIGKILL": lambda cluster, node: cluster.nodes[node].kill(),
}
GOALS = {
    (f"{work} {load}", "cpu_s_per_gb"): 0.5 for load in LOADS for work in ("produce", "consume")
} | {
    (f"leader{who} killed, {timeouts}", f"{client}_s_{figure}"): 1.0
    for who in ("", " and active controller")
    for timeouts in TIMEOUTS
    for client in ("producer", "consumer")
    for figure in ("median", "longest")
}
"""Ratios to Apache Kafka in the same run."""

Part = Callable[[MakeNode, Path, argparse.Namespace], dict[str, Figures]]
"""Measures clusters of these nodes in a folder: what was done to figures."""


def measure_load(make: MakeNode, folder: Path, arguments: argparse.Namespace) -> dict[str, Figures]:
    """Produce and consume, each load until the cluster is warm."""
    found: dict[str, Figures] = {}
    with running_cluster(make, folder) as cluster:
        time.sleep(START_SETTLE_S)
        for name in arguments.loads:
            one_round = partial(load_round, LOADS[name], arguments.megabytes, cluster)
            found |= steady_medians({"": one_round}, measured=arguments.rounds)[""]
    return found


def load_round(
    load: Workload, megabytes: int, cluster: ReplicaCluster, number: int
) -> dict[str, Figures]:
    """A topic is made, written at full speed, read, and deleted."""
    asyncio.run(
        create_topics(cluster.bootstrap_servers, {load.topic(number): PARTITIONS}, REPLICAS)
    )
    return produce_and_consume(load, megabytes, cluster, number)


def measure_failover(
    make: MakeNode, folder: Path, arguments: argparse.Namespace
) -> dict[str, Figures]:
    """Kills of leaders, with each set of timeouts."""
    found: dict[str, Figures] = {}
    for number, timeouts in enumerate(arguments.timeouts):
        with running_cluster(make, folder / str(number), timeouts) as cluster:
            time.sleep(START_SETTLE_S)
            for is_active in (False, True):
                who = "leader and active controller" if is_active else "leader"
                found[f"{who} killed, {timeouts}"] = gap_figures(
                    [
                        kill_leader(cluster, f"kill-{is_active}-{kill}", is_active=is_active)
                        for kill in range(arguments.kills)
                    ]
                )
    return found


def measure_recovery(
    make: MakeNode, folder: Path, arguments: argparse.Namespace
) -> dict[str, Figures]:
    """A broker that returns after each kind of stop."""
    found: dict[str, Figures] = {}
    with running_cluster(make, folder) as cluster:
        for how in STOPS:
            time.sleep(START_SETTLE_S)
            found[f"return after {how}, {arguments.catch_up} MB behind"] = returned(
                cluster, how, arguments.catch_up
            )
    return found


def returned(cluster: ReplicaCluster, how: str, megabytes: int) -> Figures:
    """Stop a broker that is not the active controller, produce, start it again."""
    bootstrap, topic = cluster.bootstrap_servers, f"return-{how}"
    asyncio.run(create_topics(bootstrap, {topic: PARTITIONS}, REPLICAS))
    cluster.wait_until_healed()
    active = cluster.active_controller()
    away = next(node for node in cluster.nodes if node != active)
    STOPS[how](cluster, away)
    kafka_perf.produce(
        cluster.bootstrap_without(away),
        topic,
        records=megabytes * 1_000_000 // RECORD_BYTES,
        record_bytes=RECORD_BYTES,
    )
    cluster.wait_for(lambda metadata: not is_listed(metadata, away), absent=(away,))
    time.sleep(WRITE_SETTLE_S)
    before, begun = cluster.cpu_seconds(), time.monotonic()
    cluster.nodes[away].launch()
    listed = cluster.wait_for(lambda metadata: is_listed(metadata, away), absent=(away,))
    in_sync = cluster.wait_for(is_in_sync, absent=(away,))
    spent = cluster.cpu_by_node()
    cluster.wait_until_healed()
    asyncio.run(delete_topic(bootstrap, topic))
    return {
        "listed_s": listed - begun,
        "in_sync_s": in_sync - begun,
        "returned_cpu_s": spent[away],
        "others_cpu_s": sum(spent.values()) - spent[away] - before,
    }


def measure_idle(make: MakeNode, folder: Path, arguments: argparse.Namespace) -> dict[str, Figures]:
    """Without topics, and with partitions to which nothing is produced."""
    with running_cluster(make, folder) as cluster:
        found = {"idle, no topics": idle(cluster, arguments.settle, arguments.seconds)}
        for topics in topic_requests("idle", arguments.partitions):
            asyncio.run(create_topics(cluster.bootstrap_servers, topics, REPLICAS))
        cluster.wait_until_healed()
        found[f"idle, 3 x {arguments.partitions} replicas"] = idle(
            cluster, arguments.settle, arguments.seconds
        )
    return found


def idle(cluster: ReplicaCluster, settle_s: float, seconds: float) -> Figures:
    """CPU while nothing is asked of the cluster, and memory."""
    time.sleep(settle_s)
    before, begun = cluster.cpu_by_node(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begun
    spent = {node: after - before[node] for node, after in cluster.cpu_by_node().items()}
    active = cluster.active_controller()
    other = next(node for node in cluster.nodes if node != active)
    return {
        "active_cpu_s_per_s": spent[active] / passed,
        "other_cpu_s_per_s": spent[other] / passed,
        "all_cpu_s_per_s": sum(spent.values()) / passed,
        "active_mib": cluster.nodes[active].resident_bytes() / MIB,
        "other_mib": cluster.nodes[other].resident_bytes() / MIB,
    }


PARTS: Mapping[str, Part] = {
    "load": measure_load,
    "failover": measure_failover,
    "recovery": measure_recovery,
    "idle": measure_idle,
}


def measure_all(arguments: argparse.Namespace, base: Path) -> dict[str, list[Results]]:
    """The runs of each server; those that the JSON has first."""
    makers: dict[str, MakeNode] = {
        name: kafka_node if name == "kafka" else kbroker_node for name in arguments.servers
    }
    if arguments.before is not None:
        makers["before"] = partial(kbroker_node, tree=arguments.before)
    runs: dict[str, list[dict[str, Figures]]] = {name: [] for name in makers}
    if arguments.json and arguments.json.exists():
        runs |= json.loads(arguments.json.read_text())
    for number in range(arguments.runs):
        for part in arguments.parts:
            for name in in_turn(makers, number):
                folder = base / f"{name}-{part}-{number}"
                runs[name].append(PARTS[part](makers[name], folder, arguments))
                shutil.rmtree(folder, ignore_errors=True)
                done = f"run {number + 1} of {arguments.runs}: {part}, {name}"
                print(done, runs[name][-1], file=sys.stderr, flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps(runs, indent=1))
    return runs


def main() -> int:
    """Run, print the table, keep the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument(
        "--rounds", type=int, default=MEASURED_ROUNDS, help="of a load, measured ones"
    )
    parser.add_argument("--megabytes", type=int, default=250, help="of values, for each load")
    parser.add_argument("--timeouts", nargs="+", choices=list(TIMEOUTS), default=list(TIMEOUTS))
    parser.add_argument("--kills", type=int, default=2, help="of each kind, in each run")
    parser.add_argument("--catch-up", type=int, default=1000, help="MB a returned replica lacks")
    parser.add_argument("--partitions", type=int, default=1000, help="of the idle cluster")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each idle measurement")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before it")
    parser.add_argument("--servers", nargs="+", choices=["kbroker", "kafka"])
    parser.add_argument("--before", type=checkout, help="another checkout, measured as well")
    parser.add_argument("--json", type=Path, help="keep every run's figures here, with older ones")
    parser.set_defaults(servers=["kbroker", "kafka"])
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        runs = measure_all(arguments, base)
    except (KafkaError, RuntimeError, StartupError, TimeoutError) as error:
        print(f"replication: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{date.today()}"
    )
    print("\n".join(table({name: medians(found) for name, found in runs.items()}, GOALS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
