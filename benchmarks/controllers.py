"""Three controllers of kbroker and three of Apache Kafka 4.3.1: what brokers cost them, how long
they take to create topics, and how long the cluster has no controller when one is killed. And a
node of each that is its whole cluster: its start, its memory, records produced to it.

    python benchmarks/controllers.py [--runs 3] [--kills 3] [--partitions 10000] [--topics 1000]
        [--brokers 100] [--seconds 15] [--warm-up 10] [--megabytes 100] [--before DIR]
        [--servers kbroker kafka] [--json FILE]

Brokers are simulated: they register, send a heartbeat every 2 s over a connection of their own, and
do nothing else. One run of a quorum, with Kafka's defaults for its timeouts:

- `idle` and `heartbeats`: CPU seconds a second without brokers and with all of them, of the active
  controller and of all three. Before the heartbeats are measured there are 40 times as many for
  --warm-up seconds: a JVM has compiled their code then.
- `create topics`: one request for all topics, of one partition with three replicas: from the
  request to its response, and CPU of all controllers without that of the heartbeats. The first
  request has a row of its own; the others follow until the code is warm, and the last ones count.
- `failover`: with all partitions, from kill -9 of the active controller until a CreateTopics is
  acknowledged again; then the controller is started again, and the next kill waits until it has
  caught up. Median and longest of the kills, and the median of the part after the election: the
  time until a leader is known is mostly that of timeouts.
- `memory`: of the active controller with all partitions, and of a standby; after the kills, of the
  one that is active then, and its peak. Apache Kafka's heap may grow to 1 GiB, as its scripts have
  it, but does not begin with that (its scripts set -Xms too).

The quorums take turns, one run at a time, and at going first; every figure is the median over the
runs. So do single nodes, and those of the sources in another folder (--before), which have a table
of their own beside today's. With the defaults it takes some 14 minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import Figures, Server, checkout, medians, table  # noqa: E402
from benchmarks.single_node import single_node, single_servers  # noqa: E402
from kbroker.model import StartupError  # noqa: E402
from kbroker.protocol.errors import ErrorCode, KafkaError  # noqa: E402
from kbroker.protocol.messages.admin.topics import (  # noqa: E402
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kbroker.quorum.formatting.format import FormatOptions, format_directories  # noqa: E402
from kbroker.settings.broker import BrokerConfig  # noqa: E402
from kbroker.testing.process import BrokerProcess  # noqa: E402
from scripts.apache_kafka import CLUSTER_ID, ApacheKafka  # noqa: E402
from scripts.ports import free_port  # noqa: E402
from tests.cluster.controller_client import (  # noqa: E402
    ControllerClient,
    QuorumPartition,
    format_addresses,
)
from tests.cluster.loads import ClientProcess, Lines  # noqa: E402

NODES = (1, 2, 3)
REPLICAS = 3
START_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 2.0
PROBE_PAUSE_S = 0.02
"""Between two attempts after a kill; each makes new connections, which cost CPU of the two cores
that an election needs too.
"""
START_SETTLE_S = 5.0
SETTLE_S = 3.0
"""After a start, and after a registration or a large change, for what it left to do."""
CREATE_REQUESTS = 4
MEASURED_CREATE_REQUESTS = 2
"""The last ones, when the code is warm."""
PARTITIONS_PER_TOPIC = 100
PARTITIONS_PER_REQUEST = 1000
MIB = 1 << 20

TopicSizes = dict[str, int]
"""Topic to number of partitions."""


def topic_requests(prefix: str, partitions: int) -> Iterator[TopicSizes]:
    """Requests that create so many partitions together: topics of 100, the last one of the rest."""
    request: TopicSizes = {}
    for number, first in enumerate(range(0, partitions, PARTITIONS_PER_TOPIC)):
        request[f"{prefix}-{number}"] = min(PARTITIONS_PER_TOPIC, partitions - first)
        if sum(request.values()) >= PARTITIONS_PER_REQUEST:
            yield request
            request = {}
    if request:
        yield request


class Failover(NamedTuple):
    """One kill: seconds until a leader is known, and until a CreateTopics is acknowledged."""

    elected_s: float
    acknowledged_s: float


def failover_figures(kills: list[Failover]) -> Figures:
    """Of the kills of one run."""
    seconds = [each.acknowledged_s for each in kills]
    return {
        "median_s": statistics.median(seconds),
        "longest_s": max(seconds),
        "after_election_s": statistics.median(
            each.acknowledged_s - each.elected_s for each in kills
        ),
    }


def creation_figures(requests: list[Figures]) -> tuple[Figures, Figures]:
    """Of the first request, and of those at the end."""
    last = requests[-MEASURED_CREATE_REQUESTS:]
    return requests[0], {
        name: statistics.median(each[name] for each in last) for name in requests[0]
    }


class Quorum:
    """Three controllers, and the client of their active one."""

    def __init__(self, nodes: dict[int, Server], ports: dict[int, int]) -> None:
        self.nodes = nodes
        self.addresses = {node: ("127.0.0.1", port) for node, port in ports.items()}
        self.client = ControllerClient(self.addresses, timeout_s=REQUEST_TIMEOUT_S)

    async def start(self) -> None:
        """All at once; until there is a leader."""
        for server in self.nodes.values():
            server.launch()
        await self._described(lambda partition: partition.high_watermark > 0)

    def kill(self) -> None:
        """End all of them."""
        self.client.forget()
        for server in self.nodes.values():
            server.kill()

    async def active_id(self) -> int:
        """The leader's node id."""
        return (await self.client.describe_quorum()).leader_id

    async def caught_up(self) -> None:
        """Until every controller has what is committed now."""
        committed = (await self._described(lambda partition: True)).high_watermark
        await self._described(
            lambda partition: all(
                each.log_end_offset >= committed for each in partition.current_voters
            )
        )

    async def _described(self, is_it: Callable[[QuorumPartition], bool]) -> QuorumPartition:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                found = await self.client.wait_for_quorum(START_TIMEOUT_S)
                if is_it(found):
                    return found
                await asyncio.sleep(0.1)

    async def create(self, topics: TopicSizes) -> None:
        """In one request. Raises KafkaError."""
        await create_topics(self.client, topics)

    def cpu_seconds(self) -> dict[int, float]:
        """Spent so far, by node."""
        return {node: server.cpu_seconds() for node, server in self.nodes.items()}


async def create_topics(client: ControllerClient, topics: TopicSizes) -> None:
    """In one request. Raises KafkaError for the first topic that is refused."""
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=count, replication_factor=REPLICAS
            )
            for name, count in topics.items()
        ],
        timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
    )
    response = await client.request(request, CreateTopicsResponse)
    for result in response.topics:
        if result.error_code:
            client.forget()
            raise KafkaError(ErrorCode(result.error_code), f"{result.name}: {result.error_message}")


def kbroker_quorum(folder: Path) -> Quorum:
    ports, properties = _controllers()
    nodes: dict[int, Server] = {}
    for node, overrides in properties.items():
        data = folder / f"kbroker-{node}"
        config = BrokerConfig.from_properties({**overrides, "log.dirs": str(data)})
        format_directories(config, FormatOptions(cluster_id=CLUSTER_ID), random=Random(node))
        nodes[node] = BrokerProcess(data, overrides=overrides)
    return Quorum(nodes, ports)


def kafka_quorum(folder: Path) -> Quorum:
    ports, properties = _controllers()
    nodes: dict[int, Server] = {}
    for node, overrides in properties.items():
        kafka = ApacheKafka(folder / f"kafka-{node}", overrides=overrides, heap="1g")
        kafka.port = ports[node]
        kafka.format()
        nodes[node] = kafka
    return Quorum(nodes, ports)


def _controllers() -> tuple[dict[int, int], dict[int, dict[str, str]]]:
    """Free ports and the properties, by node."""
    ports = {node: free_port() for node in NODES}
    voters = format_addresses({node: ("127.0.0.1", port) for node, port in ports.items()})
    return ports, {
        node: {
            "process.roles": "controller",
            "node.id": str(node),
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
        }
        for node, port in ports.items()
    }


QUORUMS: dict[str, Callable[[Path], Quorum]] = {"kbroker": kbroker_quorum, "kafka": kafka_quorum}


async def cpu_per_second(quorum: Quorum, seconds: float) -> Figures:
    """Of the active controller and of all, while nothing is asked of them here."""
    active = await quorum.active_id()
    before, begun = quorum.cpu_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - begun
    spent = {node: after - before[node] for node, after in quorum.cpu_seconds().items()}
    return {
        "active_cpu_s_per_s": spent[active] / passed,
        "all_cpu_s_per_s": sum(spent.values()) / passed,
    }


async def created_topics(
    quorum: Quorum, prefix: str, count: int, background_cpu_s_per_s: float
) -> Figures:
    """One request for topics of one partition. background_cpu_s_per_s: what the heartbeats cost."""
    before, begun = quorum.cpu_seconds(), time.monotonic()
    await quorum.create({f"{prefix}-{number}": 1 for number in range(count)})
    seconds = time.monotonic() - begun
    await asyncio.sleep(SETTLE_S)
    passed = time.monotonic() - begun
    spent = sum(quorum.cpu_seconds().values()) - sum(before.values())
    return {"response_s": seconds, "all_cpu_s": spent - passed * background_cpu_s_per_s}


async def failover(quorum: Quorum, topic: str) -> Failover:
    """Kill the active controller; the time until the topic is created. It is started again then."""
    active = await quorum.active_id()
    quorum.nodes[active].kill()
    killed = time.monotonic()
    elected_s: float | None = None
    others = {node: where for node, where in quorum.addresses.items() if node != active}
    async with ControllerClient(others, timeout_s=PROBE_TIMEOUT_S) as probe:
        while True:
            try:
                await probe.active()
                elected_s = elected_s or time.monotonic() - killed
                await create_topics(probe, {topic: 1})
                break
            except KafkaError as error:
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    break
            if time.monotonic() - killed > START_TIMEOUT_S:
                raise TimeoutError(f"no controller within {START_TIMEOUT_S:.0f} s after a kill")
            await asyncio.sleep(PROBE_PAUSE_S)
    seconds = time.monotonic() - killed
    quorum.nodes[active].launch()
    quorum.client.forget()
    await quorum.caught_up()
    await asyncio.sleep(SETTLE_S)
    return Failover(seconds if elected_s is None else elected_s, seconds)


async def one_run(
    quorum: Quorum, folder: Path, arguments: argparse.Namespace
) -> dict[str, Figures]:
    """All figures of controllers just formatted."""
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        stack.callback(quorum.kill)
        await quorum.start()
        await asyncio.sleep(START_SETTLE_S)
        found["idle"] = await cpu_per_second(quorum, arguments.seconds)
        command = [sys.executable, "-m", "tests.cluster.simulated_brokers"]
        command += [format_addresses(quorum.addresses), "--brokers", str(arguments.brokers)]
        command += ["--warm-up", str(arguments.warm_up)]
        brokers = ClientProcess("simulated brokers", command, folder / "simulated.log", Lines())
        stack.callback(brokers.stop)
        await all_unfenced(brokers, arguments.brokers)
        await asyncio.sleep(arguments.warm_up + SETTLE_S)
        heartbeats = await cpu_per_second(quorum, arguments.seconds)
        found[f"heartbeats of {arguments.brokers} brokers"] = heartbeats
        background = heartbeats["all_cpu_s_per_s"]
        first, others = creation_figures(
            [
                await created_topics(quorum, f"topic-{number}", arguments.topics, background)
                for number in range(CREATE_REQUESTS)
            ]
        )
        found[f"create {arguments.topics} topics, the first request"] = first
        found[f"create {arguments.topics} topics"] = others
        created = CREATE_REQUESTS * arguments.topics
        for request in topic_requests("large", arguments.partitions - created):
            await quorum.create(request)
        await quorum.caught_up()
        await asyncio.sleep(SETTLE_S)
        active = await quorum.active_id()
        standby = next(node for node in NODES if node != active)
        memory = f"memory, {arguments.partitions} partitions"
        found[memory] = {
            "active_mib": quorum.nodes[active].resident_bytes() / MIB,
            "standby_mib": quorum.nodes[standby].resident_bytes() / MIB,
        }
        kills = [
            await failover(quorum, f"after-kill-{number}") for number in range(arguments.kills)
        ]
        found[f"failover, {arguments.partitions} partitions"] = failover_figures(kills)
        last = quorum.nodes[await quorum.active_id()]
        found[f"{memory}, after failovers"] = {
            "active_mib": last.resident_bytes() / MIB,
            "active_peak_mib": peak_bytes(last.pid) / MIB,
        }
    return found


def peak_bytes(pid: int) -> int:
    """The largest resident set that the process has had (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"no VmHWM of process {pid}")


async def all_unfenced(brokers: ClientProcess[Lines], count: int) -> None:
    """Raises RuntimeError if the process ends before, TimeoutError."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while f"unfenced {count}" not in brokers.sink.lines:
            if brokers.failure is not None:
                raise RuntimeError(brokers.failure)
            await asyncio.sleep(0.05)


def in_turn(names: Iterable[str], run: int) -> list[str]:
    """Who goes first changes with each run."""
    ordered = list(names)
    return ordered[::-1] if run % 2 else ordered


def measure_all(
    arguments: argparse.Namespace, base: Path
) -> tuple[dict[str, list[dict[str, Figures]]], dict[str, list[dict[str, Figures]]]]:
    """The runs of the quorums and of the single nodes, by name."""
    singles = single_servers(arguments.servers, arguments.before)
    of_quorums: dict[str, list[dict[str, Figures]]] = {name: [] for name in arguments.servers}
    of_singles: dict[str, list[dict[str, Figures]]] = {name: [] for name in singles}
    for number in range(arguments.runs):
        for name in in_turn(arguments.servers, number):
            folder = base / f"{name}-{number}"
            folder.mkdir()
            quorum = QUORUMS[name](folder)
            of_quorums[name].append(asyncio.run(one_run(quorum, folder, arguments)))
            shutil.rmtree(folder, ignore_errors=True)
            print(f"run {number + 1} of {arguments.runs}: {name}", file=sys.stderr, flush=True)
        for name in in_turn(singles, number):
            folder = base / f"single-{name}-{number}"
            folder.mkdir()
            server = singles[name](folder / "data")
            of_singles[name].append(single_node(server, arguments.megabytes))
            shutil.rmtree(folder, ignore_errors=True)
            print(f"run {number + 1}: single node, {name}", file=sys.stderr, flush=True)
        if arguments.json:
            runs = {"quorums": of_quorums, "single nodes": of_singles}
            arguments.json.write_text(json.dumps(runs, indent=1))
    return of_quorums, of_singles


def main() -> int:
    """Run, print the tables, keep the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3, help="in each run")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=1_000, help="of one request")
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement of CPU")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of many heartbeats")
    parser.add_argument("--megabytes", type=int, default=100, help="produced to a single node")
    parser.add_argument("--before", type=checkout, help="another checkout, its single node as well")
    parser.add_argument("--servers", nargs="+", choices=sorted(QUORUMS), default=list(QUORUMS))
    parser.add_argument("--json", type=Path, help="write every run's figures here")
    arguments = parser.parse_args()
    if arguments.partitions < CREATE_REQUESTS * arguments.topics:
        parser.error(f"--partitions: {CREATE_REQUESTS} times --topics at least")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        of_quorums, of_singles = measure_all(arguments, base)
    except (KafkaError, RuntimeError, StartupError, TimeoutError) as error:
        print(f"controllers: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    before = of_singles.pop("before", [])
    tables = [of_quorums, of_singles]
    if before:
        tables.append({"kbroker": of_singles["kbroker"], "before": before})
    for runs in tables:
        print("\n".join(table({name: medians(found) for name, found in runs.items()})), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
