"""A cluster of kbroker processes: controllers of a static quorum, and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from kbroker.client.connection import BrokerConnection
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import CLUSTER_ID
from scripts.ports import free_port
from tests.clients.adapters import wait_until

SESSIONS: Final = {"broker.heartbeat.interval.ms": "500", "broker.session.timeout.ms": "3000"}
"""A broker that restarts waits until its former session is over."""
START_TIMEOUT_S: Final = 90.0
"""For five processes that start at once on a busy machine."""


def voters_of(ports: Mapping[int, int]) -> str:
    """controller.quorum.voters. ports: of the controllers, by node id."""
    return ",".join(f"{number}@127.0.0.1:{port}" for number, port in ports.items())


def node_process(folder: Path, number: int, settings: Mapping[str, str]) -> BrokerProcess:
    """A formatted node; `start` starts it."""
    data = folder / str(number)
    settings = {"node.id": str(number), "controller.listener.names": "CONTROLLER", **settings}
    config = BrokerConfig.from_properties({**settings, "log.dirs": str(data)})
    format_directories(config, FormatOptions(cluster_id=CLUSTER_ID), random=Random(number))
    return BrokerProcess(data, overrides=settings, start_timeout_s=START_TIMEOUT_S)


def broker_process(folder: Path, number: int, voters: str) -> BrokerProcess:
    """A broker that is no controller, on a free port."""
    settings = {
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "controller.quorum.voters": voters,
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "log.retention.ms": "-1",
        **SESSIONS,
    }
    return node_process(folder, number, settings)


def active_controller(ports: Mapping[int, int]) -> int:
    """The node id of the active controller; -1 if none says it is. ports: of the controllers."""
    return asyncio.run(_active_controller(ports))


async def _active_controller(ports: Mapping[int, int]) -> int:
    for number, port in ports.items():
        try:
            async with await BrokerConnection.connect("127.0.0.1", port) as connection:
                request = DescribeClusterRequest(endpoint_type=2)
                cluster = await connection.request(request, DescribeClusterResponse)
        except KafkaError:
            continue
        if cluster.controller_id == number:
            return number
    return -1


class ProcessCluster:
    """Started; stack ends it."""

    def __init__(
        self, folder: Path, stack: ExitStack, *, controllers: Sequence[int], brokers: Sequence[int]
    ) -> None:
        self.ports = {number: free_port() for number in controllers}
        voters = voters_of(self.ports)
        self.controllers = {
            number: node_process(
                folder,
                number,
                {
                    "process.roles": "controller",
                    "listeners": f"CONTROLLER://127.0.0.1:{port}",
                    "controller.quorum.voters": voters,
                    **SESSIONS,
                },
            )
            for number, port in self.ports.items()
        }
        self.brokers = {number: broker_process(folder, number, voters) for number in brokers}
        for process in (*self.controllers.values(), *self.brokers.values()):
            stack.enter_context(process)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def kill_active_controller(self) -> int:
        """kill -9. Returns its id once another one is active."""
        killed = active_controller(self.ports)
        self.controllers[killed].kill()
        left = {number: port for number, port in self.ports.items() if number != killed}
        wait_until(lambda: active_controller(left) != -1, 60, "another controller is active")
        return killed
