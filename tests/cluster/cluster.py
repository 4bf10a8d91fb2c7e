"""Controllers and brokers of kbroker, each a process with a network and a disk of its own.

Member names in the network: c1, c2, c3 for controllers 1 to 3, which may be brokers too, b1, b2 for
brokers 101 and 102, `client` for their clients: loads and checks run in its network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

from kbroker.model import random_uuid, uuid_to_string
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.process import BrokerProcess
from tests.cluster.controller_client import format_addresses
from tests.cluster.disk import SmallDisk
from tests.cluster.network import Network
from tests.cluster.run_names import new_run_name, remove_abandoned

CONTROLLERS: Final = 3
FIRST_BROKER_ID: Final = 101
CLIENT: Final = "client"
CONTROLLER_PORT: Final = 9093
BROKER_PORT: Final = 9092
"""Each node has an address of its own, so ports cannot collide."""
DISK_BYTES: Final = 64 << 20

SETTINGS: Final[Mapping[str, str]] = {
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "500",
    "controller.quorum.request.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}
"""Shorter than the defaults, so that a round takes seconds."""


class ClusterNode:
    """One process. member: its name in the network. address: of its listener for clients, which is
    the controller's where it is no broker. overrides: its properties.
    """

    def __init__(
        self,
        node_id: int,
        member: str,
        address: tuple[str, int],
        *,
        overrides: Mapping[str, str],
        process: BrokerProcess,
        disk: SmallDisk,
    ) -> None:
        self.id = node_id
        self.member = member
        self.address = address
        self.overrides = overrides
        self.process = process
        self.disk = disk

    @property
    def log_text(self) -> str:
        """What all its processes have logged."""
        return self.process.log.read_text(errors="replace") if self.process.log.exists() else ""

    def __str__(self) -> str:
        return f"node {self.id}"


class Cluster:
    """Formats all nodes and launches them; removes everything at the end. folder: for disks and
    logs. brokers: how many there are beside the controllers. is_combined: the controllers are
    brokers too. settings: of every node, over SETTINGS.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 0,
        is_combined: bool = False,
        settings: Mapping[str, str] | None = None,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self._folder = folder
        self._is_combined = is_combined
        self._disk_bytes = disk_bytes
        self._settings = {**SETTINGS, **(settings or {})}
        self._run = new_run_name()
        self._random = Random(0)
        self._cluster_id = uuid_to_string(random_uuid(self._random))
        controllers = {number: f"c{number}" for number in range(1, CONTROLLERS + 1)}
        members = controllers | {
            FIRST_BROKER_ID + number: f"b{number + 1}" for number in range(brokers)
        }
        self.network = Network(self._run, [*members.values(), CLIENT])
        self.controller_addresses = {
            node: (self.network.addresses[member], CONTROLLER_PORT)
            for node, member in controllers.items()
        }
        self._voters = format_addresses(self.controller_addresses)
        self.nodes = {node: self._make_node(node, member) for node, member in members.items()}
        self._stack = ExitStack()

    @property
    def controllers(self) -> list[ClusterNode]:
        """In the order of their ids."""
        return [node for node in self.nodes.values() if node.id in self.controller_addresses]

    @property
    def brokers(self) -> list[ClusterNode]:
        """In the order of their ids."""
        return [
            node
            for node in self.nodes.values()
            if self._is_combined or node.id not in self.controller_addresses
        ]

    @property
    def voters(self) -> str:
        """The controllers as controller.quorum.voters."""
        return self._voters

    @property
    def bootstrap_controllers(self) -> str:
        """For bootstrap.controllers."""
        return _bootstrap(self.controller_addresses.values())

    @property
    def bootstrap_servers(self) -> str:
        """For bootstrap.servers; empty without brokers."""
        return _bootstrap(node.address for node in self.brokers)

    def _make_node(self, node_id: int, member: str) -> ClusterNode:
        host = self.network.addresses[member]
        folder = self._folder / member
        is_controller = node_id in self.controller_addresses
        ports = {"CONTROLLER": CONTROLLER_PORT} if is_controller else {}
        if self._is_combined or not is_controller:
            ports = {"PLAINTEXT": BROKER_PORT, **ports}
        roles = {"PLAINTEXT": "broker", "CONTROLLER": "controller"}
        overrides = {
            "process.roles": ",".join(roles[listener] for listener in ports),
            "node.id": str(node_id),
            "listeners": ",".join(f"{name}://{host}:{port}" for name, port in ports.items()),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self._voters,
            **self._settings,
        }
        process = BrokerProcess(
            folder / "data",
            overrides=overrides,
            log=self._folder / f"{member}.log",
            command=[*self.network.command(member), sys.executable, "-m", "kbroker"],
        )
        disk = SmallDisk(f"{self._run}-{member}", folder, self._disk_bytes)
        address = host, next(iter(ports.values()))
        return ClusterNode(
            node_id, member, address, overrides=overrides, process=process, disk=disk
        )

    def _format(self, node: ClusterNode) -> None:
        config = BrokerConfig.from_properties(
            {**node.overrides, "log.dirs": str(node.process.data)}
        )
        format_directories(config, FormatOptions(cluster_id=self._cluster_id), random=self._random)

    def __enter__(self) -> Self:
        remove_abandoned()
        with ExitStack() as stack:
            stack.enter_context(self.network)
            for node in self.nodes.values():
                stack.enter_context(node.disk)
                stack.callback(node.process.kill)
                self._format(node)
            for node in self.nodes.values():
                node.process.launch()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _bootstrap(addresses: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)
