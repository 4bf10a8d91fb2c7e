"""A broker that compacts while it serves: produce, fetch, restart, kill; its own offsets topic."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.model import TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.testing import EmbeddedBroker
from kbroker.testing.process import BrokerProcess
from tests.e2e.wire import call
from tests.log.cleaner.cleaning import records_of

QUICK = {
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "offsets.topic.num.partitions": "1",
}
TABLE = TopicPartition("table", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)


def log_of(broker: Broker, key: TopicPartition) -> PartitionLog:
    assert broker.services.replicas is not None
    log = broker.services.replicas.logs.get(key)
    assert log is not None
    return log


def until(broker: EmbeddedBroker, condition: Callable[[Broker], bool]) -> None:
    deadline = time.monotonic() + 20
    while not broker.call(condition):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cleaned_to(broker: EmbeddedBroker, key: TopicPartition) -> None:
    """Roll, and wait until everything before is clean."""
    end = broker.call(lambda b: log_of(b, key).log_end_offset)
    broker.call(lambda b: log_of(b, key).roll(int(time.time() * 1000)))
    until(broker, lambda b: (log_of(b, key).cleaner_offset or 0) >= end)


def append(broker: EmbeddedBroker, items: list[tuple[bytes, bytes]], codec: Compression) -> None:
    now_ms = int(time.time() * 1000)
    batch = build_batch([(now_ms, k, v, ()) for k, v in items], compression=codec)
    broker.call(lambda b: b.services.replicas.append(TABLE, batch, acks=1, timeout_ms=1000))


def commit(broker: EmbeddedBroker, group: str, offset: int) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="events", partitions=[partition])
    request = OffsetCommitRequest(group_id=group, topics=[topic])
    code = None
    with socket.create_connection((broker.host, broker.port), timeout=10) as connection:
        for _ in range(200):
            call(connection, FindCoordinatorRequest(key=group), 0)  # makes the offsets topic
            response = call(connection, request, 5)
            assert isinstance(response, OffsetCommitResponse)
            code = response.topics[0].partitions[0].error_code
            if code == 0:
                return
            time.sleep(0.02)  # the coordinator still loads
    raise AssertionError(code)


def committed(broker: EmbeddedBroker, group: str) -> int:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="events", partition_indexes=[0])
    request = OffsetFetchRequest(group_id=group, topics=[topic])
    with socket.create_connection((broker.host, broker.port), timeout=10) as connection:
        for _ in range(200):
            response = call(connection, request, 5)
            assert isinstance(response, OffsetFetchResponse)
            if response.error_code == 0:
                return response.topics[0].partitions[0].committed_offset
            time.sleep(0.02)  # the coordinator still loads
    raise AssertionError(response.error_code)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(QUICK, data=tmp_path / "data") as running:
        yield running


def test_a_table_is_compacted_while_it_is_served(broker: EmbeddedBroker) -> None:
    broker.create_topic("table", configs={"cleanup.policy": "compact"})
    for number in range(60):
        codec = list(Compression)[number % 5]
        append(broker, [(b"k%d" % (number % 7), b"%d" % number), (b"u%d" % number, b"x")], codec)
        if number % 20 == 19:
            cleaned_to(broker, TABLE)
    expected = {b"u%d" % n: b"x" for n in range(60)} | {
        b"k%d" % (n % 7): b"%d" % n for n in range(60)
    }

    def seen(running: Broker) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(r.offset, r.key, r.value) for r in records_of(log_of(running, TABLE))]

    before = broker.call(seen)
    assert {key: value for _, key, value in before} == expected
    assert len(before) == len(expected)
    broker.kill()
    broker.start()
    assert broker.call(seen) == before
    broker.restart()
    assert broker.call(seen) == before


def test_groups_load_from_a_compacted_offsets_topic(broker: EmbeddedBroker) -> None:
    broker.create_topic("events")
    for number in range(40):
        commit(broker, f"group-{number % 3}", number)
    size = broker.call(lambda b: log_of(b, OFFSETS).size_bytes)
    cleaned_to(broker, OFFSETS)
    assert broker.call(lambda b: log_of(b, OFFSETS).size_bytes) < size / 5
    broker.restart()
    assert [committed(broker, f"group-{n}") for n in range(3)] == [39, 37, 38]
    broker.kill()
    broker.start()
    assert [committed(broker, f"group-{n}") for n in range(3)] == [39, 37, 38]


@pytest.mark.reference
def test_kafka_finds_nothing_wrong_in_a_compacted_folder(broker: EmbeddedBroker) -> None:
    from scripts.kafka_jars import tools_class_path

    broker.create_topic(
        "table", configs={"cleanup.policy": "compact", "index.interval.bytes": "100"}
    )
    for number in range(100):
        codec = list(Compression)[number % 5]
        append(broker, [(b"k%d" % (number % 9), b"v" * number), (b"u%d" % number, b"x")], codec)
        if number % 30 == 29:
            cleaned_to(broker, TABLE)
    folder = broker.data / str(TABLE)
    broker.call(lambda b: log_of(b, TABLE).flush())
    java = shutil.which("java")
    assert java is not None
    for kind in ("log", "index", "timeindex"):
        paths = sorted(folder.glob(f"*.{kind}"))[:-1]
        assert paths
        done = subprocess.run(
            [java, "-cp", tools_class_path(), "org.apache.kafka.tools.DumpLogSegments",
             "--index-sanity-check", "--deep-iteration", "--files", ",".join(map(str, paths))],
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for complaint in ("isvalid: false", "isValid: false", "mismatch", "corrupt", "Found"):
            assert complaint not in done.stdout, done.stdout[-2000:]
        if kind == "log":
            assert "| offset: 179 " in done.stdout


class Table(NamedTuple):
    """What a consumer reads from the partition. values: the number of each key's last record."""

    values: dict[bytes, int]
    read_count: int
    end: int


def table_of(servers: str) -> Table:
    """Read it to its end; offsets must rise."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    partition = KafkaPartition("table", 0, 0)
    end = consumer.get_watermark_offsets(partition, timeout=10)[1]
    consumer.assign([partition])
    values: dict[bytes, int] = {}
    last, read_count = -1, 0
    while last < end - 1:
        message = consumer.poll(10)
        assert message is not None and message.error() is None
        assert message.offset() > last
        last, read_count = message.offset(), read_count + 1
        values[message.key()] = int(message.value().split()[0])
    consumer.close()
    return Table(values, read_count, end)


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.timeout(300)
def test_kill_9_while_it_compacts(tmp_path: Path) -> None:
    """The last acknowledged value of every key is there after each of 10 kills, offsets rise, and
    every file is sound in the end.
    """
    from confluent_kafka import Message, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    overrides = QUICK | {"log.cleaner.backoff.ms": "1", "log.segment.delete.delay.ms": "50"}
    acknowledged: dict[bytes, int] = {}
    number = 0
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        servers = broker.bootstrap_servers
        configs = {"cleanup.policy": "compact", "internal.segment.bytes": "20000"}
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic("table", 1, 1, config=configs)])["table"].result(10)
        for round_number in range(10):
            producer = Producer(
                {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2,
                 "compression.type": ["none", "lz4", "zstd", "gzip"][round_number % 4],
                 "log_level": 0}
            )  # fmt: skip

            def delivered(error: object, message: Message) -> None:
                if error is None:
                    acknowledged[message.key()] = int(message.value().split()[0])  # type: ignore[index,union-attr]  # both are set

            until_s = time.monotonic() + 0.5 + 0.05 * round_number
            while time.monotonic() < until_s:
                for _ in range(20):
                    value = b"%d %s" % (number, b"v" * 100)
                    producer.produce("table", value, b"k%d" % (number % 97), on_delivery=delivered)
                    number += 1
                producer.poll(0.001)
            broker.kill()
            producer.poll(0)
            producer.purge()
            producer.flush(5)
            broker.start()
            seen = table_of(servers).values
            assert {k: v for k, v in acknowledged.items() if seen.get(k, -1) < v} == {}
        deadline = time.monotonic() + 60
        while not (tmp_path / "data" / "cleaner-offset-checkpoint").read_text().count("table"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # The last kill may have come before the cleaner had compacted much.
        while (found := table_of(servers)).read_count >= found.end / 2:
            assert time.monotonic() < deadline, found
        assert {k: v for k, v in acknowledged.items() if found.values.get(k, -1) < v} == {}
    assert [p for p in verify_folder(tmp_path / "data") if isinstance(p, Problem)] == []
