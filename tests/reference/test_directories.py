"""Apache Kafka finds nothing wrong in what kbroker wrote under a mixed load, serves all of it, and
kbroker goes on with what Kafka left: codecs, rolls, compaction, retention by DeleteRecords,
transactions, committed offsets.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.server.broker import Broker
from kbroker.testing import EmbeddedBroker
from scripts.kafka_jars import broker_class_path
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.reference.record import free_port
from tests.reference.test_log_dirs import kafka

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = ("plain", "table", "cut", "transactions")
GROUP, COMMITTED, CUT_AT = "readers", 123, 150
WRONG = ("isvalid: false", "Mismatches", "Exception", "were found", "should be")
Found = list[tuple[int, bytes | None, bytes | None]]


def log_of(running: Broker, topic: str) -> PartitionLog:
    log = running.services.replicas.logs.get(TopicPartition(topic, 0))
    assert log is not None
    return log


def roll(broker: EmbeddedBroker) -> None:
    now_ms = int(time.time() * 1000)

    def roll_all(running: Broker) -> None:
        for topic in TOPICS:
            log_of(running, topic).roll(now_ms)

    broker.call(roll_all)


def write(bootstrap: str, codec: str) -> None:
    """200 records into each topic; of the transactions every other one is aborted."""
    from confluent_kafka import Producer

    common = {"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0}
    producer = Producer({**common, "enable.idempotence": True, "linger.ms": 5})
    for number in range(200):
        value = f"{codec} {number} ".encode() * 20
        for topic in ("plain", "table", "cut"):
            producer.produce(topic, value, key=b"%d" % (number % 50))
        if number % 40 == 39:
            assert producer.flush(10) == 0
    transactional = Producer({**common, "transactional.id": "mixed"})
    transactional.init_transactions(10)
    for number in range(10):
        transactional.begin_transaction()
        for index in range(20):
            transactional.produce("transactions", b"%s %d" % (codec.encode(), number * 20 + index))
        assert transactional.flush(10) == 0
        if number % 2:
            transactional.abort_transaction(10)
        else:
            transactional.commit_transaction(10)


def read(bootstrap: str, topic: str) -> Found:
    """(offset, key, value) of all committed records."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"enable.partition.eof": True, "isolation.level": "read_committed", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: Found = []

    def collect() -> bool:
        messages = consumer.consume(500, 0.2)
        found.extend((m.offset(), m.key(), m.value()) for m in messages if m.error() is None)
        return any(m.error() is not None for m in messages)

    try:
        wait_until(collect, 20, f"the end of {topic}")
    finally:
        consumer.close()
    return found


def committed(bootstrap: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        return int(consumer.committed([TopicPartition("plain", 0)], 20)[0].offset)
    finally:
        consumer.close()


def commit(bootstrap: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    consumer.commit(offsets=[TopicPartition("plain", 0, COMMITTED)], asynchronous=False)
    consumer.close()


def mixed_load(broker: EmbeddedBroker) -> None:
    for topic in TOPICS:
        compacted = {"cleanup.policy": "compact"} if topic == "table" else {}
        broker.create_topic(topic, configs={"index.interval.bytes": "1024", **compacted})
    for codec in CODECS:
        write(broker.bootstrap_servers, codec)
        roll(broker)
    commit(broker.bootstrap_servers)
    key = TopicPartition("cut", 0)
    assert broker.call(lambda b: b.services.replicas.delete_records(key, CUT_AT)) == CUT_AT
    end = broker.call(lambda b: log_of(b, "table").log_end_offset)

    def cleaned(running: Broker) -> bool:
        return (log_of(running, "table").cleaner_offset or 0) >= end

    wait_until(lambda: broker.call(cleaned), 20, "the table is compacted")


def complaints(folder: Path) -> list[str]:
    """What Kafka's DumpLogSegments says against the files of a folder."""
    names = [
        str(path)
        for suffix in ("log", "index", "timeindex", "txnindex", "snapshot")
        for path in sorted(folder.glob(f"*/*.{suffix}"))
    ]
    assert len(names) > 40
    found = []
    for options in (["--deep-iteration"], ["--verify-index-only"]):
        tool = ["java", "-cp", broker_class_path(), "org.apache.kafka.tools.DumpLogSegments"]
        done = subprocess.run(
            [*tool, *options, "--files", ",".join(names)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (done.stdout + done.stderr).splitlines()
        found += [line for line in lines if any(word in line for word in WRONG)]
    return found


def test_a_mixed_load_goes_to_kafka_and_back(tmp_path: Path) -> None:
    controller_port = free_port()
    original, copy = tmp_path / "original", tmp_path / "copy"
    overrides = {
        "log.dirs": f"{original / 'd1'},{original / 'd2'}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.cleaner.backoff.ms": "50",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.segment.delete.delay.ms": "0",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "1",
    }
    with EmbeddedBroker(overrides, data=original) as broker:
        mixed_load(broker)
        written = {topic: read(broker.bootstrap_servers, topic) for topic in TOPICS}
        assert committed(broker.bootstrap_servers) == COMMITTED
    assert [len(written[topic]) for topic in TOPICS] == [1000, 50, 1000 - CUT_AT, 500]
    shutil.copytree(original, copy)
    for name in ("d1", "d2"):
        assert complaints(original / name) == []
    with kafka(copy, controller_port) as bootstrap:
        assert {topic: read(bootstrap, topic) for topic in TOPICS} == written
        assert committed(bootstrap) == COMMITTED
    overrides["log.dirs"] = f"{copy / 'd1'},{copy / 'd2'}"
    with EmbeddedBroker(overrides, data=copy) as broker:
        assert {t: read(broker.bootstrap_servers, t) for t in TOPICS} == written
        assert committed(broker.bootstrap_servers) == COMMITTED
