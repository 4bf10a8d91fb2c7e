"""Apache Kafka 4.3.1 goes on with the two log directories of a kbroker, and the other way round:
assignments, a moved log, a log whose start was moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.model import TopicPartition
from kbroker.node.node import Broker
from kbroker.replication.mover import LogMover
from kbroker.testing import EmbeddedBroker
from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(400),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COUNT = 500
SLOW = 10_000
"""Bytes a second: what has begun to move does not arrive before the broker stops."""
MOVED, CUT = TopicPartition("t", 0), TopicPartition("t", 1)


@contextmanager
def kafka(folder: Path, controller_port: int) -> Iterator[str]:
    """host:port of a Kafka on the folder's d1 and d2."""
    overrides = {"log.dirs": f"{folder}/d1,{folder}/d2"}
    with ApacheKafka(folder, overrides=overrides, controller_port=controller_port) as server:
        wait_until(lambda: answers(server.bootstrap_servers), 60, "Kafka is unfenced")
        yield server.bootstrap_servers


def answers(bootstrap: str) -> bool:
    """Whether the broker is one of those it names: its port opens some seconds earlier."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=5)
    except KafkaException:
        return False
    return bool(found.brokers)


def read(bootstrap: str, key: TopicPartition, start: int) -> list[bytes]:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Assigned

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([Assigned(*key, start)])
    found: list[bytes] = []

    def collect() -> bool:
        found.extend(m.value() for m in consumer.consume(COUNT, 0.5) if m.error() is None)
        return len(found) >= COUNT - start

    try:
        wait_until(collect, 20, f"the records of {key}")
    finally:
        consumer.close()
    return found


def directory_of(running: Broker, key: TopicPartition) -> str:
    return str(running.services.replicas.logs.directory_of(key))


def move(broker: EmbeddedBroker, key: TopicPartition, path: str) -> None:
    mover: LogMover = broker.call(lambda running: running.services.replicas.mover)
    assert mover.running
    assert broker.call(lambda running: running.services.replicas.move_log(key, path)) == 0
    wait_until(lambda: broker.call(lambda b: directory_of(b, key)) == path, 20, "moved")


def places(admin: KafkaAdminClient, key: TopicPartition) -> dict[str, bool]:
    """The directories that have the partition, and whether it is only on its way there."""
    return {
        log_dir["log_dir"]: part["is_future_key"]
        for log_dir in admin.describe_log_dirs({key.topic: [key.partition]})[0]["log_dirs"]
        for topic in log_dir["topics"]
        for part in topic["partitions"]
    }


def test_either_broker_goes_on_with_the_others_directories(tmp_path: Path) -> None:
    from confluent_kafka import Producer
    from kafka import KafkaAdminClient

    controller_port = free_port()
    dirs = [str(tmp_path / name) for name in ("d1", "d2")]
    overrides = {
        "log.dirs": ",".join(dirs),
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
    expected = [b"%d" % number for number in range(COUNT)]
    with EmbeddedBroker(overrides, data=tmp_path) as broker:
        broker.create_topic("t", partitions=2)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for value in expected:
            for index in range(2):
                producer.produce("t", value, partition=index)
        assert producer.flush(10) == 0
        source = broker.call(lambda running: directory_of(running, MOVED))
        (target,) = set(dirs) - {source}
        move(broker, MOVED, target)
        assert broker.call(lambda b: b.services.replicas.delete_records(CUT, 300)) == 300
    with kafka(tmp_path, controller_port) as bootstrap:
        assert read(bootstrap, MOVED, 0) == expected
        assert read(bootstrap, CUT, 300) == expected[300:]
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            assert places(admin, MOVED) == {target: False}
            admin.alter_replica_log_dirs({("t", 0, 1): source})
            wait_until(
                lambda: places(admin, MOVED) == {source: False}, 20, "Kafka has moved it back"
            )
        finally:
            admin.close()
    with EmbeddedBroker(overrides, data=tmp_path) as broker:
        assert broker.call(lambda running: directory_of(running, MOVED)) == source
        assert read(broker.bootstrap_servers, MOVED, 0) == expected
        assert read(broker.bootstrap_servers, CUT, 300) == expected[300:]


def future_bytes(directory: str, key: TopicPartition) -> int:
    """How much of a partition has arrived where it moves to."""
    logs = Path(directory).glob(f"{key}.*-future/*.log")
    return sum(path.stat().st_size for path in logs)


def test_a_move_that_one_began_the_other_ends(tmp_path: Path) -> None:
    from confluent_kafka import Producer
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    controller_port = free_port()
    dirs = [str(tmp_path / name) for name in ("d1", "d2")]
    overrides = {
        "log.dirs": ",".join(dirs),
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
    expected = [b"%d " % number + bytes(20_000) for number in range(COUNT)]
    with EmbeddedBroker(overrides, data=tmp_path) as broker:
        broker.create_topic("t", configs={"segment.bytes": "3000000"})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for value in expected:
            producer.produce("t", value, partition=0)
        assert producer.flush(20) == 0
        source = broker.call(lambda running: directory_of(running, MOVED))
        (target,) = set(dirs) - {source}

        def begin(running: Broker) -> int:
            running.services.replicas.mover.bytes_per_second = SLOW
            return running.services.replicas.move_log(MOVED, target)

        assert broker.call(begin) == 0
        wait_until(lambda: future_bytes(target, MOVED) > 0, 20, "something has moved")
    assert 0 < future_bytes(target, MOVED) < COUNT * 20_000
    with kafka(tmp_path, controller_port) as bootstrap:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            wait_until(lambda: places(admin, MOVED) == {target: False}, 30, "Kafka ended the move")
            assert read(bootstrap, MOVED, 0) == expected
            limit = {"replica.alter.log.dirs.io.max.bytes.per.second": str(SLOW)}
            broker_1 = ConfigResource(ConfigResourceType.BROKER, "1", configs=limit)
            admin.alter_configs([broker_1], raise_on_unknown=False)
            admin.alter_replica_log_dirs({("t", 0, 1): source})
            wait_until(lambda: future_bytes(source, MOVED) > 0, 20, "something has moved back")
            assert places(admin, MOVED) == {target: False, source: True}
        finally:
            admin.close()
    assert 0 < future_bytes(source, MOVED) < COUNT * 20_000
    with EmbeddedBroker(overrides, data=tmp_path) as broker:
        assert broker.call(lambda running: directory_of(running, MOVED)) == target
        broker.call(lambda b: setattr(b.services.replicas.mover, "bytes_per_second", 1 << 40))
        wait_until(lambda: broker.call(lambda b: directory_of(b, MOVED)) == source, 60, "moved")
        assert read(broker.bootstrap_servers, MOVED, 0) == expected
