"""Requests of brokers to a real controller over its listener: one joins, works and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.client.connection import BrokerConnection
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.node.node import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kbroker.server.handlers.cluster.brokers import HANDLERS
from kbroker.settings.broker import BrokerConfig

CONTROLLER = {
    "process.roles": "controller",
    "listeners": "CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "7@127.0.0.1:9093",
    "node.id": "7",
}
DIRECTORY = bytes(range(16))


class World:
    """A controller, and a connection of broker 3 to it."""

    def __init__(self, node: Broker, connection: BrokerConnection) -> None:
        self.node = node
        self.connection = connection

    @property
    def image(self) -> MetadataImage:
        return self.node.metadata.image

    def registration(self, incarnation: int = 1, **fields: Any) -> BrokerRegistrationRequest:
        data = BrokerRegistrationData(
            incarnation_id=bytes([incarnation] * 16),
            endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "b", 9092)},
            log_dirs=(DIRECTORY,),
        )
        request = data.request(broker_id=3, cluster_id=self.image.cluster_id)
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    async def register(self, incarnation: int = 1, **fields: Any) -> BrokerRegistrationResponse:
        return await self.connection.request(
            self.registration(incarnation, **fields), BrokerRegistrationResponse
        )

    async def heartbeat(self, epoch: int, **fields: Any) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=3, broker_epoch=epoch, current_metadata_offset=self.image.offset, **fields
        )
        return await self.connection.request(request, BrokerHeartbeatResponse)

    async def joined(self) -> int:
        """The epoch of broker 3, which is unfenced."""
        epoch = (await self.register()).broker_epoch
        assert not (await self.heartbeat(epoch)).is_fenced
        return epoch


def play(tmp_path: Path, script: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        settings = {**CONTROLLER, "log.dirs": str(tmp_path / "data")}
        node = Broker(BrokerConfig.from_properties(settings))
        await node.start()
        try:
            port = node.bound_listeners[0].port
            async with await BrokerConnection.connect("127.0.0.1", port) as connection:
                await script(World(node, connection))
        finally:
            await node.stop()
        assert node.failure is None

    asyncio.run(main())


def test_a_broker_joins_works_and_leaves(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        registered = await world.register()
        epoch = registered.broker_epoch
        assert registered.error_code == 0
        assert world.image.brokers[3].fenced and world.image.brokers[3].epoch == epoch
        reply = await world.heartbeat(epoch, want_fence=True)
        assert (reply.is_caught_up, reply.is_fenced, reply.should_shut_down) == (True, True, False)
        assert not (await world.heartbeat(epoch)).is_fenced
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = await world.connection.request(
            CreateTopicsRequest(topics=[topic]), CreateTopicsResponse
        )
        assert created.topics[0].error_code == 0
        partition = world.image.partition("t", 0)
        assert partition is not None and partition.leader == 3
        block = await world.connection.request(
            AllocateProducerIdsRequest(broker_id=3, broker_epoch=epoch), AllocateProducerIdsResponse
        )
        assert (block.error_code, block.producer_id_start, block.producer_id_len) == (0, 0, 1000)
        reply = await world.heartbeat(epoch, want_shut_down=True)
        assert world.image.brokers[3].in_controlled_shutdown or reply.should_shut_down
        left = await world.connection.request(
            UnregisterBrokerRequest(broker_id=3), UnregisterBrokerResponse
        )
        assert left.error_code == 0
        assert 3 not in world.image.brokers

    play(tmp_path, script)


def test_replicas_say_where_they_are_and_leaders_propose_isrs(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        epoch = await world.joined()
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await world.connection.request(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
        topic_id = world.image.topics["t"].topic_id
        directory = AssignReplicasToDirsRequest.DirectoryData(
            id=DIRECTORY,
            topics=[
                AssignReplicasToDirsRequest.TopicData(
                    topic_id=topic_id,
                    partitions=[AssignReplicasToDirsRequest.PartitionData(partition_index=0)],
                )
            ],
        )
        assigned = await world.connection.request(
            AssignReplicasToDirsRequest(broker_id=3, broker_epoch=epoch, directories=[directory]),
            AssignReplicasToDirsResponse,
        )
        assert assigned.directories[0].topics[0].partitions[0].error_code == 0
        partition = world.image.partition("t", 0)
        assert partition is not None and partition.directory(3) == DIRECTORY
        for version in (2, 3):
            proposal = AlterPartitionRequest.PartitionData(
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                new_isr=[3] if version == 2 else [],
                new_isr_with_epochs=[
                    AlterPartitionRequest.BrokerState(broker_id=3, broker_epoch=epoch)
                ]
                if version == 3
                else [],
            )
            altered = await world.connection.request(
                AlterPartitionRequest(
                    broker_id=3,
                    broker_epoch=epoch,
                    topics=[
                        AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[proposal])
                    ],
                ),
                AlterPartitionResponse,
                version=version,
            )
            answer = altered.topics[0].partitions[0]
            assert (answer.error_code, answer.isr, answer.leader_id) == (0, [3], 3)

    play(tmp_path, script)


def test_refusals_are_the_controllers(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        other = await world.register(cluster_id="other")
        assert other.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert other.broker_epoch == -1
        assert (await world.heartbeat(5)).error_code != ErrorCode.NONE
        epoch = await world.joined()
        stale = await world.heartbeat(epoch - 1)
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
        taken = await world.register(incarnation=2)
        assert taken.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        ids = await world.connection.request(
            AllocateProducerIdsRequest(broker_id=3, broker_epoch=epoch - 1),
            AllocateProducerIdsResponse,
        )
        assert ids.error_code == ErrorCode.STALE_BROKER_EPOCH
        unknown = await world.connection.request(
            UnregisterBrokerRequest(broker_id=9), UnregisterBrokerResponse
        )
        assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert unknown.error_message == "Broker ID 9 is not currently registered"

    play(tmp_path, script)


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda each: each.api_key.name)
def test_each_has_an_error_response(handler: Any) -> None:
    response = handler.error_response(None, ErrorCode.NOT_CONTROLLER, "why")
    assert response.error_code == ErrorCode.NOT_CONTROLLER
