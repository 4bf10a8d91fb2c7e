"""A cluster of nodes in one process, on free ports of the loopback interface: controllers, brokers
and combined nodes of a static quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from kbroker.client.cluster import Client
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.node.node import Broker
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from scripts.ports import free_ports

CLUSTER_ID = "several"
SETTINGS = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.backoff.max.ms": "300",
    "broker.heartbeat.interval.ms": "100",
    "broker.session.timeout.ms": "1500",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}


async def until(is_done: Callable[[], object], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not is_done():  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(0.005)


class Cluster:
    """roles: process.roles by node id. settings: of all nodes; own_settings: of single ones. nodes:
    those that run. client_ports: of the brokers.
    """

    def __init__(
        self,
        root: Path,
        roles: Mapping[int, str],
        *,
        settings: Mapping[str, str] | None = None,
        own_settings: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        ports = dict(zip(roles, free_ports(len(roles)), strict=True))
        self.client_ports = dict(zip(roles, free_ports(len(roles)), strict=True))
        voters = ",".join(
            f"{number}@127.0.0.1:{ports[number]}"
            for number, role in roles.items()
            if "controller" in role
        )
        self.configs: dict[int, BrokerConfig] = {}
        self.nodes: dict[int, Broker] = {}
        for number, role in roles.items():
            listeners = []
            if "broker" in role:
                listeners.append(f"PLAINTEXT://127.0.0.1:{self.client_ports[number]}")
            if "controller" in role:
                listeners.append(f"CONTROLLER://127.0.0.1:{ports[number]}")
            config = BrokerConfig.from_properties(
                {
                    "node.id": str(number),
                    "process.roles": role,
                    "log.dirs": str(root / str(number)),
                    "listeners": ",".join(listeners),
                    "controller.listener.names": "CONTROLLER",
                    "controller.quorum.voters": voters,
                    **SETTINGS,
                    **(settings or {}),
                    **(own_settings or {}).get(number, {}),
                }
            )
            self.configs[number] = config
            format_directories(config, FormatOptions(cluster_id=CLUSTER_ID), random=Random(number))

    async def start(self, *numbers: int) -> None:
        """Start these nodes, or all, at once; returns when each has started."""
        started = numbers or tuple(self.configs)
        for number in started:
            self.nodes[number] = Broker(self.configs[number])
        async with asyncio.timeout(30):
            await asyncio.gather(*(self.nodes[number].start() for number in started))

    async def stop(self, *numbers: int) -> None:
        """Stop these nodes in order. Without numbers: the brokers, then every controller is killed,
        since the last one would wait for a successor.
        """
        brokers = [each for each, node in self.nodes.items() if not node.config.is_controller]
        stopped = [self.nodes.pop(number) for number in numbers or brokers]
        await asyncio.gather(*(node.stop() for node in stopped))
        for node in (*stopped, *self.nodes.values()):
            assert node.failure is None, node.failure
        if not numbers:
            for number in list(self.nodes):
                self.kill(number)

    def kill(self, number: int) -> None:
        """End a node as a crash would."""
        self.nodes.pop(number).kill()

    def active(self) -> int:
        """The id of the active controller, -1 without one."""
        for number, node in self.nodes.items():
            assert node.failure is None, node.failure
            if node._controller is not None and node._controller.service.is_active:
                return number
        return -1

    def client(self, number: int) -> Client:
        """A client that knows this broker only, at first."""
        return Client(f"127.0.0.1:{self.client_ports[number]}")


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Cluster]:
    """Start all nodes; stop those that still run."""
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = 4,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
) -> int:
    """Returns the error code."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )
    created = await client.to_controller(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    return created.topics[0].error_code


async def produce(client: Client, topic: str, count: int) -> None:
    """Records 0 to count, over all partitions."""
    async with Producer(client) as producer:
        partitions = len((await client.retry(lambda: client.topic(topic))).partitions)
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=number % partitions)


async def consume(client: Client, topic: str, count: int) -> set[bytes]:
    """All records of a topic of which there are count."""
    consumer = Consumer(client)
    await consumer.assign_topics([topic])
    found: set[bytes] = set()
    async with asyncio.timeout(20):
        while len(found) < count:
            found.update(record.value or b"" for record in await consumer.poll())
    consumer.close()
    return found
