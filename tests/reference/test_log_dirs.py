"""Apache Kafka 4.3.1 goes on with the two log directories of a kbroker, and the other way round:
assignments, a moved log, a log whose start was moved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.model import TopicPartition
from kbroker.replication.mover import LogMover
from kbroker.server.broker import Broker
from kbroker.testing import EmbeddedBroker
from scripts.apache_kafka import ApacheKafka, free_port
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COUNT = 500
MOVED, CUT = TopicPartition("t", 0), TopicPartition("t", 1)


@contextmanager
def kafka(folder: Path, controller_port: int) -> Iterator[str]:
    """host:port of a Kafka on the folder's d1 and d2."""
    overrides = {"log.dirs": f"{folder}/d1,{folder}/d2"}
    with ApacheKafka(folder, overrides=overrides, controller_port=controller_port) as server:
        time.sleep(3)  # the port opens before the broker is unfenced
        yield server.bootstrap_servers


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

            def place() -> dict[str, bool]:
                return {
                    log_dir["log_dir"]: part["is_future_key"]
                    for log_dir in admin.describe_log_dirs({"t": [0]})[0]["log_dirs"]
                    for topic in log_dir["topics"]
                    for part in topic["partitions"]
                }

            assert place() == {target: False}
            admin.alter_replica_log_dirs({("t", 0, 1): source})
            wait_until(lambda: place() == {source: False}, 20, "Kafka has moved it back")
        finally:
            admin.close()
    with EmbeddedBroker(overrides, data=tmp_path) as broker:
        assert broker.call(lambda running: directory_of(running, MOVED)) == source
        assert read(broker.bootstrap_servers, MOVED, 0) == expected
        assert read(broker.bootstrap_servers, CUT, 300) == expected[300:]
