"""Brokers among several controllers: they register with whichever controller is active, follow the
metadata as observers or voters, and continue when the active controller changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.client.group import GroupConfig, GroupConsumer
from kbroker.model import StartupError, TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest, DeleteTopicsResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from scripts.ports import free_ports
from tests.node.cluster import (
    CLUSTER_ID,
    SETTINGS,
    Cluster,
    consume,
    create_topic,
    produce,
    running,
    until,
)

COUNT = 200
EXPECTED = {b"%d" % number for number in range(COUNT)}
CONTROLLERS = {1: "controller", 2: "controller", 3: "controller"}
BROKERS = {4: "broker", 5: "broker"}


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def leaders(node: Broker, topic: str) -> dict[int, int]:
    """The leader of each partition, as a node has it."""
    image = node.metadata.image
    return {index: each.leader for index, each in image.topics[topic].partitions.items()}


def test_brokers_go_on_when_the_active_controller_is_killed(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, CONTROLLERS | BROKERS)) as cluster:
            async with cluster.client(4) as client:
                assert await create_topic(client, "first") == ErrorCode.NONE
                await produce(client, "first", COUNT)
                assert await consume(client, "first", COUNT) == EXPECTED
                assert set(leaders(cluster.nodes[4], "first").values()) == {4, 5}
                killed = cluster.active()
                cluster.kill(killed)
                assert await create_topic(client, "second") == ErrorCode.NONE
                assert cluster.active() not in (killed, -1)
                await produce(client, "second", COUNT)
            epoch = cluster.nodes[5]._role.broker_epoch  # type: ignore[union-attr]
            await cluster.stop(5)
            offline = {index for index, leader in leaders(cluster.nodes[4], "first").items()}
            await until(lambda: -1 in leaders(cluster.nodes[4], "first").values())
            assert offline == {0, 1, 2, 3}
            await cluster.start(5)
            await cluster.start(killed)
            assert cluster.nodes[5]._role.broker_epoch > epoch  # type: ignore[union-attr]
            async with cluster.client(5) as client:
                for topic in ("first", "second"):
                    assert await consume(client, topic, COUNT) == EXPECTED

    run(script)


def test_combined_nodes_work_whichever_of_them_is_active(tmp_path: Path) -> None:
    async def script() -> None:
        roles = dict.fromkeys((1, 2, 3), "broker,controller")
        async with running(Cluster(tmp_path, roles)) as cluster:
            for number in roles:
                async with cluster.client(number) as client:
                    topic = f"of-{number}"
                    assert await create_topic(client, topic, partitions=3) == ErrorCode.NONE
                    await produce(client, topic, COUNT)
                    assert await consume(client, topic, COUNT) == EXPECTED
            killed = cluster.active()
            cluster.kill(killed)
            rest = [number for number in roles if number != killed]
            other = cluster.nodes[rest[0]]
            await until(lambda: other.metadata.image.brokers[killed].fenced)
            async with cluster.client(rest[0]) as client:
                assert await create_topic(client, "later") == ErrorCode.NONE
                await produce(client, "later", COUNT)
                assert await consume(client, "later", COUNT) == EXPECTED
            await cluster.start(killed)
            async with cluster.client(killed) as client:
                assert await consume(client, f"of-{killed}", COUNT) == EXPECTED

    run(script)


def test_a_group_and_an_automatic_topic(tmp_path: Path) -> None:
    """Topics that a broker creates for its clients: the one they name, and `__consumer_offsets`."""

    async def script() -> None:
        async with running(Cluster(tmp_path, {1: "controller"} | BROKERS)) as cluster:
            async with cluster.client(4) as client:
                await client.retry(lambda: client.topic("made", allow_auto_creation=True))
                await produce(client, "made", 10)
            async with cluster.client(5) as client:
                found: set[bytes] = set()
                config = GroupConfig(auto_offset_reset="earliest")
                async with GroupConsumer(client, "g", ["made"], config) as member:
                    async with asyncio.timeout(20):
                        while len(found) < 10:
                            found.update(each.value or b"" for each in await member.poll())
                    await member.commit()
            assert "__consumer_offsets" in cluster.nodes[4].metadata.image.topics

    run(script)


def test_a_broker_without_controllers_says_so_and_judges_no_log(tmp_path: Path) -> None:
    """Its metadata may lack a topic that it has records of: no log counts as a stray until the
    metadata contains the broker's new registration.
    """

    async def script() -> None:
        settings = {"initial.broker.registration.timeout.ms": "300"}
        cluster = Cluster(tmp_path, {1: "controller", 4: "broker"}, settings=settings)
        await cluster.start()
        async with cluster.client(4) as client:
            assert await create_topic(client, "t", partitions=1) == ErrorCode.NONE
            await produce(client, "t", 5)
        await cluster.stop()
        before = sorted(each.name for each in (tmp_path / "4" / "t-0").iterdir())
        with pytest.raises(StartupError) as caught:
            await cluster.start(4)
        assert "broker 4 is not registered at the active contr" in str(caught.value)
        assert re.search(
            r"; as far as is known here, node 1 at 127\.0\.0\.1:\d+ leads the metadata quorum in "
            r"epoch \d+: does it run\?$",
            str(caught.value),
        )
        assert sorted(each.name for each in (tmp_path / "4" / "t-0").iterdir()) == before
        assert not [each for each in (tmp_path / "4").iterdir() if each.name.endswith("-delete")]
        cluster.nodes.pop(4)
        await cluster.start()
        async with cluster.client(4) as client:
            assert len(await consume(client, "t", 5)) == 5
        await cluster.stop()

    run(script)


def test_a_new_broker_names_the_controllers_that_do_not_answer(tmp_path: Path) -> None:
    async def script() -> None:
        settings = {"initial.broker.registration.timeout.ms": "300"}
        cluster = Cluster(tmp_path, {1: "controller", 4: "broker"}, settings=settings)
        with pytest.raises(StartupError) as caught:
            await cluster.start(4)
        assert re.search(
            r"; no controller of controller\.quorum\.voters=1@127\.0\.0\.1:\d+ has named a leader "
            r"of the metadata quorum: do they run, and are these their controller listeners\?$",
            str(caught.value),
        )

    run(script)


def test_a_broker_of_another_cluster_says_so(tmp_path: Path) -> None:
    async def script() -> None:
        settings = {"initial.broker.registration.timeout.ms": "3000"}
        cluster = Cluster(tmp_path, {1: "controller", 4: "broker"}, settings=settings)
        await cluster.start(1)
        for file in (tmp_path / "4").glob("meta.properties"):
            file.write_text(file.read_text().replace(CLUSTER_ID, "another"))
        with pytest.raises(StartupError, match=r"; of another cluster than .*: 127\.0\.0\.1:\d+$"):
            await cluster.start(4)
        cluster.nodes.pop(4)
        await cluster.stop()

    run(script)


def test_a_second_broker_with_the_same_id_says_so(tmp_path: Path) -> None:
    async def script() -> None:
        settings = {"initial.broker.registration.timeout.ms": "1000"}
        cluster = Cluster(
            tmp_path,
            {1: "controller"} | BROKERS,
            settings=settings,
            own_settings={5: {"node.id": "4"}},
        )
        await cluster.start(1, 4)
        with pytest.raises(StartupError, match=r"; another process with this node\.id is running"):
            await cluster.start(5)
        cluster.nodes.pop(5)
        async with cluster.client(4) as client:
            assert await create_topic(client, "t") == ErrorCode.NONE
            await produce(client, "t", 5)
        await cluster.stop()

    run(script)


def test_a_broker_with_the_id_of_a_controller_says_so(tmp_path: Path) -> None:
    """Of a dynamic quorum: the settings do not name the voters."""

    async def script() -> None:
        controller, broker = free_ports(2)
        shared = {
            **SETTINGS,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "initial.broker.registration.timeout.ms": "1000",
            "node.id": "1",
        }
        settings = [
            {"process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{controller}"},
            {"process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{broker}"},
        ]
        nodes = []
        for number, own in enumerate(settings):
            directory = {"log.dirs": str(tmp_path / str(number))}
            config = BrokerConfig.from_properties({**shared, **own, **directory})
            options = FormatOptions(cluster_id=CLUSTER_ID, standalone=config.is_controller)
            format_directories(config, options, random=Random(number))
            nodes.append(Broker(config))
        await nodes[0].start()
        with pytest.raises(StartupError, match=r"no leader in epoch 1, or one that has node.id=1"):
            await nodes[1].start()
        assert nodes[0].failure is None
        await nodes[0].stop()

    run(script)


def test_a_controller_whose_majority_is_lost_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last of three asks for pre-votes in vain: its epoch and its leader do not change."""
    caplog.set_level("INFO")

    def lines(logger: str, text: str) -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name == logger]
        return [line for line in found if text in line]

    async def script() -> None:
        cluster = Cluster(tmp_path, CONTROLLERS)
        await cluster.start()
        await until(lambda: cluster.active() > 0)
        watch = "kbroker.node.leader_watch"
        killed = [number for number in CONTROLLERS if number != 1]
        for number in killed:
            cluster.kill(number)
        await until(lambda: lines(watch, "Node 1: no leader of the metadata quorum has answered"))
        await cluster.start(killed[0])
        await until(lambda: lines(watch, "Node 1: the metadata quorum works again"))
        await cluster.stop()

    run(script)


def test_a_log_of_a_topic_deleted_meanwhile_is_a_stray(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, {1: "controller"} | BROKERS)) as cluster:
            async with cluster.client(4) as client:
                assert await create_topic(client, "gone", partitions=2) == ErrorCode.NONE
                await until(lambda: list((tmp_path / "5").glob("gone-*")))
                await produce(client, "gone", 4)
                await cluster.stop(5)
                state = DeleteTopicsRequest.DeleteTopicState(name="gone")
                request = DeleteTopicsRequest(topics=[state])
                deleted = await client.to_controller(request, DeleteTopicsResponse)
                assert deleted.responses[0].error_code == ErrorCode.NONE
                await until(lambda: "gone" not in cluster.nodes[4].metadata.image.topics)
            await cluster.start(5)
            kept = [each.name for each in (tmp_path / "5").glob("gone-*")]
            assert all(name.endswith(("-delete", "-stray")) for name in kept), kept
            hosted = cluster.nodes[5].services.replicas.partitions()
            assert not [each for each in hosted if each.topic_partition.topic == "gone"]

    run(script)


def test_a_silent_broker_is_fenced(tmp_path: Path) -> None:
    async def script() -> None:
        async with running(Cluster(tmp_path, {1: "controller"} | BROKERS)) as cluster:
            cluster.kill(5)
            await until(lambda: cluster.nodes[4].metadata.image.brokers[5].fenced)
            async with cluster.client(4) as client:
                await client.metadata([])
                assert set(client.brokers) == {4}
            await cluster.start(5)
            assert not cluster.nodes[4].metadata.image.brokers[5].fenced

    run(script)


def test_a_replica_that_follows_another_broker_breaks_nothing(tmp_path: Path) -> None:
    """It is hosted; until brokers copy from each other, it stays empty."""

    async def script() -> None:
        cluster = Cluster(tmp_path, {1: "controller"} | BROKERS)
        async with running(cluster), cluster.client(4) as client:
            assert await create_topic(client, "two", replication_factor=2) == ErrorCode.NONE
            assert await create_topic(client, "one") == ErrorCode.NONE
            keys = [TopicPartition("two", index) for index in range(4)]
            for number in BROKERS:
                replicas = cluster.nodes[number].services.replicas
                await until(lambda r=replicas: all(r.partition(each) for each in keys))
                led = [r for each in keys if (r := replicas.partition(each)) and r.is_leader]
                assert 0 < len(led) < 4
            await produce(client, "one", COUNT)
            assert await consume(client, "one", COUNT) == EXPECTED

    run(script)
