"""A broker of Apache Kafka 4.3.1 joins controllers of kbroker: it registers, follows the metadata
log, leads what the controllers give it, forwards what they decide, and goes on when the active
controller is killed.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from kbroker.client.connection import BrokerConnection
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import CLUSTER_ID, ApacheKafka
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, wait_until
from tests.reference.test_log_dirs import answers

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CONTROLLERS = (7, 8, 9)
COUNT = 500


class Cluster:
    """Three controllers of kbroker, each in a process of its own, and a broker of Kafka."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.ports = {number: free_port() for number in CONTROLLERS}
        self.voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self.ports.items())
        self.controllers = {
            number: stack.enter_context(self._controller(folder, number)) for number in CONTROLLERS
        }
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        overrides = {
            "process.roles": "broker",
            "controller.quorum.voters": self.voters,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "num.partitions": "2",
        }
        kafka = ApacheKafka(folder / "kafka", overrides=overrides)
        kafka.port = port
        self.kafka = stack.enter_context(kafka)

    def _controller(self, folder: Path, number: int) -> BrokerProcess:
        data = folder / f"c{number}"
        settings = {
            "process.roles": "controller",
            "node.id": str(number),
            "listeners": f"CONTROLLER://127.0.0.1:{self.ports[number]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self.voters,
        }
        config = BrokerConfig.from_properties({**settings, "log.dirs": str(data)})
        format_directories(config, FormatOptions(cluster_id=CLUSTER_ID), random=Random(number))
        return BrokerProcess(data, overrides=settings)

    def create_topic(self, name: str) -> int:
        """Through the active controller, whose id is returned; -1 if there is none yet."""
        return asyncio.run(self._create_topic(name))

    async def _create_topic(self, name: str) -> int:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=2, replication_factor=1
        )
        for number, port in self.ports.items():
            try:
                connection = await BrokerConnection.connect("127.0.0.1", port)
            except KafkaError:
                continue
            async with connection:
                cluster = await connection.request(
                    DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse
                )
                if cluster.controller_id == number:
                    created = await connection.request(
                        CreateTopicsRequest(topics=[topic]), CreateTopicsResponse
                    )
                    if created.topics[0].error_code == ErrorCode.NOT_CONTROLLER:
                        break  # it was elected, and has not replayed everything before
                    assert created.topics[0].error_code == 0, created
                    return number
        return -1


def produce(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str) -> set[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    found: set[bytes] = set()
    while len(found) < COUNT:
        message = consumer.poll(20)
        assert message is not None, len(found)
        assert message.error() is None, message.error()
        found.add(message.value())
    consumer.close()
    return found


def test_a_kafka_broker_under_three_controllers(tmp_path: Path) -> None:
    expected = {b"%d" % number for number in range(COUNT)}
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        wait_until(lambda: answers(cluster.bootstrap), 60, "the broker is unfenced")
        first = cluster.create_topic("first")
        assert first in CONTROLLERS
        produce(cluster.bootstrap, "first")
        client = ConfluentAdapter(cluster.bootstrap)
        client.create_topic("forwarded", 2)
        cluster.controllers[first].kill()
        chosen: list[int] = []

        def is_led_again() -> bool:
            chosen.append(cluster.create_topic("second"))
            return chosen[-1] != -1

        wait_until(is_led_again, 60, "another controller is active")
        assert chosen[-1] != first
        client.create_topic("forwarded-again", 2)
        for topic in ("second", "forwarded", "forwarded-again", "automatic"):
            produce(cluster.bootstrap, topic)
        for topic in ("first", "second", "forwarded", "forwarded-again", "automatic"):
            assert consume(cluster.bootstrap, topic) == expected
        cluster.controllers[first].start()
        cluster.kafka.stop()
        cluster.kafka.start()
        wait_until(lambda: answers(cluster.bootstrap), 60, "the broker is unfenced again")
        assert consume(cluster.bootstrap, "second") == expected
