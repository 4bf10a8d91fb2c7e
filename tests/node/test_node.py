"""The roles of a node, and the APIs of its listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from kbroker.broker.controller_channel import LocalControllerChannel
from kbroker.client.connection import BrokerConnection
from kbroker.controller.registration import registration_request
from kbroker.metadata.image import Endpoint
from kbroker.model import InvariantError, StartupError
from kbroker.node.broker.broker_role import BrokerRole
from kbroker.node.node import Broker
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.cluster import ControllerRegistrationResponse
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from kbroker.server.handlers import all_handlers, controller_handlers, forwarded_apis
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ResourceType
from tests.node.broken_disk import break_metadata_log

ALONE: Final = {"listeners": "PLAINTEXT://127.0.0.1:0"}
BOTH: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
    "node.id": "7",
}
CONTROLLER: Final = {
    "process.roles": "controller",
    "listeners": "CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "7@127.0.0.1:9093",
    "node.id": "7",
}


def node(tmp_path: Path, properties: dict[str, str]) -> Broker:
    settings = {"log.dirs": str(tmp_path / "data"), **properties}
    return Broker(BrokerConfig.from_properties(settings))


@asynccontextmanager
async def started(tmp_path: Path, properties: dict[str, str]) -> AsyncIterator[Broker]:
    running = node(tmp_path, properties)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
    assert running.failure is None


async def connect(running: Broker, listener: str) -> BrokerConnection:
    (bound,) = (each for each in running.bound_listeners if each.name == listener)
    return await BrokerConnection.connect(bound.host, bound.port)


def test_a_broker_alone_formats_nothing_by_itself(tmp_path: Path) -> None:
    properties = {
        "process.roles": "broker",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    }
    with pytest.raises(StartupError, match="run `kbroker format") as caught:
        asyncio.run(node(tmp_path, properties).start())
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "data").glob("*.properties"))


def test_a_start_whose_loop_ends_is_closed_without_a_wait(tmp_path: Path) -> None:
    async def script() -> None:
        running = node(tmp_path, BOTH)
        start = running.start()
        start.send(None)
        start.close()  # as the collector closes it; RuntimeError if it waited
        running.kill()

    asyncio.run(script())


@pytest.mark.parametrize("properties", [ALONE, BOTH], ids=["local", "remote"])
@pytest.mark.parametrize("writes", range(5))
def test_a_disk_that_fails_during_the_start_ends_it(
    writes: int, properties: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write of the metadata log fails: what waits for the log then never resolves."""

    properties = {"broker.session.timeout.ms": "1000", **properties}

    async def start() -> None:
        async with asyncio.timeout(10):
            await node(tmp_path, properties).start()

    async def start_again() -> None:
        async with started(tmp_path, properties):
            pass

    with monkeypatch.context() as patch:
        break_metadata_log(patch, tmp_path, after=writes)
        with pytest.raises(StartupError, match=r"fsync .*Input/output error"):
            asyncio.run(start())
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    asyncio.run(start_again())  # nothing is locked


@pytest.mark.parametrize("cause", ["error", "cancel"])
def test_a_start_that_fails_closes_the_connections_that_it_has_accepted(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listeners of a controller accept connections early."""
    connections: list[BrokerConnection] = []
    running = node(tmp_path, BOTH)

    async def start_role(self: BrokerRole, endpoints: object) -> None:
        connections.append(await connect(running, "CONTROLLER"))
        await connections[0].request(ApiVersionsRequest(), ApiVersionsResponse)
        if cause == "cancel":
            raise asyncio.CancelledError
        raise StartupError("broken for the test")

    async def script() -> None:
        with pytest.raises((StartupError, asyncio.CancelledError)):
            await running.start()
        async with asyncio.timeout(10), connections[0]:
            with pytest.raises(KafkaError, match="closed the connection"):
                await connections[0].request(ApiVersionsRequest(), ApiVersionsResponse)
        assert running.connections == []

    monkeypatch.setattr(BrokerRole, "start", start_role)
    asyncio.run(script())


def test_a_failure_during_the_start_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[Broker] = []
    broken = InvariantError("broken for the test")

    def heartbeat(self: LocalControllerChannel, epoch: int, **wishes: bool) -> Deferred[None]:
        running[0].fail(broken)
        return Deferred()

    async def start() -> None:
        running.append(node(tmp_path, ALONE))
        async with asyncio.timeout(10):
            await running[0].start()

    monkeypatch.setattr(LocalControllerChannel, "heartbeat", heartbeat)
    with pytest.raises(InvariantError) as raised:
        asyncio.run(start())
    assert raised.value is broken
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_each_type_of_listener_announces_and_serves_its_own_apis(tmp_path: Path) -> None:
    async def script() -> None:
        async with started(tmp_path, BOTH) as running:
            assert [each.name for each in running.bound_listeners] == ["PLAINTEXT", "CONTROLLER"]
            of_broker = [*all_handlers(), *forwarded_apis()]
            of_controller = {int(each.api_key) for each in controller_handlers()}
            for name, handlers in (
                ("PLAINTEXT", {int(each.api_key) for each in of_broker}),
                ("CONTROLLER", of_controller | {int(ApiKey.ENVELOPE)}),
            ):
                async with await connect(running, name) as connection:
                    request = ApiVersionsRequest(
                        client_software_name="test", client_software_version="1"
                    )
                    answer = await connection.request(request, ApiVersionsResponse)
                    assert {each.api_key for each in answer.api_keys} == handlers
                    levels = {
                        each.name: each.max_version_level for each in answer.finalized_features
                    }
                    assert levels["metadata.version"] == 30
                    assert levels["kraft.version"] == 1
            async with await connect(running, "CONTROLLER") as connection:
                with pytest.raises(KafkaError) as refused:
                    await connection.request(MetadataRequest(), MetadataResponse, version=12)
                assert refused.value.code is ErrorCode.NETWORK_EXCEPTION, "the connection is closed"

    asyncio.run(script())


def test_an_admin_client_of_the_controllers(tmp_path: Path) -> None:
    """What KIP-919 is for: each change is in the metadata, and the broker carries it out."""

    async def script() -> None:
        async with started(tmp_path, BOTH) as running:
            bound = running.bound_listeners[1]
            async with await connect(running, "CONTROLLER") as connection:
                cluster = await connection.request(
                    DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse
                )
                assert (cluster.error_code, cluster.controller_id) == (0, 7)
                assert cluster.endpoint_type == 2
                assert cluster.cluster_id == running.metadata.image.cluster_id
                assert [(each.broker_id, each.host, each.port) for each in cluster.brokers] == [
                    (7, "127.0.0.1", bound.port)
                ]
                brokers = await connection.request(
                    DescribeClusterRequest(endpoint_type=1), DescribeClusterResponse
                )
                assert brokers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE

                topic = CreateTopicsRequest.CreatableTopic(
                    name="t", num_partitions=2, replication_factor=1
                )
                created = await connection.request(
                    CreateTopicsRequest(topics=[topic]), CreateTopicsResponse
                )
                assert [each.error_code for each in created.topics] == [0]
                change = IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=ResourceType.TOPIC,
                    resource_name="t",
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name="retention.ms", config_operation=0, value="5000"
                        )
                    ],
                )
                changed = await connection.request(
                    IncrementalAlterConfigsRequest(resources=[change]),
                    IncrementalAlterConfigsResponse,
                )
                assert [each.error_code for each in changed.responses] == [0]
                resources = [
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=kind, resource_name=name, configuration_keys=[key]
                    )
                    for kind, name, key in (
                        (ResourceType.TOPIC, "t", "retention.ms"),
                        (ResourceType.BROKER, "7", "node.id"),
                    )
                ]
                described = await connection.request(
                    DescribeConfigsRequest(resources=resources), DescribeConfigsResponse
                )
                values = [each.configs[0].value for each in described.results]
                assert values == ["5000", "7"]
            async with await connect(running, "PLAINTEXT") as connection:
                metadata = await connection.request(MetadataRequest(topics=None), MetadataResponse)
                assert [each.name for each in metadata.topics] == ["t"]
            async with await connect(running, "CONTROLLER") as connection:
                deleted = await connection.request(
                    DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")]),
                    DeleteTopicsResponse,
                )
                assert [each.error_code for each in deleted.responses] == [0]

    asyncio.run(script())


def test_another_controller_registers(tmp_path: Path) -> None:
    async def script() -> None:
        async with started(tmp_path, BOTH) as running:
            own = running.metadata.image.controllers[7]
            async with await connect(running, "CONTROLLER") as connection:
                endpoint = Endpoint("CONTROLLER", "other", 9093)
                request = registration_request(
                    8, incarnation_id=bytes(range(16)), endpoints=[endpoint]
                )
                answer = await connection.request(request, ControllerRegistrationResponse)
                assert answer.error_code == 0
                other = running.metadata.image.controllers[8]
                assert other.endpoints == {"CONTROLLER": endpoint}
                assert other.incarnation_id == bytes(range(16))
                assert (other.features, running.metadata.image.controllers[7]) == (
                    own.features,
                    own,
                )
                cluster = await connection.request(
                    DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse
                )
                assert [each.broker_id for each in cluster.brokers] == [7, 8]

    asyncio.run(script())


def test_a_controller_alone_has_no_broker(tmp_path: Path) -> None:
    async def script() -> None:
        async with started(tmp_path, CONTROLLER) as running:
            assert [each.name for each in running.bound_listeners] == ["CONTROLLER"]
            image = running.metadata.image
            assert (set(image.brokers), set(image.controllers)) == (set(), {7})
            async with await connect(running, "CONTROLLER") as connection:
                topic = CreateTopicsRequest.CreatableTopic(
                    name="t", num_partitions=1, replication_factor=1
                )
                created = await connection.request(
                    CreateTopicsRequest(topics=[topic]), CreateTopicsResponse
                )
                assert created.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        names = {each.name for each in (tmp_path / "data").iterdir()}
        assert names == {"__cluster_metadata-0", "bootstrap.checkpoint", "meta.properties"}
        async with started(tmp_path, CONTROLLER) as running:
            assert running.metadata.image.controllers[7].id == 7

    asyncio.run(script())


def test_the_voters_are_told_where_the_controller_is_reached(tmp_path: Path) -> None:
    """Not at "localhost" and port 0, which the format wrote for a listener on every interface."""

    async def script() -> None:
        free_port = {**BOTH, "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://:0"}
        async with started(tmp_path, free_port) as running:
            (registered,) = running.metadata.image.controllers[7].endpoints.values()
            assert registered.port == running.bound_listeners[1].port
            assert running._log is not None
            (voter,) = running._log.driver.leader_endpoints
            assert (voter.name, voter.host, voter.port) == (
                "CONTROLLER",
                registered.host,
                registered.port,
            )

    asyncio.run(script())
