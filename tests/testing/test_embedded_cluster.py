"""EmbeddedCluster: nodes that are killed and come back, folders, topics, interception."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kbroker.model import InvariantError, StartupError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.testing import EmbeddedCluster
from tests.clients.adapters import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(node_overrides={2: {"broker.rack": "b"}}) as running:
        yield running


@pytest.fixture
def cluster(shared: EmbeddedCluster) -> EmbeddedCluster:
    shared.start_all()
    return shared


def values_of(cluster: EmbeddedCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    for _ in range(600):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        if len(found) >= count:
            break
    consumer.close()
    return found


def test_records_survive_the_death_of_their_leader(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("survivors", configs={"min.insync.replicas": "2"})
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
    )
    leader = cluster.leader(topic)
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    cluster.nodes[leader].kill()
    assert not cluster.nodes[leader].running
    producer.produce(topic, b"meanwhile")
    assert producer.flush(30) == 0
    assert cluster.leader(topic) != leader
    cluster.nodes[leader].start()
    cluster.wait_in_sync()
    producer.produce(topic, b"after")
    assert producer.flush(30) == 0
    assert values_of(cluster, topic, 3) == [b"before", b"meanwhile", b"after"]


def test_topics_have_three_replicas_unless_they_say_otherwise(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("wide", partitions=6)
    cluster.create_topic("single", replication_factor=1)
    folders = {
        name: sorted(
            node_id for node_id, node in cluster.nodes.items() if (node.data / f"{name}-0").is_dir()
        )
        for name in ("wide", "single")
    }
    assert folders == {"wide": [1, 2, 3], "single": [cluster.leader("single")]}
    assert {cluster.leader("wide", partition) for partition in range(6)} <= {1, 2, 3}


def test_what_create_topics_refuses_is_raised(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("taken")
    with pytest.raises(KafkaError) as error:
        cluster.create_topic("taken")
    assert error.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaError) as error:
        cluster.create_topic("copies", replication_factor=4)
    assert error.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(("topic", "partition"), [("unknown", 0), ("known", 1)])
def test_the_leader_of_what_does_not_exist(
    cluster: EmbeddedCluster, topic: str, partition: int
) -> None:
    if topic == "known":
        cluster.create_topic(topic)
    with pytest.raises(KafkaError) as error:
        cluster.leader(topic, partition)
    assert error.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_methods_work_where_a_loop_runs(cluster: EmbeddedCluster) -> None:
    async def test() -> int:
        return cluster.leader(cluster.create_topic("from-a-loop"))

    assert asyncio.run(test()) in cluster.nodes


def test_overrides_of_one_node(cluster: EmbeddedCluster) -> None:
    racks = {
        node_id: node.call(lambda broker: broker.config.get("broker.rack"))
        for node_id, node in cluster.nodes.items()
    }
    assert racks == {1: None, 2: "b", 3: None}


def test_an_interception_holds_on_every_node_until_it_ends(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("intercepted", partitions=3)
    leaders = {cluster.leader(topic, partition) for partition in range(3)}
    refused: set[int | None] = set()

    def refuse(context: object, request: object) -> None:
        refused.add(threading.current_thread().ident)
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    end = cluster.intercept(ApiKey.PRODUCE, refuse)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for partition in range(3):
        producer.produce(topic, b"value", partition=partition)
    wait_until(
        lambda: producer.flush(0.1) == 3 and len(refused) == len(leaders),
        30,
        "each leader is asked",
    )
    end()
    assert producer.flush(60) == 0


def test_transactions_of_two_brokers_with_one_controller() -> None:
    """Coordinators and partitions are on both, so markers travel either way."""
    with EmbeddedCluster(2) as cluster:
        topic = cluster.create_topic("pairs", partitions=2)
        assert {cluster.leader(topic, partition) for partition in (0, 1)} == {1, 2}
        for number in range(4):
            producer = Producer(
                {
                    "bootstrap.servers": cluster.bootstrap_servers,
                    "transactional.id": f"writer-{number}",
                }
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce(topic, b"%d" % number, partition=partition)
            producer.commit_transaction(30)
        expected = sorted(b"%d" % number for number in range(4) for _ in (0, 1))
        assert sorted(values_of(cluster, topic, 8)) == expected


def test_a_folder_of_the_callers_keeps_the_data(tmp_path: Path) -> None:
    with EmbeddedCluster(2, data=tmp_path) as cluster:
        topic = cluster.create_topic("kept")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce(topic, b"value")
        assert producer.flush(30) == 0
    assert not any(node.running for node in cluster.nodes.values())
    with EmbeddedCluster(2, data=tmp_path) as again:
        assert values_of(again, topic, 1) == [b"value"]
        with pytest.raises(InvariantError, match="already"):
            again.start()


def test_a_temporary_folder_is_removed() -> None:
    with EmbeddedCluster(1) as cluster:
        folder = cluster.nodes[1].data
        assert folder.is_dir()
    assert not folder.parent.exists()


def test_a_start_that_fails_leaves_no_node_running(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(
        1, node_overrides={1: {"authorizer.class.name": "no.such"}}, data=tmp_path
    )
    with pytest.raises(StartupError, match=r"authorizer\.class\.name"):
        cluster.start()
    assert not any(node.running for node in cluster.nodes.values())


def test_mistakes_in_the_arguments() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        EmbeddedCluster(0)
    with pytest.raises(ValueError, match=r"\[4\]"):
        EmbeddedCluster(3, node_overrides={4: {}})
    with pytest.raises(InvariantError, match="not been started"):
        _ = EmbeddedCluster(3).bootstrap_servers
