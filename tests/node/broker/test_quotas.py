"""Quotas on a running node, over its sockets: which clients are throttled, since when, and for how
long.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.connection import BrokerConnection
from kbroker.node.broker.quotas import client_quotas, connection_rates
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.replication.rates import QuotaWindow
from kbroker.server.dispatch import Dispatcher
from kbroker.server.throttling import ThrottlingDispatcher
from kbroker.settings.broker import BrokerConfig
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call
from tests.node.cluster import Cluster, running, until

TOPIC = "t"
WINDOWS = {"quota.window.num": "2", "controller.quota.window.num": "2"}
"""A client may use the quota of one second at once."""

TOLERANCE_MS = 30
Part = AlterClientQuotasRequest.EntityData


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(WINDOWS) as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    with socket.create_connection((broker.host, broker.port), timeout=20) as connected:
        yield connected


def entry(
    parts: dict[str, str | None], key: str, value: float | None
) -> AlterClientQuotasRequest.EntryData:
    kind = AlterClientQuotasRequest
    operation = kind.OpData(key=key, value=value or 0.0, remove=value is None)
    entity = [Part(entity_type=each, entity_name=name) for each, name in parts.items()]
    return kind.EntryData(entity=entity, ops=[operation])


def alter(
    connection: socket.socket, parts: dict[str, str | None], key: str, value: float | None
) -> None:
    request = AlterClientQuotasRequest(entries=[entry(parts, key, value)])
    response = call(connection, request, 1)
    assert isinstance(response, AlterClientQuotasResponse)
    assert [each.error_code for each in response.entries] == [0]


def described(connection: socket.socket) -> list[tuple[list[tuple[str, str | None]], str, float]]:
    response = call(connection, DescribeClientQuotasRequest(), 1)
    assert isinstance(response, DescribeClientQuotasResponse)
    assert response.entries is not None
    return [
        ([(part.entity_type, part.entity_name) for part in each.entity], value.key, value.value)
        for each in response.entries
        for value in each.values
    ]


def produce(connection: socket.socket, size: int) -> int:
    """The throttle time of a batch of that size."""
    batch = build_batch([(1_700_000_000_000, None, bytes(size), [])])
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    response = call(connection, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 12)
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0
    return response.throttle_time_ms


def fetch(connection: socket.socket, size: int) -> FetchResponse:
    partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=size)
    topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])
    request = FetchRequest(session_epoch=-1, max_bytes=size, topics=[topic])
    response = call(connection, request, 12)
    assert isinstance(response, FetchResponse)
    return response


def creation(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def create(connection: socket.socket, name: str, partitions: int, version: int) -> tuple[int, int]:
    """(error, throttle time)."""
    response = call(connection, creation(name, partitions), version)
    assert isinstance(response, CreateTopicsResponse)
    return response.topics[0].error_code, response.throttle_time_ms


def is_muted_for(connection: socket.socket, milliseconds: int) -> None:
    """The next request is answered when the throttle time is over."""
    started = time.monotonic()
    assert isinstance(call(connection, MetadataRequest(topics=[]), 12), MetadataResponse)
    waited_ms = (time.monotonic() - started) * 1000
    assert waited_ms >= milliseconds - TOLERANCE_MS


def enforces(broker: EmbeddedBroker) -> bool:
    """Whether requests are charged at all."""

    return broker.call(throttles)


def throttles(node: Broker) -> bool:
    """Whether the requests of the broker's clients are charged."""
    assert node._servers is not None
    dispatcher = node._servers._shared[-1].dispatcher
    assert isinstance(dispatcher, ThrottlingDispatcher | Dispatcher)
    return isinstance(dispatcher, ThrottlingDispatcher)


def test_a_producer_is_held_to_its_rate_while_it_has_one(
    broker: EmbeddedBroker, connection: socket.socket
) -> None:
    assert not enforces(broker)
    assert produce(connection, 50_000) == 0
    client = {"client-id": "wire"}
    alter(connection, client, "producer_byte_rate", 20_000.0)
    assert enforces(broker)
    assert described(connection) == [([("client-id", "wire")], "producer_byte_rate", 20_000.0)]
    throttle_ms = produce(connection, 24_000)
    assert 200 <= throttle_ms < 400
    is_muted_for(connection, throttle_ms)
    alter(connection, client, "producer_byte_rate", None)
    assert not enforces(broker)
    assert produce(connection, 50_000) == 0
    assert described(connection) == []


def test_a_consumer_is_held_to_its_rate(connection: socket.socket) -> None:
    produce(connection, 50_000)
    user: dict[str, str | None] = {"user": "ANONYMOUS"}
    alter(connection, user, "consumer_byte_rate", 60_000.0)
    first = fetch(connection, 50_000)
    assert first.throttle_time_ms == 0
    assert first.responses[0].partitions[0].records
    second = fetch(connection, 50_000)
    assert second.throttle_time_ms > 0
    assert second.responses == []
    is_muted_for(connection, second.throttle_time_ms)
    alter(connection, user, "consumer_byte_rate", None)
    assert fetch(connection, 50_000).throttle_time_ms == 0


def test_a_client_above_its_request_percentage_waits(connection: socket.socket) -> None:
    user: dict[str, str | None] = {"user": None}
    alter(connection, user, "request_percentage", 0.0001)
    response = call(connection, MetadataRequest(topics=[]), 12)
    assert isinstance(response, MetadataResponse)
    assert response.throttle_time_ms == 1000
    alter(connection, user, "request_percentage", None)


def test_topics_above_the_mutation_rate_are_refused(connection: socket.socket) -> None:
    """From v6 on; an older client is throttled only."""
    user: dict[str, str | None] = {"user": "ANONYMOUS", "client-id": None}
    alter(connection, user, "controller_mutation_rate", 1.0)
    assert create(connection, "within", 4, 7) == (0, 0)
    error, throttle_ms = create(connection, "above", 1, 7)
    assert (error, throttle_ms > 0) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, True)
    is_muted_for(connection, throttle_ms)
    assert create(connection, "later", 1, 7) == (0, 0)
    error, throttle_ms = create(connection, "old", 1, 5)
    assert (error, throttle_ms > 0) == (0, True)
    alter(connection, user, "controller_mutation_rate", None)


def test_connections_of_an_address_above_its_rate_are_closed(
    broker: EmbeddedBroker, connection: socket.socket
) -> None:
    address: dict[str, str | None] = {"ip": "127.0.0.1"}
    alter(connection, address, "connection_creation_rate", 1.0)
    assert not enforces(broker), "requests are not charged because of it"
    with (
        socket.create_connection((broker.host, broker.port), timeout=20) as first,
        socket.create_connection((broker.host, broker.port), timeout=20) as second,
    ):
        assert isinstance(call(first, MetadataRequest(topics=[]), 12), MetadataResponse)
        assert second.recv(1) == b""
    alter(connection, address, "connection_creation_rate", None)
    with socket.create_connection((broker.host, broker.port), timeout=20) as third:
        assert isinstance(call(third, MetadataRequest(topics=[]), 12), MetadataResponse)


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    for is_first in (True, False):
        with (
            EmbeddedBroker(WINDOWS, data=tmp_path / "data") as running,
            socket.create_connection((running.host, running.port), timeout=20) as connected,
        ):
            if is_first:
                alter(connected, {"client-id": None}, "producer_byte_rate", 1000.0)
            assert enforces(running)
            assert described(connected) == [([("client-id", None)], "producer_byte_rate", 1000.0)]


def test_windows_and_rates_come_from_the_settings() -> None:
    config = BrokerConfig.from_properties(
        {
            "node.id": "1",
            "quota.window.num": "5",
            "quota.window.size.seconds": "2",
            "controller.quota.window.num": "7",
            "controller.quota.window.size.seconds": "3",
            "max.connection.creation.rate": "10",
            "socket.listen.backlog.size": "7",
        }
    )
    quotas = client_quotas(config)
    assert quotas.produce.window == quotas.request.window == QuotaWindow(5, 2000)
    assert quotas.mutation.window == QuotaWindow(7, 3000)
    assert connection_rates(config).is_limited
    assert connection_rates(config)._backlog == 7
    assert not connection_rates(BrokerConfig.from_properties({"node.id": "1"})).is_limited


def test_brokers_of_a_cluster_hold_clients_to_the_controllers_quotas(tmp_path: Path) -> None:
    """Quotas set through one broker are in effect on another. The controller charges what both
    forward; the broker mutes its client for the throttle time in the forwarded response.
    """

    async def script() -> None:
        roles = {1: "controller", 2: "broker", 3: "broker"}
        async with running(Cluster(tmp_path, roles, settings=WINDOWS)) as cluster:
            ports = cluster.client_ports
            second = await BrokerConnection.connect("127.0.0.1", ports[2])
            third = await BrokerConnection.connect("127.0.0.1", ports[3])
            quotas = AlterClientQuotasRequest(
                entries=[entry({"user": None}, "controller_mutation_rate", 1.0)]
            )
            altered = await second.request(quotas, AlterClientQuotasResponse)
            assert [each.error_code for each in altered.entries] == [0]
            await until(lambda: all(throttles(cluster.nodes[number]) for number in (2, 3)))
            created = await second.request(creation("within", 6), CreateTopicsResponse)
            assert created.topics[0].error_code == 0
            refused = await third.request(creation("above", 1), CreateTopicsResponse)
            assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert refused.throttle_time_ms > 0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(refused.throttle_time_ms / 5000):
                    await third.request(MetadataRequest(topics=[]), MetadataResponse)
            second.close()
            third.close()

    asyncio.run(script())
