"""What administrators do with logs, by the clients they use: kafka-python, librdkafka, and Apache
Kafka's own tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    # What the clients themselves warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
needs_java = pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")

BASE_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def two_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Path]]]:
    """host:port of a broker with two log directories, and these."""
    folder = tmp_path_factory.mktemp("disks")
    dirs = [folder / "d1", folder / "d2"]
    overrides = {"log.dirs": f"{dirs[0]},{dirs[1]}", "log.retention.ms": "-1"}
    with BrokerProcess(folder / "data", overrides=overrides) as broker:
        yield broker.bootstrap_servers, dirs


def fill(bootstrap: str, topic: str, count: int, codec: str = "none") -> None:
    """A new topic of one partition; record n has the time BASE_MS + 10 n."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=BASE_MS + 10 * number)
    assert producer.flush(10) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, 10)]
    finally:
        consumer.close()


def directories_of(admin: Any, topic: str) -> dict[str, bool]:  # Any: kafka-python is untyped
    """Log directory -> whether it has the future log of partition 0."""
    return {
        log_dir["log_dir"]: part["is_future_key"]
        for broker in admin.describe_log_dirs()
        for log_dir in broker["log_dirs"]
        for found in log_dir["topics"]
        if found["name"] == topic
        for part in found["partitions"]
    }


def test_kafka_python_moves_a_replica(
    two_disks: tuple[str, list[Path]], new_name: Callable[[str], str]
) -> None:
    from kafka import KafkaAdminClient

    bootstrap, dirs = two_disks
    topic = new_name("moving")
    fill(bootstrap, topic, 500)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (source,) = directories_of(admin, topic)
        target = next(str(path) for path in dirs if str(path) != source)
        moved = admin.alter_replica_log_dirs({(topic, 0, 1): target})
        assert [error.__name__ for error in moved.values()] == ["NoError"]
        wait_until(lambda: directories_of(admin, topic) == {target: False}, 20, "moved")
        moved = admin.alter_replica_log_dirs({(topic, 0, 1): "/nowhere"})
        assert [error.__name__ for error in moved.values()] == ["LogDirNotFoundError"]
        assert read(bootstrap, topic, 500) == [b"%d" % number for number in range(500)]
    finally:
        admin.close()


def test_kafka_python_deletes_records(
    two_disks: tuple[str, list[Path]], new_name: Callable[[str], str]
) -> None:
    from kafka import KafkaAdminClient, TopicPartition

    bootstrap, _ = two_disks
    topic = new_name("cut")
    fill(bootstrap, topic, 100)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        answers = admin.delete_records({TopicPartition(topic, 0): 30})
        assert [answer["low_watermark"] for answer in answers.values()] == [30]
    finally:
        admin.close()
    assert read(bootstrap, topic, 70) == [b"%d" % number for number in range(30, 100)]


def test_librdkafka_deletes_records(
    two_disks: tuple[str, list[Path]], new_name: Callable[[str], str]
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    bootstrap, _ = two_disks
    topic = new_name("cut")
    fill(bootstrap, topic, 100)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for offset, start in ((40, 40), (-1, 100)):  # -1: librdkafka's OFFSET_END
        asked = TopicPartition(topic, 0, offset)
        (answer,) = admin.delete_records([asked]).values()
        assert answer.result(10).low_watermark == start


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_finds_offsets_by_time(
    two_disks: tuple[str, list[Path]], new_name: Callable[[str], str], codec: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    bootstrap, _ = two_disks
    topic = new_name("times")
    fill(bootstrap, topic, 100, codec)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t"})
    try:
        for ms, expected in ((-5, 0), (0, 0), (1, 1), (250, 25), (251, 26), (990, 99), (991, -1)):
            asked = TopicPartition(topic, 0, BASE_MS + ms)
            (found,) = consumer.offsets_for_times([asked], timeout=10)
            assert found.offset == expected, ms
    finally:
        consumer.close()


@needs_java
def test_kafkas_own_tools(
    two_disks: tuple[str, list[Path]],
    new_name: Callable[[str], str],
    kafka_tools: KafkaTools,
    tmp_path: Path,
) -> None:
    bootstrap, dirs = two_disks
    topic = new_name("tools")
    fill(bootstrap, topic, 100, "gzip")
    tools = "org.apache.kafka.tools"

    def run(tool: str, *arguments: str) -> str:
        return kafka_tools.output(f"{tools}.{tool}", "--bootstrap-server", bootstrap, *arguments)

    asked = {"partitions": [{"topic": topic, "partition": 0, "offset": 60}], "version": 1}
    request = tmp_path / "delete.json"
    request.write_text(json.dumps(asked))
    printed = run("DeleteRecordsCommand", "--offset-json-file", str(request))
    assert f"partition: {topic}-0\tlow_watermark: 60" in printed
    for asked_time, offset in (("earliest", 60), ("latest", 100), (BASE_MS + 755, 76)):
        printed = run("GetOffsetShell", "--topic", topic, "--time", str(asked_time))
        assert printed.strip() == f"{topic}:0:{offset}"
    printed = run("LogDirsCommand", "--describe", "--topic-list", topic)
    described = json.loads(printed.splitlines()[-1])
    (broker,) = described["brokers"]
    assert [entry["error"] for entry in broker["logDirs"]] == [None, None]
    assert {entry["logDir"] for entry in broker["logDirs"]} == {str(path) for path in dirs}
    (found,) = [part for entry in broker["logDirs"] for part in entry["partitions"]]
    assert (found["partition"], found["isFuture"], found["offsetLag"]) == (f"{topic}-0", False, 0)
    assert found["size"] > 0
