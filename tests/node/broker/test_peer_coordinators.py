"""Coordinators of several brokers: transactions over partitions of different leaders commit and
abort, also if their coordinator is killed between the decision and the markers; a share group reads
a partition whose share coordinator is on another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.cluster import READ_COMMITTED, Client, check
from kbroker.client.consumer import Consumer, ConsumerConfig
from kbroker.coordinator.transaction.markers import MarkerResults, WriteMarkers
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.protocol.share_partition_state import SharePlace, StateSummary
from tests.node.cluster import Cluster, create_topic, produce, running, until
from tests.node.transactional import TransactionalProducer

ROLES = {1: "controller", 4: "broker", 5: "broker", 6: "broker"}
SETTINGS = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.wait.max.ms": "50",
    "replica.fetch.backoff.ms": "50",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}
PARTITIONS = [TopicPartition("t", index) for index in range(3)]


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def image_of(cluster: Cluster) -> MetadataImage:
    return cluster.nodes[1].metadata.image


def leader_of(cluster: Cluster, topic: str, index: int) -> int:
    partition = image_of(cluster).partition(topic, index)
    return -1 if partition is None else partition.leader


def coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    number = next(each for each in cluster.nodes if each != 1)
    index = cluster.nodes[number].services.transactions.partition_for(transactional_id)
    return leader_of(cluster, TRANSACTION_TOPIC, index)


def prepared(cluster: Cluster, number: int, transactional_id: str) -> bool:
    """Whether the coordinator on this broker has a decided end that is not complete."""
    found = [
        host.shard.transactions.get(transactional_id)
        for host in cluster.nodes[number].services.transactions.runtime.hosts()
    ]
    states = {each.state for each in found if each is not None}
    return TransactionState.PREPARE_COMMIT in states or TransactionState.PREPARE_ABORT in states


async def committed(client: Client, count: int) -> set[bytes]:
    """The first records that a read_committed consumer sees, so many."""
    consumer = Consumer(client, ConsumerConfig(isolation_level=READ_COMMITTED, max_wait_ms=50))
    await consumer.assign_topics(["t"])
    found: set[bytes] = set()
    async with asyncio.timeout(20):
        while len(found) < count:
            found.update(record.value or b"" for record in await consumer.poll())
    consumer.close()
    return found


@pytest.mark.parametrize("version", [0, 2])
def test_transactions_over_partitions_of_several_leaders(tmp_path: Path, version: int) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "t", partitions=3, replication_factor=3)
            assert {leader_of(cluster, *each) for each in PARTITIONS} == {4, 5, 6}
            producer = TransactionalProducer(client, "tx", version)
            await producer.init()
            expected = set()
            for number in range(6):
                values = [b"%d-%d" % (number, index) for index in range(3)]
                for partition, value in zip(PARTITIONS, values, strict=True):
                    await producer.send(partition, value)
                await producer.end(commit=number % 2 == 0)
                if number % 2 == 0:
                    expected |= set(values)
            assert await committed(client, len(expected)) == expected
            number = coordinator_of(cluster, "tx")
            await until(lambda: not prepared(cluster, number, "tx"))

    run(script)


def group_of_another_coordinator(cluster: Cluster, broker_id: int) -> str:
    """A group that this broker does not coordinate."""
    groups = cluster.nodes[4].services.groups
    for number in range(100):
        group = f"group-{number}"
        leader = leader_of(cluster, "__consumer_offsets", groups.partition_for(group))
        if leader not in (broker_id, -1):
            return group
    raise AssertionError


async def committed_offset(client: Client, group: str, partition: TopicPartition) -> int:
    """-1 without one; waits for the end of a transaction that commits one."""
    kind = OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(
        name=partition.topic, partition_indexes=[partition.partition]
    )
    asked = kind.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    request = kind(groups=[asked], require_stable=True)

    async def fetch() -> int:
        answer = await client.to_coordinator(group, request, OffsetFetchResponse, max_version=9)
        check(answer.groups[0].error_code)
        (found,) = answer.groups[0].topics[0].partitions
        check(found.error_code)
        return found.committed_offset

    return await client.retry(fetch)


@pytest.mark.parametrize("version", [0, 2])
def test_offsets_of_a_group_that_another_broker_coordinates(tmp_path: Path, version: int) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "t", partitions=3, replication_factor=3)
            producer = TransactionalProducer(client, "tx", version)
            await producer.init()
            ensured = cluster.nodes[4].services.channel.ensure_internal_topic("__consumer_offsets")
            await until(lambda: ensured.done)
            await until(lambda: leader_of(cluster, "__consumer_offsets", 3) >= 0)
            group = group_of_another_coordinator(cluster, coordinator_of(cluster, "tx"))
            for offset, commit in ((5, True), (6, False), (7, True), (8, False)):
                await producer.commit_offset(group, PARTITIONS[0], offset)
                await producer.send(PARTITIONS[1], b"%d" % offset)
                await producer.end(commit=commit)
                expected = offset if commit else offset - 1
                assert await committed_offset(client, group, PARTITIONS[0]) == expected

    run(script)


class Nowhere:
    """No partition has a leader, for one coordinator."""

    node_id = -1

    def leader_of(self, partition: TopicPartition) -> int | None:
        return -1

    def write_markers(
        self,
        leader_id: int,
        request: WriteMarkers,
        partitions: Sequence[TopicPartition],
        *,
        coordinator_epoch: int,
    ) -> Deferred[MarkerResults]:
        raise AssertionError

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        pass


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_ends_without_the_coordinator_that_decided(
    tmp_path: Path, commit: bool
) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)
        async with running(cluster):
            async with cluster.client(4) as client:
                await create_topic(client, "t", partitions=3, replication_factor=3)
                producer = TransactionalProducer(client, "tx", 2)
                await producer.init()
                dying = coordinator_of(cluster, "tx")
                cluster.nodes[dying].services.markers._others = Nowhere()
                for partition in PARTITIONS:
                    await producer.send(partition, b"first %d" % partition.partition)
                await producer.end(commit=commit)
                assert prepared(cluster, dying, "tx")
            cluster.kill(dying)
            async with cluster.client(next(each for each in (4, 5, 6) if each != dying)) as client:
                producer.client = client
                for partition in PARTITIONS:
                    await producer.send(partition, b"second %d" % partition.partition)
                await producer.end(commit=True)
                expected = {b"second %d" % index for index in range(3)}
                if commit:
                    expected |= {b"first %d" % index for index in range(3)}
                assert await committed(client, len(expected)) == expected
            await cluster.start(dying)

    run(script)


def group_coordinated_elsewhere(cluster: Cluster, topic: str) -> str:
    """A group whose share coordinator for the only partition of a topic is not its leader."""
    topic_id = image_of(cluster).topics[topic].topic_id
    states = cluster.nodes[4].services.share_coordinator
    leader = leader_of(cluster, topic, 0)
    for number in range(100):
        group = f"group-{number}"
        index = states.partition_of(SharePlace(group, (topic_id, 0)))
        if leader_of(cluster, "__share_group_state", index) not in (leader, -1):
            return group
    raise AssertionError


class ShareReader:
    """A member of a share group, of a topic with one partition."""

    def __init__(self, cluster: Cluster, client: Client, topic: str, group: str) -> None:
        self.client = client
        self.topic, self.group = topic, group
        self.topic_id = image_of(cluster).topics[topic].topic_id
        self.epoch = 0

    async def begin(self) -> int:
        """Give the group a state that begins at offset 0. Returns the error."""
        kind = AlterShareGroupOffsetsRequest
        place = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
        topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name=self.topic, partitions=[place])
        request = kind(group_id=self.group, topics=[topic])
        answer = await self.client.retry(
            lambda: self.client.to_coordinator(self.group, request, AlterShareGroupOffsetsResponse)
        )
        assert answer.error_code == 0
        return answer.responses[0].partitions[0].error_code

    async def read(self) -> list[tuple[int, int]]:
        """The first and last offsets that were acquired."""
        kind = ShareFetchRequest
        request = kind(
            group_id=self.group,
            member_id="m",
            share_session_epoch=self.epoch,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1_000_000,
            max_records=4,
            batch_size=4,
            topics=[
                kind.FetchTopic(
                    topic_id=self.topic_id, partitions=[kind.FetchPartition(partition_index=0)]
                )
            ],
        )
        answer = await self.client.to_leader(
            TopicPartition(self.topic, 0), request, ShareFetchResponse
        )
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.epoch += 1
        return [
            (one.first_offset, one.last_offset)
            for topic in answer.responses
            for data in topic.partitions
            for one in data.acquired_records
        ]

    async def accept(self, first: int, last: int) -> int:
        """Returns the error."""
        kind = ShareAcknowledgeRequest
        batch = kind.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=[1]
        )
        place = kind.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        request = kind(
            group_id=self.group,
            member_id="m",
            share_session_epoch=self.epoch,
            topics=[kind.AcknowledgeTopic(topic_id=self.topic_id, partitions=[place])],
        )
        answer = await self.client.to_leader(
            TopicPartition(self.topic, 0), request, ShareAcknowledgeResponse
        )
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.epoch += 1
        return answer.responses[0].partitions[0].error_code

    async def start_and_lag(self) -> tuple[int, int]:
        """As the coordinator of the group describes them."""
        kind = DescribeShareGroupOffsetsRequest
        group = kind.DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=None)
        answer = await self.client.retry(
            lambda: self.client.to_coordinator(
                self.group, kind(groups=[group]), DescribeShareGroupOffsetsResponse
            )
        )
        (place,) = answer.groups[0].topics[0].partitions
        assert place.error_code == 0, ErrorCode(place.error_code)
        return place.start_offset, place.lag

    async def take(self, count: int) -> set[int]:
        """Read and acknowledge so many records. Returns their offsets."""
        taken: set[int] = set()
        async with asyncio.timeout(20):
            while len(taken) < count:
                for first, last in await self.read():
                    assert await self.accept(first, last) == 0
                    taken.update(range(first, last + 1))
        return taken


def test_the_lag_of_a_share_group_whose_coordinator_has_no_replica_of_the_topic(
    tmp_path: Path,
) -> None:
    """The leader of the partition, at another broker, returns its end offset."""

    async def script() -> None:
        settings = SETTINGS | {"min.insync.replicas": "1"}
        cluster = Cluster(tmp_path, ROLES, settings=settings)
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "s", partitions=1, replication_factor=1)
            await produce(client, "s", 10)
            ensured = cluster.nodes[4].services.channel.ensure_internal_topic("__consumer_offsets")
            await until(lambda: ensured.done)
            await until(lambda: leader_of(cluster, "__consumer_offsets", 3) >= 0)
            group = group_of_another_coordinator(cluster, leader_of(cluster, "s", 0))
            reader = ShareReader(cluster, client, "s", group)
            assert await reader.begin() == 0
            assert await reader.start_and_lag() == (0, 10)
            assert await reader.take(10) == set(range(10))
            assert await reader.start_and_lag() == (0, 0)
            await produce(client, "s", 3)
            assert await reader.start_and_lag() == (0, 3)

    run(script)


def stored(cluster: Cluster, reader: ShareReader) -> tuple[int, StateSummary]:
    """The share coordinator of the reader's partition, and the state that it has."""
    key = SharePlace(reader.group, (reader.topic_id, 0))
    index = cluster.nodes[4].services.share_coordinator.partition_of(key)
    coordinator_id = leader_of(cluster, "__share_group_state", index)
    summary = cluster.nodes[coordinator_id].services.share_coordinator.summarize(key)
    return coordinator_id, summary.value


def test_a_share_group_whose_share_coordinator_is_elsewhere(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, ROLES, settings=SETTINGS)
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, "s", partitions=1, replication_factor=3)
            await produce(client, "s", 10)
            ensured = cluster.nodes[4].services.channel.ensure_internal_topic("__share_group_state")
            await until(lambda: ensured.done)
            await until(lambda: leader_of(cluster, "__share_group_state", 3) >= 0)
            reader = ShareReader(cluster, client, "s", group_coordinated_elsewhere(cluster, "s"))
            assert await reader.begin() == 0
            assert await reader.take(10) == set(range(10))
            coordinator_id, summary = stored(cluster, reader)
            assert coordinator_id != leader_of(cluster, "s", 0)
            assert (summary.start_offset, summary.delivery_complete_count) == (0, 10)
            assert await reader.start_and_lag() == (0, 0)
            await produce(client, "s", 10)
            assert await reader.start_and_lag() == (0, 10)
            assert await reader.take(10) == set(range(10, 20))
            _, summary = stored(cluster, reader)
            assert (summary.start_offset, summary.delivery_complete_count) == (10, 10)

    run(script)
