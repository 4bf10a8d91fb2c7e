"""A run under AdminClients: every node answers what was acknowledged to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kbroker.client.connection import BrokerConnection
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from spark_jobs.java import java_problem
from tests.cluster.checks import check_acknowledged
from tests.cluster.cluster import CLIENT, Cluster, ClusterNode
from tests.cluster.loads import Resource, start_load, start_simulated_brokers
from tests.cluster.run import POLL_S, Run, Summary

APPLY_TIMEOUT_S: Final = 20.0
"""From the log of a node to its answers."""
RESOURCES_PER_REQUEST: Final = 200


def usual_loads(brokers: int) -> tuple[str, ...]:
    """The libraries that put load on the cluster where no others are named."""
    first = "confluent" if brokers else "wire"
    return (first,) if java_problem() else (first, "java")


class MetadataRun(Run):
    """brokers: beside the controllers; without any, simulated ones register. loads: as `start_load`
    names them.
    """

    def __init__(self, folder: Path, *, brokers: int, loads: Sequence[str]) -> None:
        super().__init__(Cluster(folder, brokers=brokers), folder)
        self._load_names = loads
        self._log_bytes = 0

    def start_clients(self, stack: ExitStack) -> None:
        """See `Run`."""
        if not self.cluster.brokers:
            brokers = start_simulated_brokers(self.cluster, self.folder / "simulated.log")
            self.add_client(brokers, stack, is_load=False)
        for library in self._load_names:
            load = start_load(library, self.cluster, self.folder / f"{library}.log")
            self.add_client(load, stack)

    def check_clients(self) -> None:
        """Every node has everything that was acknowledged until now."""
        self._log_bytes = self.check_metadata_logs()
        wanted: dict[Resource, dict[str, str]] = {}
        for load in self._loads:
            wanted |= load.sink.configs()
        for node in self.cluster.nodes.values():
            with self.cluster.network.entered(CLIENT):
                asyncio.run(_check_node(node, wanted))

    def finish(self) -> Summary:
        """See `Run`."""
        for load in self._loads:
            load.stop()
        self.check_clients()
        self.observe_leaders()
        count = sum(load.sink.count for load in self._loads)
        return Summary(count, self.epochs, self._log_bytes)


async def _check_node(node: ClusterNode, wanted: dict[Resource, dict[str, str]]) -> None:
    """Ask until the node has everything, since it may apply the last records later than others.
    Raises AssertionError.
    """
    deadline = time.monotonic() + APPLY_TIMEOUT_S
    while True:
        try:
            check_acknowledged(wanted, await _describe(node, wanted), str(node))
            return
        except (AssertionError, KafkaError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def _describe(
    node: ClusterNode, wanted: Mapping[Resource, Mapping[str, str]]
) -> dict[Resource, dict[str, str] | None]:
    """The configurations that are wanted, as the node answers; None for a resource that is
    unknown.
    """
    found: dict[Resource, dict[str, str] | None] = {}
    queue = list(wanted)
    async with await BrokerConnection.connect(*node.address) as connection:
        while queue:
            part, queue = queue[:RESOURCES_PER_REQUEST], queue[RESOURCES_PER_REQUEST:]
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configuration_keys=list(wanted[kind, name]),
                    )
                    for kind, name in part
                ]
            )
            response = await connection.request(request, DescribeConfigsResponse)
            for result in response.results:
                resource = (result.resource_type, result.resource_name)
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    found[resource] = None
                    continue
                if result.error_code:
                    raise KafkaError(ErrorCode(result.error_code), result.error_message or "")
                found[resource] = {each.name: each.value or "" for each in result.configs}
    return found
