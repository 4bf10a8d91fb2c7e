"""Both brokers that are compared, each of one node with both roles and a dynamic quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import CLUSTER_ID, ApacheKafka
from scripts.ports import free_port
from tests.clients.adapters import wait_until
from tests.clients.compared.acts import ask, find_coordinator
from tests.clients.compared.row import World

OVERRIDES: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
NewWorld = Callable[[Path], World]
"""The broker for a session, which has a folder of its own."""


def _worlds(bootstrap: str, controller: str, data: Path) -> NewWorld:
    def new(folder: Path) -> World:
        world = World(bootstrap, controller, folder)
        _, _, port = bootstrap.rpartition(":")
        world.values |= {"data": str(data), "cluster": CLUSTER_ID, "port": port}
        world.values["controller_port"] = controller.rpartition(":")[2]
        return world

    world = new(data.parent)
    wait_until(lambda: _is_unfenced(world), 60, "an unfenced broker")
    # the topics of all coordinators are there before any session
    for kind, key in enumerate(("group", "transaction", "group:AAAAAAAAAAAAAAAAAAAAAQ:0")):
        find_coordinator(world, key, kind)
    return new


def _is_unfenced(world: World) -> bool:
    try:
        return len(ask(world, MetadataRequest(topics=[]), 9).brokers) == 1
    except OSError:
        return False


@contextmanager
def kbroker(folder: Path) -> Iterator[NewWorld]:
    """kbroker in a process of its own."""
    controller = f"127.0.0.1:{free_port()}"
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},CONTROLLER://{controller}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": controller,
        **OVERRIDES,
    }
    data = folder / "data"
    config = BrokerConfig.from_properties({**settings, "log.dirs": str(data)})
    options = FormatOptions(cluster_id=CLUSTER_ID, standalone=True)
    format_directories(config, options, random=Random(1))
    with BrokerProcess(data, overrides=settings) as broker:
        yield _worlds(broker.bootstrap_servers, controller, data)


@contextmanager
def kafka(folder: Path) -> Iterator[NewWorld]:
    """Apache Kafka in a process of its own."""
    with ApacheKafka(folder / "data", overrides=OVERRIDES, standalone=True) as node:
        yield _worlds(node.bootstrap_servers, node.bootstrap_controllers, node.data)
