"""Log directories of replicas: they are reported to the controller, a failed one moves its leaders;
and elections of replicas that lack committed records.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from kbroker.client.producer import Producer
from kbroker.log.storage.files import LogDirectoryError
from kbroker.metadata.image import PartitionImage
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from tests.node.broker.test_replication import COUNT, ROLES, SETTINGS, isrs, run, stored
from tests.node.cluster import Cluster, consume, create_topic, produce, running, until

TOPIC = "t"
BROKERS = (4, 5, 6)
PARTITIONS = 4


def two_directories(root: Path) -> dict[int, Mapping[str, str]]:
    """The second one has no metadata log, so that its failure leaves the broker running."""
    return {
        number: {"log.dirs": f"{root}/{number}-meta,{root}/{number}-data"} for number in BROKERS
    }


def partitions(cluster: Cluster) -> dict[int, PartitionImage]:
    """As the controller has them."""
    return dict(cluster.nodes[1].metadata.image.topics[TOPIC].partitions)


def are_told(cluster: Cluster) -> bool:
    """Whether the metadata say in which directory each replica is."""
    for index, partition in partitions(cluster).items():
        told = dict(zip(partition.replicas, partition.directories, strict=True))
        for number in BROKERS:
            logs = cluster.nodes[number].services.replicas.logs
            if told[number] != logs.directory_id_of(TopicPartition(TOPIC, index)):
                return False
    return True


def test_the_controller_is_told_where_replicas_were_placed(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(
            tmp_path, ROLES, settings=SETTINGS, own_settings=two_directories(tmp_path)
        )
        async with running(cluster), cluster.client(4) as client:
            await create_topic(client, TOPIC, partitions=PARTITIONS, replication_factor=3)
            await until(lambda: are_told(cluster))
            for number in BROKERS:
                logs = cluster.nodes[number].services.replicas.logs
                used = {logs.directory_of(TopicPartition(TOPIC, i)) for i in range(PARTITIONS)}
                assert len(used) == 2

    run(script)


def test_a_failed_directory_moves_its_leaders_and_leaves_the_other_ones(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(
            tmp_path, ROLES, settings=SETTINGS, own_settings=two_directories(tmp_path)
        )
        async with running(cluster):
            async with cluster.client(5) as client:
                await create_topic(client, TOPIC, partitions=PARTITIONS, replication_factor=3)
                await until(lambda: are_told(cluster))
                await produce(client, TOPIC, COUNT)
                await until(lambda: isrs(cluster, TOPIC) == [set(BROKERS)] * PARTITIONS)
                replicas = cluster.nodes[4].services.replicas
                broken = tmp_path / "4-data"
                keys = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
                lost = {k.partition for k in keys if replicas.logs.directory_of(k) == broken}
                assert 0 < len(lost) < PARTITIONS
                failure = OSError(errno.EIO, "broken")
                replicas.logs.directory_failed(LogDirectoryError(broken / "x", "write", failure))
                await until(
                    lambda: all(
                        partition.leader != 4 and 4 not in partition.isr
                        for index, partition in partitions(cluster).items()
                        if index in lost
                    )
                )
                for index, partition in partitions(cluster).items():
                    if index not in lost:
                        assert set(partition.isr) == set(BROKERS)
                for key in keys:
                    found = replicas.partition(key)
                    assert found is not None and bool(found.role) == (key.partition not in lost)
                async with Producer(client) as producer:
                    for number in range(COUNT, 2 * COUNT):
                        await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                expected = {b"%d" % number for number in range(2 * COUNT)}
                assert await consume(client, TOPIC, 2 * COUNT) == expected
            await cluster.stop(4)
            await cluster.start(4)
            await until(lambda: isrs(cluster, TOPIC) == [set(BROKERS)] * PARTITIONS)

    run(script)


def test_an_unclean_leader_recovers_and_the_other_replica_follows_it(tmp_path: Path) -> None:
    """Broker 5 lacks records that broker 4 acknowledged; it leads all the same where the topic
    allows it, and broker 4 truncates the records that only it has.
    """
    roles = {1: "controller", 4: "broker", 5: "broker"}
    settings = SETTINGS | {"min.insync.replicas": "1"}
    configs = {"unclean.leader.election.enable": "true"}

    async def script() -> None:
        async with running(Cluster(tmp_path, roles, settings=settings)) as cluster:
            async with cluster.client(4) as client:
                created = await create_topic(
                    client, TOPIC, partitions=1, replication_factor=2, configs=configs
                )
                assert created == ErrorCode.NONE
                await produce(client, TOPIC, COUNT)
                await until(lambda: isrs(cluster, TOPIC) == [{4, 5}])
                await until(lambda: stored(cluster, 4, TOPIC) == stored(cluster, 5, TOPIC))
                cluster.kill(5)
                await until(lambda: isrs(cluster, TOPIC) == [{4}])
                async with Producer(client) as producer:
                    for number in range(COUNT, COUNT + 5):
                        await producer.send(TOPIC, b"%d" % number, partition=0)
            cluster.kill(4)
            await until(lambda: cluster.nodes[1].metadata.image.brokers[4].fenced)
            await cluster.start(5)
            await until(lambda: partitions(cluster)[0].leader == 5)
            assert set(partitions(cluster)[0].isr) == {5}
            async with cluster.client(5) as client, Producer(client) as producer:
                await producer.send_and_wait(TOPIC, b"recovered", partition=0)
            await cluster.start(4)
            await until(lambda: isrs(cluster, TOPIC) == [{4, 5}])
            assert partitions(cluster)[0].leader_recovery_state == 0
            await until(lambda: stored(cluster, 4, TOPIC) == stored(cluster, 5, TOPIC))
            async with cluster.client(4) as client:
                expected = {b"%d" % number for number in range(COUNT)} | {b"recovered"}
                assert await consume(client, TOPIC, COUNT + 1) == expected

    run(script)
