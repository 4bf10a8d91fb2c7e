"""Three nodes of kbroker or of Apache Kafka 4.3.1, each a controller and a broker, with the same
properties: what `replication` measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.side_by_side import ROOT, Server, source_command
from kbroker.client.cluster import Client
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.cluster_state import UNAVAILABLE
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import CLUSTER_ID, ApacheKafka
from scripts.ports import free_port
from tests.cluster.controller_client import ControllerClient, QuorumPartition, format_addresses

NODES: Final = (1, 2, 3)
REPLICAS: Final = 3
START_TIMEOUT_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.1

PROPERTIES: Final[Mapping[str, str]] = {
    "num.partitions": "6",
    "default.replication.factor": str(REPLICAS),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(REPLICAS),
    "replica.lag.time.max.ms": "30000",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "3600000",
    "log.segment.delete.delay.ms": "1000",  # the topic of a round is deleted after it
}
TIMEOUTS: Final[Mapping[str, Mapping[str, str]]] = {
    "Kafka's timeouts": {
        "broker.heartbeat.interval.ms": "2000",
        "broker.session.timeout.ms": "9000",
        "controller.quorum.fetch.timeout.ms": "2000",
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.election.backoff.max.ms": "1000",
    },
    "short timeouts": {
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        "controller.quorum.fetch.timeout.ms": "1000",
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.election.backoff.max.ms": "500",
    },
}
DEFAULT_TIMEOUTS: Final = "Kafka's timeouts"
"""Those that Kafka has where no properties say otherwise."""


class ReplicaCluster:
    """The nodes, and the addresses of their controllers, by node id."""

    def __init__(
        self, nodes: Mapping[int, Server], controllers: Mapping[int, tuple[str, int]]
    ) -> None:
        self.nodes = dict(nodes)
        self._controllers = dict(controllers)

    @property
    def bootstrap_servers(self) -> str:
        """Of all brokers."""
        return self.bootstrap_without()

    def bootstrap_without(self, *absent: int) -> str:
        """Of the other brokers."""
        return ",".join(
            server.bootstrap_servers for node, server in self.nodes.items() if node not in absent
        )

    def cpu_seconds(self) -> float:
        """What the running nodes have spent together."""
        return sum(self.cpu_by_node().values())

    def cpu_by_node(self) -> dict[int, float]:
        """What each running node has spent."""
        return {
            node: server.cpu_seconds() for node, server in self.nodes.items() if server.running()
        }

    def start(self) -> None:
        """All at once; until each is a broker of the cluster. Raises TimeoutError."""
        for server in self.nodes.values():
            server.launch()
        self.wait_for(lambda metadata: len(metadata.brokers) == len(self.nodes))

    def kill(self) -> None:
        """End all of them."""
        for server in self.nodes.values():
            server.kill()

    def wait_for(
        self, is_it: Callable[[MetadataResponse], bool], *, absent: tuple[int, ...] = ()
    ) -> float:
        """Until the cluster's metadata is so. absent: nodes that are not asked. Returns when that
        was (time.monotonic). Raises TimeoutError.
        """
        return asyncio.run(_wait_for(self.bootstrap_without(*absent), is_it))

    def wait_until_healed(self) -> float:
        """Until every partition has all its replicas in sync, and every controller what was
        committed. Returns when the partitions had. Raises TimeoutError.
        """
        healed = self.wait_for(is_in_sync)
        asyncio.run(self._controllers_caught_up())
        return healed

    def active_controller(self) -> int:
        """Its node id."""
        return asyncio.run(self._described()).leader_id

    async def _described(self) -> QuorumPartition:
        async with ControllerClient(self._controllers) as client:
            return await client.wait_for_quorum(START_TIMEOUT_S)

    async def _controllers_caught_up(self) -> None:
        committed = (await self._described()).high_watermark
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                voters = (await self._described()).current_voters
                if all(voter.log_end_offset >= committed for voter in voters):
                    return
                await asyncio.sleep(POLL_S)


def is_in_sync(metadata: MetadataResponse) -> bool:
    """Whether every partition has as many replicas in sync as it has replicas."""
    return all(
        len(partition.isr_nodes) == len(partition.replica_nodes)
        for topic in metadata.topics
        for partition in topic.partitions
    )


def is_listed(metadata: MetadataResponse, node: int) -> bool:
    """Whether the node is a broker that is not fenced."""
    return any(broker.node_id == node for broker in metadata.brokers)


async def _wait_for(bootstrap: str, is_it: Callable[[MetadataResponse], bool]) -> float:
    deadline = time.monotonic() + START_TIMEOUT_S
    client = Client(bootstrap, timeout_s=REQUEST_TIMEOUT_S)
    try:
        while time.monotonic() < deadline:
            try:
                if is_it(await client.metadata(None)):
                    return time.monotonic()
            except UNAVAILABLE:
                pass  # a node that is about to start
            await asyncio.sleep(POLL_S)
    finally:
        await client.close()
    raise TimeoutError(f"the cluster is not as it should be after {START_TIMEOUT_S:.0f} s")


def node_properties(timeouts: str) -> dict[int, dict[str, str]]:
    """Of each node, on free ports. timeouts: a key of TIMEOUTS."""
    controllers = {node: free_port() for node in NODES}
    voters = format_addresses({node: ("127.0.0.1", port) for node, port in controllers.items()})
    return {
        node: {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            **PROPERTIES,
            **TIMEOUTS[timeouts],
        }
        for node, port in controllers.items()
    }


def listener_ports(properties: Mapping[str, str]) -> tuple[int, int]:
    """Of clients and of controllers."""
    clients, controllers = properties["listeners"].split(",")
    return int(clients.rpartition(":")[2]), int(controllers.rpartition(":")[2])


def kbroker_node(data: Path, properties: Mapping[str, str], tree: Path = ROOT) -> Server:
    """Formatted, not started. tree: the sources that it runs."""
    config = BrokerConfig.from_properties({**properties, "log.dirs": str(data)})
    node = int(properties["node.id"])
    format_directories(config, FormatOptions(cluster_id=CLUSTER_ID), random=Random(node))
    return BrokerProcess(data, overrides=properties, command=source_command(tree))


def kafka_node(data: Path, properties: Mapping[str, str]) -> Server:
    """Formatted, not started."""
    kafka = ApacheKafka(data, overrides=properties, heap="1g")
    kafka.format()
    return kafka


MakeNode = Callable[[Path, Mapping[str, str]], Server]


@contextmanager
def running_cluster(
    make: MakeNode, folder: Path, timeouts: str = DEFAULT_TIMEOUTS
) -> Iterator[ReplicaCluster]:
    """Started; ended in the end. folder: for its data."""
    nodes, controllers = {}, {}
    for node, properties in node_properties(timeouts).items():
        port, controller_port = listener_ports(properties)
        nodes[node] = make(folder / str(node), properties)
        nodes[node].port = port
        controllers[node] = "127.0.0.1", controller_port
    cluster = ReplicaCluster(nodes, controllers)
    with ExitStack() as stack:
        stack.callback(cluster.kill)
        cluster.start()
        yield cluster
