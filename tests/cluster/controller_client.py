"""A client of controllers (KIP-919): finds the active one, and asks any of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar

from kbroker.client.bootstrap_servers import parse_bootstrap
from kbroker.client.connection import BrokerConnection
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse

R = TypeVar("R", bound=Response)

CONTROLLERS = 2
"""DescribeCluster's endpoint type."""
PAUSE_S = 0.05
QuorumPartition = DescribeQuorumResponse.PartitionData


def format_addresses(addresses: Mapping[int, tuple[str, int]]) -> str:
    """`id@host:port,...`, as in controller.quorum.voters."""
    return ",".join(f"{node}@{host}:{port}" for node, (host, port) in addresses.items())


def parse_addresses(text: str) -> dict[int, tuple[str, int]]:
    """The opposite."""
    found = {}
    for entry in text.split(","):
        node, _, address = entry.partition("@")
        (found[int(node)],) = parse_bootstrap(address)
    return found


class ControllerClient:
    """One connection, to the active controller; opened at the first request and after an error.

    For one task at a time. timeout_s: of each connect and each request.
    """

    def __init__(self, addresses: Mapping[int, tuple[str, int]], *, timeout_s: float = 3.0) -> None:
        self._addresses = dict(addresses)
        self._order = deque(self._addresses)
        self._timeout_s = timeout_s
        self._connection: BrokerConnection | None = None
        self.cluster_id = ""
        self.active_id = -1

    async def request(self, message: Request, response_type: type[R]) -> R:
        """Ask the active controller once. Raises KafkaError; where the response names
        NOT_CONTROLLER the caller calls `forget`.
        """
        try:
            connection = await self.active()
            return await connection.request(message, response_type, timeout_s=self._timeout_s)
        except KafkaError:
            self.forget()
            raise

    async def active(self) -> BrokerConnection:
        """The connection. Raises KafkaError(NOT_CONTROLLER) where no controller knows of one."""
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        self.forget()
        for node in tuple(self._order):
            self._order.rotate(-1)  # the next attempt begins with another one
            try:
                connection = await self.connect(node)
            except KafkaError:
                continue
            try:
                cluster = await connection.request(
                    DescribeClusterRequest(endpoint_type=CONTROLLERS),
                    DescribeClusterResponse,
                    timeout_s=self._timeout_s,
                )
                self.cluster_id, self.active_id = cluster.cluster_id, cluster.controller_id
                if self.active_id == node:
                    self._connection = connection
                    return connection
                if self.active_id in self._addresses:
                    self._connection = await self.connect(self.active_id)
                    return self._connection
            except KafkaError:
                continue
            finally:
                if connection is not self._connection:
                    connection.close()
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "no controller says which one is active")

    async def connect(self, node: int) -> BrokerConnection:
        """A new connection to one of them. Raises KafkaError(NETWORK_EXCEPTION)."""
        host, port = self._addresses[node]
        return await BrokerConnection.connect(host, port, timeout_s=self._timeout_s)

    async def describe_quorum(self) -> QuorumPartition:
        """The quorum, as its leader sees it. Raises KafkaError if there is none."""
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequest.TopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
                )
            ]
        )
        response = await self.request(request, DescribeQuorumResponse)
        if response.error_code:
            self.forget()
            raise KafkaError(ErrorCode(response.error_code), response.error_message or "")
        partition = response.topics[0].partitions[0]
        if partition.error_code:
            self.forget()
            raise KafkaError(ErrorCode(partition.error_code), partition.error_message or "")
        return partition

    async def wait_for_quorum(self, timeout_s: float) -> QuorumPartition:
        """Until a leader has committed something. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found = await self.describe_quorum()
                    if found.high_watermark > 0:
                        return found
                except KafkaError:
                    pass
                await asyncio.sleep(PAUSE_S)

    def forget(self) -> None:
        """Close the connection; the next request finds the active controller anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.forget()
