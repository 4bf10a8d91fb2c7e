"""A cluster as a client sees it: bootstrap addresses, metadata, one connection per broker, retries.

Requests that fail with a retriable error (no leader yet, a broker that restarts) are retried until
a deadline; other errors are raised as KafkaError at once. Producing and consuming are in
producer.py and consumer.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from kbroker.client.advertised import ADVERTISED_CONNECT_TIMEOUT_S, AdvertisedAddresses
from kbroker.client.bootstrap_servers import parse_bootstrap
from kbroker.client.cluster_view import (
    BrokerAddress,
    OffsetAndTimestamp,
    PartitionView,
    TopicView,
)
from kbroker.client.connection import (
    DEFAULT_CLIENT_ID,
    DEFAULT_CONNECT_TIMEOUT_S,
    BrokerConnection,
)
from kbroker.client.security.sasl_authentication import AUTHENTICATION_ERRORS
from kbroker.model import ZERO_UUID, StartupError, TopicPartition, Uuid
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from kbroker.client.security.connection_security import ConnectionSecurity

R = TypeVar("R", bound=Response)
T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 30.0
FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 1.0

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1
_COORDINATED: Final[Mapping[int, tuple[str, str]]] = {
    GROUP_COORDINATOR: ("group", "__consumer_offsets"),
    TRANSACTION_COORDINATOR: ("transactional id", "__transaction_state"),
}
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which metadata is requested again."""


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless code is NONE. message: what the error is about."""
    if code:
        raise KafkaError(ErrorCode(code), message or "")


class Client:
    """Sends requests to the right broker of a cluster. An async context manager; connects on
    demand.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = DEFAULT_CLIENT_ID,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        security: ConnectionSecurity | None = None,
    ) -> None:
        """security: TLS and SASL of its connections; None for PLAINTEXT."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self._security = security
        self.timeout_s = timeout_s
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicView] = {}
        self.topic_names: dict[Uuid, str] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self._connections: dict[tuple[str, int, str], asyncio.Task[BrokerConnection]] = {}
        self._closing: list[BrokerConnection] = []
        self._coordinators: dict[tuple[int, str], BrokerAddress] = {}
        self._advertised = AdvertisedAddresses(self.connection)

    async def __aenter__(self) -> Self:
        """Connect to one bootstrap broker. Raises StartupError if none can be reached."""
        await self.any_connection()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        tasks, self._connections = list(self._connections.values()), {}
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        open_ones = [result for result in results if isinstance(result, BrokerConnection)]
        for connection in open_ones:
            connection.close()
        closing, self._closing = [*open_ones, *self._closing], []
        await asyncio.gather(*(connection.wait_closed() for connection in closing))

    async def connection(
        self,
        host: str,
        port: int,
        channel: str = "",
        *,
        timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
    ) -> BrokerConnection:
        """The connection to an address; concurrent callers share one.

        channel: a name for one more connection to it. A broker answers a connection's requests in
        order, so long waits (Fetch, JoinGroup) need one of their own. Raises what
        `BrokerConnection.connect` does.
        """
        key = (host, port, channel)
        task = self._connections.get(key)
        if task is not None and task.done():
            failed = task.cancelled() or task.exception() is not None
            if failed or task.result().is_closed:
                task = None
        if task is None:
            opening = BrokerConnection.connect(
                host, port, self.client_id, timeout_s=timeout_s, security=self._security
            )
            task = self._connections[key] = asyncio.create_task(opening)
        connection = await asyncio.shield(task)
        self._advertised.add_reached(host, port)
        return connection

    def close_channel(self, channel: str) -> None:
        """Close the connections of one channel; requests under way on them fail."""
        for key in [key for key in self._connections if key[2] == channel]:
            task = self._connections.pop(key)
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                task.result().close()
                self._closing.append(task.result())
        self._closing = [connection for connection in self._closing if not connection.is_gone]

    async def advertised_connection(
        self, broker: BrokerAddress, channel: str = ""
    ) -> BrokerConnection:
        """The connection to an address from the cluster's metadata. Raises KafkaError, see
        `AdvertisedAddresses.unreachable`.
        """
        host, port = broker.host, broker.port
        if self._advertised.is_reached(broker):
            return await self.connection(host, port, channel)
        began_s = asyncio.get_running_loop().time()
        try:
            return await self.connection(
                host, port, channel, timeout_s=ADVERTISED_CONNECT_TIMEOUT_S
            )
        except KafkaError as error:
            if error.code is not ErrorCode.NETWORK_EXCEPTION:
                raise
            known = self._known_brokers
            raise await self._advertised.unreachable(broker, error, began_s, known) from None

    async def _known_brokers(self) -> list[BrokerAddress]:
        if not self.brokers:  # FindCoordinator was the first request
            await self.metadata([])
        return [*self.brokers.values(), *self._coordinators.values()]

    def _is_open(self, address: tuple[str, int]) -> bool:
        task = self._connections.get((*address, ""))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return False
        return not task.result().is_closed

    async def any_connection(self) -> BrokerConnection:
        """A connection to a broker known from metadata, else to a bootstrap address; one that is
        open already before any other.

        Raises StartupError if there is no broker at any bootstrap address, KafkaError of
        NETWORK_EXCEPTION if there was one before, and what a broker raises that is there and
        refuses this client.
        """
        failures: list[str] = []
        known = [(broker.host, broker.port) for broker in self.brokers.values()]
        addresses = [*known, *self.bootstrap]
        for host, port in sorted(addresses, key=self._is_open, reverse=True):
            try:
                return await self.connection(host, port)
            except KafkaError as error:
                if error.code in AUTHENTICATION_ERRORS:
                    raise
                failures.append(error.message)
        problem = f"no broker answers: {'; '.join(dict.fromkeys(failures))}"
        if not self.brokers:
            raise StartupError(problem)
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, problem)  # they restart: worth a retry

    async def node(self, node_id: int, channel: str = "") -> BrokerConnection:
        """A connection to a broker by id. Raises KafkaError(BROKER_NOT_AVAILABLE) if unknown."""
        address = self.brokers.get(node_id)
        if address is None:
            await self.metadata([])
            address = self.brokers.get(node_id)
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"no broker has id {node_id}")
        return await self.advertised_connection(address, channel)

    async def any(
        self, message: Request, response_type: type[R], *, max_version: int | None = None
    ) -> R:
        """Send a request to any broker."""
        connection = await self.any_connection()
        return await connection.request(
            message, response_type, max_version=max_version, timeout_s=self.timeout_s
        )

    async def to_node(
        self,
        node_id: int,
        message: Request,
        response_type: type[R],
        *,
        max_version: int | None = None,
        channel: str = "",
    ) -> R:
        """Send a request to one broker."""
        connection = await self.node(node_id, channel)
        return await connection.request(
            message, response_type, max_version=max_version, timeout_s=self.timeout_s
        )

    async def to_controller(
        self, message: Request, response_type: type[R], *, max_version: int | None = None
    ) -> R:
        """Send a request to the broker that Metadata names as controller; it forwards requests for
        the active controller.
        """
        if self.controller_id not in self.brokers:
            await self.metadata([])
        if self.controller_id not in self.brokers:
            return await self.any(message, response_type, max_version=max_version)
        return await self.to_node(
            self.controller_id, message, response_type, max_version=max_version
        )

    async def to_leader(
        self,
        topic_partition: TopicPartition,
        message: Request,
        response_type: type[R],
        *,
        max_version: int | None = None,
    ) -> R:
        """Send a request to a partition's leader. Raises KafkaError(LEADER_NOT_AVAILABLE) while
        there is none.
        """
        leader_id = await self.leader(topic_partition)
        return await self.to_node(leader_id, message, response_type, max_version=max_version)

    async def to_coordinator(
        self,
        key: str,
        message: Request,
        response_type: type[R],
        *,
        key_type: int = GROUP_COORDINATOR,
        max_version: int | None = None,
        timeout_s: float | None = None,
        channel: str = "",
    ) -> R:
        """Send a request to the coordinator of a group or transactional id. After an error the
        coordinator is looked up again.
        """
        address = await self.coordinator(key, key_type)
        try:
            connection = await self.advertised_connection(address, channel)
            return await connection.request(
                message,
                response_type,
                max_version=max_version,
                timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            )
        except KafkaError:
            self.forget_coordinator(key, key_type)
            raise

    async def coordinator(self, key: str, key_type: int = GROUP_COORDINATOR) -> BrokerAddress:
        """The coordinator's address of a group or transactional id; cached until
        `forget_coordinator`.
        """
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        response = await self.any(request, FindCoordinatorResponse, max_version=3)
        check(response.error_code, _coordinator_problem(response, key, key_type))
        address = BrokerAddress(response.node_id, response.host, response.port)
        self._coordinators[key_type, key] = address
        return address

    def forget_coordinator(self, key: str, key_type: int = GROUP_COORDINATOR) -> None:
        """Drop a cached coordinator, after NOT_COORDINATOR or a failed connection."""
        self._coordinators.pop((key_type, key), None)

    async def leader(self, topic_partition: TopicPartition) -> int:
        """A partition's leader, from cached metadata if it is known there.

        Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE).
        """
        topic, partition = topic_partition
        view = self.topics.get(topic)
        if view is None or view.partitions.get(partition, NO_LEADER).leader_id < 0:
            view = await self.topic(topic)
        if partition not in view.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(topic_partition))
        leader_id = view.partitions[partition].leader_id
        if leader_id < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(topic_partition))
        return leader_id

    def is_leaderless(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition was there without a leader when metadata came last."""
        view = self.topics.get(topic_partition.topic)
        known = None if view is None else view.partitions.get(topic_partition.partition)
        return known is not None and known.leader_id < 0

    async def topic(self, name: str, *, allow_auto_creation: bool = False) -> TopicView:
        """Request the metadata of one topic. Raises KafkaError, retriable while the topic is being
        created.
        """
        response = await self.metadata([name], allow_auto_creation=allow_auto_creation)
        for topic in response.topics:
            if topic.name == name:
                check(topic.error_code, f"topic {name}")
        view = self.topics.get(name)
        if view is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        return view

    def forget_topic(self, name: str) -> None:
        """Drop a topic's cached metadata, after an error of STALE_METADATA."""
        view = self.topics.pop(name, None)
        if view is not None:
            self.topic_names.pop(view.topic_id, None)

    async def metadata(
        self, topics: Sequence[str] | None = None, *, allow_auto_creation: bool = False
    ) -> MetadataResponse:
        """Request the brokers and topics (None: all topics) and cache the response."""
        wanted = None
        if topics is not None:
            wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_creation)
        response = await self.any(request, MetadataResponse)
        check(response.error_code, "Metadata")
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port)
            for broker in response.brokers
        }
        for topic in response.topics:
            if topic.name is None:
                continue
            if topic.error_code:
                self.forget_topic(topic.name)
                continue
            partitions = {
                partition.partition_index: PartitionView(
                    partition.leader_id, partition.leader_epoch
                )
                for partition in topic.partitions
            }
            self.topics[topic.name] = TopicView(topic.name, topic.topic_id, partitions)
            if topic.topic_id != ZERO_UUID:
                self.topic_names[topic.topic_id] = topic.name
        return response

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        """Repeat attempt while it raises a retriable KafkaError, until a deadline; then raise it.

        timeout_s: the client's own by default. Waits 50 ms, then twice as long, up to 1 s each.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if not error.code.retriable or loop.time() + backoff_s > deadline:
                    raise
                if error.code in STALE_METADATA:
                    self.topics.clear()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after a timestamp, per partition, from each leader.

        A timestamp may be LATEST_TIMESTAMP, EARLIEST_TIMESTAMP or MAX_TIMESTAMP. Raises KafkaError.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        for topic_partition in timestamps:
            by_leader.setdefault(await self.leader(topic_partition), []).append(topic_partition)
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        for leader_id, topic_partitions in by_leader.items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsRequest.ListOffsetsPartition(
                                partition_index=partition,
                                timestamp=timestamps[TopicPartition(topic, partition)],
                            )
                            for partition in partitions
                        ],
                    )
                    for topic, partitions in group_by_topic(topic_partitions).items()
                ],
                timeout_ms=int(self.timeout_s * 1000),
            )
            response = await self.to_node(leader_id, request, ListOffsetsResponse)
            for topic_response in response.topics:
                for answer in topic_response.partitions:
                    topic_partition = TopicPartition(topic_response.name, answer.partition_index)
                    check(answer.error_code, f"offsets of {topic_partition}")
                    found[topic_partition] = OffsetAndTimestamp(
                        answer.offset, answer.timestamp, answer.leader_epoch
                    )
        return found


NO_LEADER: Final = PartitionView(-1, -1)


def _coordinator_problem(response: FindCoordinatorResponse, key: str, key_type: int) -> str:
    """What an error of FindCoordinator means. Brokers give no reason for the usual one."""
    kind, topic = _COORDINATED[key_type]
    if response.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return response.error_message or f"the coordinator of {kind} {key}"
    return (
        f"{kind} {key} has no coordinator: {topic} cannot be created with the brokers that are "
        "running, or its partition has no leader; the log of a broker says which"
    )


def group_by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition indexes by topic, in the order given."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in topic_partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
