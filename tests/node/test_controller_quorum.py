"""Three nodes with the controller role form a quorum over their controller listeners: one is
active, the others stand by and replay what it commits, and one of them takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.client.connection import BrokerConnection
from kbroker.node.loop.futures import as_future
from kbroker.node.node import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from scripts.ports import free_ports

TIMES = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.backoff.max.ms": "300",
}


def configs(root: Path) -> list[BrokerConfig]:
    """Of a static quorum of three controllers."""
    ports = free_ports(3)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1))
    return [
        BrokerConfig.from_properties(
            {
                "node.id": str(number),
                "process.roles": "controller",
                "log.dirs": str(root / str(number)),
                "listeners": f"CONTROLLER://127.0.0.1:{port}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                **TIMES,
            }
        )
        for number, port in enumerate(ports, 1)
    ]


async def until(is_done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_done():  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(0.005)


def active(nodes: list[Broker]) -> list[Broker]:
    found = []
    for node in nodes:
        assert node.failure is None, node.failure
        assert node._controller is not None
        if node._controller.service.is_active:
            found.append(node)
    return found


async def described(node: Broker) -> DescribeQuorumResponse:
    assert node._log is not None
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    request = DescribeQuorumRequest(topics=[topic])
    answer = await as_future(
        node._log.driver.handle(request, listener_name="CONTROLLER", version=2)
    )
    assert isinstance(answer, DescribeQuorumResponse)
    return answer


def test_a_standby_takes_over_with_everything_that_was_committed(tmp_path: Path) -> None:
    async def script() -> None:
        nodes = []
        for config in configs(tmp_path):
            options = FormatOptions(cluster_id="three")
            format_directories(config, options, random=Random(config.node_id))
            nodes.append(Broker(config))
        for node in nodes:
            await node.start()
        await until(lambda: any(node.metadata.image.controllers for node in active(nodes)))
        first = active(nodes)[0]
        await until(lambda: all(node.metadata.image.features for node in nodes))
        partition = (await described(first)).topics[0].partitions[0]
        assert partition.leader_id == first.config.node_id
        assert [each.replica_id for each in partition.current_voters] == [1, 2, 3]
        begun = first.metadata.image
        first.kill()
        rest = [node for node in nodes if node is not first]
        await until(lambda: active(rest))
        second = active(rest)[0]

        def has_taken_over() -> bool:
            image = second.metadata.image
            known = {first.config.node_id, second.config.node_id}
            return image.epoch > begun.epoch and set(image.controllers) >= known

        await until(has_taken_over)
        image = second.metadata.image
        assert image.features == begun.features and image.epoch > begun.epoch
        assert set(image.controllers) >= {first.config.node_id, second.config.node_id}
        again = Broker(first.config)
        await again.start()
        await until(lambda: again.metadata.image.offset >= image.offset)
        for node in (again, *rest):
            await node.stop()
            assert node.failure is None

    asyncio.run(script())


def test_every_controller_registers_with_the_active_one(tmp_path: Path) -> None:
    """An AdminClient learns all of them from any of them (KIP-919)."""

    async def script() -> None:
        nodes = []
        for config in configs(tmp_path):
            format_directories(
                config, FormatOptions(cluster_id="three"), random=Random(config.node_id)
            )
            nodes.append(Broker(config))
        for node in nodes:
            await node.start()
        await until(lambda: all(len(node.metadata.image.controllers) == 3 for node in nodes))
        leader = active(nodes)[0].config.node_id
        ports = {node.config.node_id: node.bound_listeners[0].port for node in nodes}
        for node in nodes:
            port = ports[node.config.node_id]
            async with await BrokerConnection.connect("127.0.0.1", port) as connection:
                cluster = await connection.request(
                    DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse
                )
                assert cluster.controller_id == leader
                assert {each.broker_id: each.port for each in cluster.brokers} == ports
                topic = CreateTopicsRequest.CreatableTopic(
                    name="t", num_partitions=1, replication_factor=1
                )
                created = await connection.request(
                    CreateTopicsRequest(topics=[topic]), CreateTopicsResponse
                )
                is_leader = node.config.node_id == leader
                assert created.topics[0].error_code == (
                    ErrorCode.INVALID_REPLICATION_FACTOR if is_leader else ErrorCode.NOT_CONTROLLER
                )
        for node in nodes:
            await node.stop()
            assert node.failure is None

    asyncio.run(script())


@pytest.mark.parametrize(
    ("quorum", "advertised", "logger", "text"),
    [
        pytest.param(
            "controller.quorum.voters=1@127.0.0.1:{port}",
            "CONTROLLER://127.0.0.1:{port2}",
            "controller_role",
            "Node 2: controller.quorum.auto.join.enable has no effect: at kraft.version 0",
            id="a static quorum",
        ),
        pytest.param(
            "controller.quorum.bootstrap.servers=127.0.0.1:{port}",
            "CONTROLLER://127.0.0.1:{closed}",
            "join_refusals",
            "Node 2: node 1 does not add this controller to the voters (ADD_RAFT_VOTER): "
            "REQUEST_TIMED_OUT: The voter does not answer ApiVersions.",
            id="an address that is not this controller's",
        ),
    ],
)
def test_a_controller_that_cannot_join_says_why(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    quorum: str,
    advertised: str,
    logger: str,
    text: str,
) -> None:
    port, port2, closed = free_ports(3)
    key, _, value = quorum.format(port=port).partition("=")
    own = [
        {"node.id": "1", "listeners": f"CONTROLLER://127.0.0.1:{port}", key: value},
        {
            "node.id": "2",
            "listeners": f"CONTROLLER://127.0.0.1:{port2}",
            "advertised.listeners": advertised.format(port2=port2, closed=closed),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
            "controller.quorum.auto.join.enable": "true",
        },
    ]

    async def script() -> None:
        nodes = []
        for each in own:
            directory = {"log.dirs": str(tmp_path / each["node.id"])}
            roles = {"process.roles": "controller", "controller.listener.names": "CONTROLLER"}
            config = BrokerConfig.from_properties({**TIMES, **roles, **directory, **each})
            options = FormatOptions(
                cluster_id="c",
                standalone=config.node_id == 1 and not config.voters,
                no_initial_controllers=config.node_id == 2,
            )
            format_directories(config, options, random=Random(config.node_id))
            nodes.append(Broker(config))
        for node in nodes:
            await node.start()
        await until(
            lambda: any(
                record.name == f"kbroker.node.{logger}" and record.getMessage().startswith(text)
                for record in caplog.records
            )
        )
        for node in reversed(nodes):
            await node.stop()
            assert node.failure is None

    asyncio.run(script())
