"""Brokers that replicate: records survive the death of a leader, a broker that returns catches up,
ISRs shrink and grow through the active controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from kbroker.client.cluster import Client
from kbroker.client.producer import Producer
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest, DeleteRecordsResponse
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.settings.rules import RACK_AWARE
from tests.node.cluster import Cluster, consume, create_topic, produce, running, until

ROLES = {1: "controller", 4: "broker", 5: "broker", 6: "broker"}
SETTINGS = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "50",
}
COUNT = 100


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def isrs(cluster: Cluster, topic: str) -> list[set[int]]:
    """The ISR of each partition, as the controller has committed it."""
    partitions = cluster.nodes[1].metadata.image.topics[topic].partitions
    return [set(each.isr) for each in partitions.values()]


def stored(cluster: Cluster, number: int, topic: str) -> dict[int, bytes]:
    """The bytes of each partition's log on a broker."""
    found = {}
    for key, log in cluster.nodes[number].services.replicas.logs.logs.items():
        if key.topic == topic:
            records = log.read(log.log_start_offset, max_bytes=1 << 20).records
            found[key.partition] = records if isinstance(records, bytes) else records.read()
    return found


def are_equal(cluster: Cluster, topic: str) -> bool:
    logs = [stored(cluster, number, topic) for number in (4, 5, 6)]
    return logs[0] == logs[1] == logs[2] and any(logs[0].values())


def test_records_survive_a_leader_and_a_broker_that_returns_catches_up(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, ROLES, settings=SETTINGS)) as cluster:
            async with cluster.client(4) as client:
                created = await create_topic(client, "t", partitions=3, replication_factor=3)
                assert created == ErrorCode.NONE
                await produce(client, "t", COUNT)
            await until(lambda: are_equal(cluster, "t"))
            cluster.kill(6)
            async with cluster.client(5) as client:
                await until(lambda: isrs(cluster, "t") == [{4, 5}] * 3)
                expected = {b"%d" % number for number in range(COUNT)}
                assert await consume(client, "t", COUNT) == expected
                async with Producer(client) as producer:
                    for number in range(COUNT, 2 * COUNT):
                        await producer.send("t", b"%d" % number, partition=number % 3)
                await cluster.start(6)
                await until(lambda: isrs(cluster, "t") == [{4, 5, 6}] * 3)
                await until(lambda: are_equal(cluster, "t"))
                expected = {b"%d" % number for number in range(2 * COUNT)}
                assert await consume(client, "t", 2 * COUNT) == expected

    run(script)


def test_the_only_controller_is_a_broker_that_follows_and_leads(tmp_path: Path) -> None:
    """Its settings name no node but itself, so other brokers are known to it by registration."""

    async def script() -> None:
        roles = {1: "broker,controller", 2: "broker"}
        async with running(Cluster(tmp_path, roles, settings=SETTINGS)) as cluster:
            async with cluster.client(2) as client:
                created = await create_topic(client, "t", partitions=2, replication_factor=2)
                assert created == ErrorCode.NONE
                leaders = [await client.leader(TopicPartition("t", index)) for index in (0, 1)]
                assert sorted(leaders) == [1, 2]
                await produce(client, "t", COUNT)
            await until(lambda: stored(cluster, 1, "t") == stored(cluster, 2, "t"))
            assert all(stored(cluster, 1, "t").values()) and isrs(cluster, "t") == [{1, 2}] * 2

    run(script)


def test_flush_messages_is_kept_by_followers(tmp_path: Path) -> None:
    """A record that acks=all has acknowledged is on the disks of all replicas in sync."""

    async def script() -> None:
        async with running(Cluster(tmp_path, ROLES, settings=SETTINGS)) as cluster:
            key = TopicPartition("t", 0)
            logs = {each: cluster.nodes[each].services.replicas.logs.logs for each in (4, 5, 6)}
            async with cluster.client(4) as client:
                created = await create_topic(
                    client,
                    "t",
                    partitions=1,
                    replication_factor=3,
                    configs={"flush.messages": "1"},
                )
                assert created == ErrorCode.NONE
                async with Producer(client) as producer:
                    for number in range(20):
                        sent = await producer.send_and_wait("t", b"%d" % number, partition=0)
                        points = [logs[each][key].recovery_point for each in (4, 5, 6)]
                        assert min(points) > sent.offset

    run(script)


def test_a_follower_that_does_not_fetch_leaves_the_isr(tmp_path: Path) -> None:
    """Its heartbeats continue, so only its leaders know."""

    async def script() -> None:
        cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "t", partitions=1, replication_factor=3)
            await produce(client, "t", COUNT)
            leader = cluster.nodes[4].metadata.image.topics["t"].partitions[0].leader
            number = next(each for each in (4, 5, 6) if each != leader)
            role = cluster.nodes[number]._role
            assert role is not None and role._replication is not None
            hosting, fetchers = role.services.replicas.hosting, role._replication._fetchers
            hosting.on_role = lambda _partition: None  # a change of its metadata would start again
            fetchers.close()
            await produce(client, "t", COUNT)
            await until(lambda: isrs(cluster, "t") == [{4, 5, 6} - {number}])
            partition = role.services.replicas.partition(TopicPartition("t", 0))
            assert partition is not None
            hosting.on_role = fetchers.update
            fetchers.update(partition)
            await until(lambda: isrs(cluster, "t") == [{4, 5, 6}])

    run(script)


def starts(cluster: Cluster, topic: str) -> list[int]:
    """Where the logs of partition 0 begin."""
    key = TopicPartition(topic, 0)
    logs = [cluster.nodes[number].services.replicas.logs.logs[key] for number in (4, 5, 6)]
    return [log.log_start_offset for log in logs]


async def delete_records(client: Client, topic: str, offset: int, *, timeout_ms: int) -> Any:
    """The result for partition 0."""
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])
    response = await client.to_leader(
        TopicPartition(topic, 0),
        DeleteRecordsRequest(topics=[named], timeout_ms=timeout_ms),
        DeleteRecordsResponse,
    )
    return response.topics[0].partitions[0]


def test_records_are_deleted_on_all_replicas_when_the_client_is_answered(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "t", partitions=1, replication_factor=3)
            await produce(client, "t", COUNT)
            await until(lambda: are_equal(cluster, "t"))
            result = await delete_records(client, "t", COUNT - 1, timeout_ms=10_000)
            assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, COUNT - 1)
            assert starts(cluster, "t") == [COUNT - 1] * 3
            leader = cluster.nodes[4].metadata.image.topics["t"].partitions[0].leader
            number = next(each for each in (4, 5, 6) if each != leader)
            role = cluster.nodes[number]._role
            assert role is not None and role._replication is not None
            role._replication._fetchers.close()
            result = await delete_records(client, "t", COUNT, timeout_ms=300)
            assert result.error_code == ErrorCode.REQUEST_TIMED_OUT

    run(script)


async def fetch(client: Client, number: int, offset: int, rack: str) -> Any:
    """What a broker answers for partition 0."""
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset)
    wanted.partition_max_bytes = 1 << 20
    topic_id = (await client.topic("t")).topic_id
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1 << 20,
        rack_id=rack,
        topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[wanted])],
    )
    response = await client.to_node(number, request, FetchResponse)
    return response.responses[0].partitions[0]


def test_a_consumer_reads_from_the_replica_in_its_rack(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(
            tmp_path,
            ROLES,
            settings=SETTINGS | {"replica.selector.class": RACK_AWARE},
            own_settings={number: {"broker.rack": f"rack-{number}"} for number in (4, 5, 6)},
        )
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "t", partitions=1, replication_factor=3)
            await produce(client, "t", COUNT)
            await until(lambda: are_equal(cluster, "t"))
            await until(lambda: isrs(cluster, "t") == [{4, 5, 6}])
            leader = await client.leader(TopicPartition("t", 0))
            number = next(each for each in (4, 5, 6) if each != leader)
            answer = await fetch(client, leader, 0, f"rack-{number}")
            assert (answer.preferred_read_replica, bytes(answer.records)) == (number, b"")
            replica = cluster.nodes[number].services.replicas.partition(TopicPartition("t", 0))
            assert replica is not None
            await until(lambda: replica.high_watermark == COUNT)
            answer = await fetch(client, number, 0, f"rack-{number}")
            assert answer.error_code == ErrorCode.NONE
            headers = [header for _, header in iter_batches(answer.records)]
            assert sum(header.record_count for header in headers) == COUNT
            for rack in ("", f"rack-{leader}", "elsewhere"):
                answer = await fetch(client, leader, 0, rack)
                assert answer.preferred_read_replica == -1 and answer.records

    run(script)
