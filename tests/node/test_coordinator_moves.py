"""A group whose coordinator is killed: its offsets, members and generation are at the next leader
of its partition of `__consumer_offsets`, and every broker names that leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kbroker.client.cluster import Client
from kbroker.client.group import GroupConfig, GroupConsumer
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.node.cluster import Cluster, create_topic, produce, running

ROLES = {1: "controller", 4: "broker", 5: "broker", 6: "broker"}
SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "50",
}
COUNT = 40

T = TypeVar("T")


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


async def eventually(client: Client, attempt: Callable[[], Awaitable[T]]) -> T:
    """Until it succeeds, at whichever coordinator there is."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await attempt()
            except (KafkaError, OSError):
                client.forget_coordinator("g")
                await asyncio.sleep(0.05)


async def named(cluster: Cluster, number: int) -> tuple[int, int]:
    """The coordinator that a broker names: id and port."""
    async with cluster.client(number) as client:

        async def find() -> FindCoordinatorResponse:
            request = FindCoordinatorRequest(key="g")
            found = await client.any(request, FindCoordinatorResponse, max_version=3)
            if found.error_code:
                raise KafkaError(ErrorCode(found.error_code))
            return found

        found = await eventually(client, find)
        return found.node_id, found.port


async def described(client: Client) -> DescribeGroupsResponse.DescribedGroup:
    async def describe() -> DescribeGroupsResponse.DescribedGroup:
        request = DescribeGroupsRequest(groups=["g"])
        response = await client.to_coordinator("g", request, DescribeGroupsResponse)
        (group,) = response.groups
        if group.error_code:
            raise KafkaError(ErrorCode(group.error_code))
        return group

    return await eventually(client, describe)


async def read_all(member: GroupConsumer) -> None:
    count = 0
    async with asyncio.timeout(20):
        while count < COUNT:
            count += len(await member.poll())


def test_offsets_and_group_are_at_the_next_coordinator(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, ROLES, settings=SETTINGS)) as cluster:
            async with cluster.client(4) as client:
                assert await create_topic(client, "t", replication_factor=3) == ErrorCode.NONE
                await produce(client, "t", COUNT)
            first, port = await named(cluster, 4)
            assert port == cluster.client_ports[first]
            topic = cluster.nodes[4].metadata.image.topics[GROUP_TOPIC]
            assert {len(each.replicas) for each in topic.partitions.values()} == {3}
            others = [number for number in (4, 5, 6) if number != first]
            assert [await named(cluster, other) for other in others] == [(first, port)] * 2
            config = GroupConfig(
                auto_commit=False, auto_offset_reset="earliest", heartbeat_interval_ms=100
            )
            async with (
                cluster.client(others[0]) as client,
                GroupConsumer(client, "g", ["t"], config) as member,
            ):
                await read_all(member)
                await member.commit()
                committed = dict(member.consumer.positions)
                before = await described(client)
                cluster.kill(first)
                partitions = list(committed)
                found = await eventually(client, lambda: member.committed(partitions))
                assert found == committed
                second, port = await named(cluster, others[0])
                assert (second in others, port) == (True, cluster.client_ports[second])
                after = await described(client)
                assert (after.group_state, after.protocol_data) == ("Stable", "range")
                assert after.members == before.members
                committed[partitions[0]] += 1
                generation = member.generation_id
                await eventually(client, lambda: member.commit(committed))
                assert await member.committed(partitions) == committed
                assert member.generation_id == generation, "it need not join again"
                await cluster.start(first)
                refused = await eventually(client, lambda: refusal(client, first))
                assert refused is ErrorCode.NOT_COORDINATOR
                assert await named(cluster, first) == (second, port)

    run(script)


async def refusal(client: Client, number: int) -> ErrorCode:
    """What a broker answers that is not the coordinator."""
    await client.metadata([])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    request = OffsetFetchRequest(groups=[group])
    response = await client.to_node(number, request, OffsetFetchResponse, max_version=9)
    return ErrorCode(response.groups[0].error_code)


def test_a_coordinator_without_its_followers_shows_nothing_that_may_be_lost(
    tmp_path: Path,
) -> None:
    """Followers that do not fetch: the commit is refused as retriable, the offset is not shown."""

    async def script() -> None:
        settings = SETTINGS | {
            "offsets.commit.timeout.ms": "300",
            "replica.lag.time.max.ms": "60000",
        }
        cluster = Cluster(tmp_path, ROLES, settings=settings)
        async with running(cluster), cluster.client(4) as client:
            assert await create_topic(client, "t", replication_factor=3) == ErrorCode.NONE
            leader, _ = await named(cluster, 4)
            member = GroupConsumer(client, "g", ["t"], GroupConfig())
            place = TopicPartition("t", 0)
            await eventually(client, lambda: member.commit({place: 1}))
            followers = [number for number in (4, 5, 6) if number != leader]
            for number in followers:
                role = cluster.nodes[number]._role
                assert role is not None and role._replication is not None
                role._replication._fetchers.close()
            unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await failure(member.commit({place: 2})) is unavailable
            assert await failure(member.committed([place])) is unavailable
            for number in followers:
                role = cluster.nodes[number]._role
                assert role is not None and role._replication is not None
                for partition in role.services.replicas.partitions():
                    role._replication._fetchers.update(partition)
            found = await eventually(client, lambda: member.committed([place]))
            assert found == {place: 2}

    run(script)


async def failure(attempt: Awaitable[object]) -> ErrorCode:
    try:
        await attempt
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
