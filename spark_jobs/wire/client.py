"""A cluster as a driver or a task sees it: bootstrap, metadata, coordinators, connections, retries.

Blocking. What a deadline ends is raised as KafkaError; one line of it is made by its caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from kbroker.client.bootstrap_servers import parse_bootstrap
from kbroker.client.cluster import (
    STALE_METADATA,
    ZERO_UUID,
    StartupError,
    TopicPartition,
    Uuid,
)
from kbroker.client.cluster_view import BrokerAddress
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

from ..errors import JobError
from .connection import BrokerSocket, Connection, OpenSocket, open_plain_socket

R = TypeVar("R", bound=Response)
T = TypeVar("T")

FIRST_BACKOFF_S: Final = 0.02
MAX_BACKOFF_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is, and how long to try. Goes to the tasks, so it is picklable.

    connect_timeout_s: of one connection, and for finding any broker at all. request_timeout_s: for
    one response. retry_timeout_s: how long retriable errors are retried.
    """

    bootstrap_servers: str
    client_id: str = "kbroker-spark"
    open_socket: OpenSocket = open_plain_socket
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 35.0
    retry_timeout_s: float = 60.0


class Clock(Protocol):
    """Time that passes; tests have one that does not wait."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The `Clock` of this machine."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


class NoBroker(JobError):
    """No address of the cluster answers."""


Connect = Callable[[str, int, float], Connection]
"""Opens a connection to (host, port) within so many seconds, or raises KafkaError."""


class BlockingClient:
    """Sends requests to the right broker. Connects on demand; not for use by several threads."""

    def __init__(
        self,
        address: ClusterAddress,
        *,
        connect: Connect | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises JobError for bootstrap servers that are no addresses."""
        self.address = address
        self.clock: Clock = SystemClock() if clock is None else clock
        self._connect = self._open_socket if connect is None else connect
        try:
            self._bootstrap = parse_bootstrap(address.bootstrap_servers)
        except StartupError as error:
            raise JobError(str(error)) from error
        self._brokers: dict[int, BrokerAddress] = {}
        self._leaders: dict[str, dict[int, int]] = {}
        self._topic_ids: dict[str, Uuid] = {}
        self._coordinators: dict[tuple[int, str], BrokerAddress] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._reached: set[tuple[str, int]] = set()

    def _open_socket(self, host: str, port: int, timeout_s: float) -> Connection:
        return BrokerSocket.connect(
            host,
            port,
            self.address.client_id,
            open_socket=self.address.open_socket,
            connect_timeout_s=timeout_s,
            request_timeout_s=self.address.request_timeout_s,
        )

    def close(self) -> None:
        """Close every connection."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    # connections

    def _connection(self, host: str, port: int, timeout_s: float) -> Connection:
        known = self._connections.get((host, port))
        if known is not None and not known.is_closed:
            return known
        opened = self._connections[host, port] = self._connect(host, port, timeout_s)
        self._reached.add((host, port))
        return opened

    def any_connection(self) -> Connection:
        """A connection to a known broker, one that is open before any other, else to a bootstrap
        address.

        Raises JobError if no address answers within connect_timeout_s, all of them together.
        """
        known = [(broker.host, broker.port) for broker in self._brokers.values()]
        addresses = list(dict.fromkeys([*known, *self._bootstrap]))
        return self._first_connection(addresses)

    def _first_connection(self, addresses: Sequence[tuple[str, int]]) -> Connection:
        """Raises NoBroker if no address answers within connect_timeout_s, and what a broker raises
        that refuses this client.
        """
        addresses = sorted(addresses, key=self._is_open, reverse=True)
        deadline = self.clock.monotonic() + self.address.connect_timeout_s
        failures: list[str] = []
        for left, (host, port) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            timeout_s = max((deadline - self.clock.monotonic()) / left, 0.1)
            try:
                return self._connection(host, port, timeout_s)
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                failures.append(error.message)
        raise NoBroker(
            f"no broker answers: {'; '.join(dict.fromkeys(failures))}; "
            "check the bootstrap servers and that this machine can reach them"
        )

    def _is_open(self, address: tuple[str, int]) -> bool:
        connection = self._connections.get(address)
        return connection is not None and not connection.is_closed

    def node(self, node_id: int) -> Connection:
        """A connection to a broker by id. Raises KafkaError."""
        broker = self._brokers.get(node_id)
        if broker is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"no broker has id {node_id}")
        return self._advertised(broker)

    def _advertised(self, broker: BrokerAddress) -> Connection:
        """Raises KafkaError: BROKER_NOT_AVAILABLE, which is not retriable, if none of the
        addresses that the cluster advertises can be reached from here.
        """
        host, port = broker.host, broker.port
        began = self.clock.monotonic()
        while True:
            try:
                return self._connection(host, port, self.address.connect_timeout_s)
            except KafkaError as error:
                if not error.code.retriable or self._is_advertised_reached(broker):
                    raise
                waited_s = self.clock.monotonic() - began
                if waited_s + FIRST_BACKOFF_S > self.address.connect_timeout_s:
                    raise KafkaError(
                        ErrorCode.BROKER_NOT_AVAILABLE,
                        f"broker {broker.node_id} advertises {host}:{port}, which this machine "
                        f"cannot reach ({error.message}); check advertised.listeners",
                    ) from None
                self.clock.sleep(FIRST_BACKOFF_S)

    def _is_advertised_reached(self, broker: BrokerAddress) -> bool:
        """Whether an advertised address was reached, or answers now: then a broker that does not
        answer is down, and its partitions and coordinators will move.
        """
        if not self._brokers:
            self.refresh([])
        advertised = {(known.host, known.port) for known in (broker, *self._brokers.values())}
        if advertised & self._reached:
            return True
        try:
            self._first_connection(sorted(advertised - {(broker.host, broker.port)}))
        except NoBroker:
            return False
        return True

    # requests

    def exchange(
        self,
        connection: Connection,
        request: Request,
        response_type: type[R],
        max_version: int | None = None,
    ) -> R:
        """Send a request and wait for its response. Raises KafkaError."""
        version = connection.version_of(request.API_KEY, max_version)
        return connection.receive(connection.send(request, version), response_type)

    def any(self, request: Request, response_type: type[R], *, max_version: int | None = None) -> R:
        """Send a request to any broker."""
        return self.exchange(self.any_connection(), request, response_type, max_version)

    def to_leader(
        self,
        topic_partition: TopicPartition,
        request: Request,
        response_type: type[R],
        *,
        max_version: int | None = None,
    ) -> R:
        """Send a request to a partition's leader."""
        connection = self.node(self.leader(topic_partition))
        return self.exchange(connection, request, response_type, max_version)

    def to_coordinator(
        self,
        key_type: int,
        key: str,
        request: Request,
        response_type: type[R],
        *,
        max_version: int | None = None,
    ) -> R:
        """Send a request to the coordinator of a group or transactional id. After an error of the
        connection the coordinator is looked up again.
        """
        connection = self.coordinator_connection(key_type, key)
        try:
            return self.exchange(connection, request, response_type, max_version)
        except KafkaError:
            self.forget_coordinator(key_type, key)
            raise

    def coordinator_connection(self, key_type: int, key: str) -> Connection:
        """A connection to the coordinator of a group or transactional id. Raises KafkaError."""
        address = self._coordinators.get((key_type, key))
        if address is None:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
            response = self.any(request, FindCoordinatorResponse, max_version=3)
            if response.error_code:
                raise KafkaError(ErrorCode(response.error_code), response.error_message or "")
            address = BrokerAddress(response.node_id, response.host, response.port)
            self._coordinators[key_type, key] = address
        try:
            return self._advertised(address)
        except KafkaError:
            self.forget_coordinator(key_type, key)
            raise

    def forget_coordinator(self, key_type: int, key: str) -> None:
        """Look the coordinator up at the next request: it has moved or cannot be reached."""
        self._coordinators.pop((key_type, key), None)

    # metadata

    def leader(self, topic_partition: TopicPartition) -> int:
        """The node id of a partition's leader. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION or
        LEADER_NOT_AVAILABLE).
        """
        topic, partition = topic_partition
        leaders = self._leaders.get(topic)
        if leaders is None or leaders.get(partition, -1) < 0:
            self.refresh([topic])
            leaders = self._leaders[topic]
        if partition not in leaders:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(topic_partition))
        if leaders[partition] < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(topic_partition))
        return leaders[partition]

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic, requested now. Raises KafkaError."""
        self.refresh([topic])
        return len(self._leaders[topic])

    def topic_id(self, topic: str) -> Uuid:
        """The id of a topic as of its last `refresh`; ZERO_UUID of brokers before Kafka 2.8."""
        return self._topic_ids.get(topic, ZERO_UUID)

    def broker_count(self) -> int:
        """Brokers of the cluster, as of the last `refresh`."""
        return len(self._brokers)

    def refresh(self, topics: Sequence[str]) -> None:
        """Request the brokers and the topics' leaders. Raises KafkaError for a topic that does not
        exist or may not be described; nothing is created.
        """
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        response = self.any(request, MetadataResponse, max_version=12)
        self._brokers = {
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port)
            for broker in response.brokers
        }
        for topic in response.topics:
            if topic.name is None:
                continue
            self._leaders.pop(topic.name, None)
            if topic.error_code:
                raise KafkaError(ErrorCode(topic.error_code), f"topic {topic.name}")
            self._topic_ids[topic.name] = topic.topic_id
            self._leaders[topic.name] = {
                partition.partition_index: partition.leader_id for partition in topic.partitions
            }

    def forget_leaders(self) -> None:
        """Request leaders again before the next request to one."""
        self._leaders.clear()

    # retries

    def retry(
        self,
        attempt: Callable[[], T],
        *,
        timeout_s: float | None = None,
        is_final: Callable[[KafkaError], bool] | None = None,
    ) -> T:
        """Repeat attempt while it raises a retriable KafkaError, until a deadline; then raise it.

        timeout_s: retry_timeout_s by default. is_final: errors that are not retried although they
        are retriable. Waits 20 ms, then twice as long, up to 1 s each. An unreachable cluster
        (`NoBroker`) is retried once any broker was reached.
        """
        was_reached = bool(self._brokers)
        deadline = self.clock.monotonic() + (
            self.address.retry_timeout_s if timeout_s is None else timeout_s
        )
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return attempt()
            except NoBroker:
                if not was_reached or self.clock.monotonic() + backoff_s > deadline:
                    raise
            except KafkaError as error:
                is_retried = error.code.retriable and not (is_final and is_final(error))
                if not is_retried or self.clock.monotonic() + backoff_s > deadline:
                    raise
                # A broker that hangs accepts connections; its partitions move to others meanwhile.
                if error.code in STALE_METADATA or error.code is ErrorCode.REQUEST_TIMED_OUT:
                    self.forget_leaders()
            self.clock.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
