"""Apache Kafka finds nothing wrong in what kbroker wrote under a mixed load, prints the same of it
and serves all of it; kbroker goes on with what Kafka wrote behind it. The load: every codec, rolls,
compaction, retention by size, by time and by DeleteRecords, LogAppendTime, recompression,
preallocation, transactions with their control batches, committed offsets.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from kbroker.cli import record_decoders
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.names import LOG_START_OFFSETS
from kbroker.log.tools.dump import dump_file
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.model import TopicPartition
from kbroker.node.node import Broker
from kbroker.testing import EmbeddedBroker
from scripts.kafka_jars import broker_class_path
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.reference.test_log_dirs import kafka

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(400),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = {
    "plain": {},
    "table": {"cleanup.policy": "compact"},
    "cut": {},
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"},
    "large": {"retention.bytes": "12000", "preallocate": "true"},
    "old": {"retention.ms": "60000", "cleanup.policy": "compact,delete"},
    "transactions": {},
}
OLD_MS = 3_600_000
PER_CODEC = 200
GROUP, COMMITTED, CUT_AT = "readers", 123, 150
WRONG = ("isvalid: false", "Mismatches", "Exception", "were found", "should be")
Found = list[tuple[int, bytes | None, bytes | None]]


def log_of(running: Broker, topic: str) -> PartitionLog:
    log = running.services.replicas.logs.get(TopicPartition(topic, 0))
    assert log is not None
    return log


def starts(log: PartitionLog) -> str:
    return (log.directory.parent / LOG_START_OFFSETS).read_text()


def roll(broker: EmbeddedBroker) -> None:
    now_ms = int(time.time() * 1000)

    def roll_all(running: Broker) -> None:
        for topic in TOPICS:
            log_of(running, topic).roll(now_ms)

    broker.call(roll_all)


def write(bootstrap: str, codec: str, topics: Collection[str] = TOPICS) -> None:
    """PER_CODEC records into each topic; of the transactions every other one is aborted."""
    from confluent_kafka import Producer

    common = {"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0}
    producer = Producer({**common, "enable.idempotence": True, "linger.ms": 5})
    long_ago_ms = int(time.time() * 1000) - OLD_MS
    for number in range(PER_CODEC):
        value = f"{codec} {number} ".encode() * 20
        for topic in topics:
            if topic != "transactions":
                times = {"timestamp": long_ago_ms} if topic == "old" else {}
                producer.produce(topic, value, key=b"%d" % (number % 50), **times)
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


def ends(bootstrap: str) -> dict[str, tuple[int, int]]:
    """The first offset and the one behind the last."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "log_level": 0})
    try:
        return {t: consumer.get_watermark_offsets(TopicPartition(t, 0), 20) for t in TOPICS}
    finally:
        consumer.close()


def content(bootstrap: str) -> dict[str, object]:
    """All that a client can see."""
    assert committed(bootstrap) == COMMITTED
    return {"ends": ends(bootstrap), **{topic: read(bootstrap, topic) for topic in TOPICS}}


def committed(bootstrap: str) -> int:
    """As soon as the coordinator has loaded its partition."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    found: list[int] = []

    def ask() -> bool:
        try:
            found.append(int(consumer.committed([TopicPartition("plain", 0)], 20)[0].offset))
        except KafkaException:
            return False
        return True

    try:
        wait_until(ask, 60, "the group's coordinator")
    finally:
        consumer.close()
    return found[0]


def commit(bootstrap: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    consumer.commit(offsets=[TopicPartition("plain", 0, COMMITTED)], asynchronous=False)
    consumer.close()


def mixed_load(broker: EmbeddedBroker) -> None:
    for topic, configs in TOPICS.items():
        broker.create_topic(topic, configs={"index.interval.bytes": "1024", **configs})
    for codec in CODECS:
        write(broker.bootstrap_servers, codec)
        roll(broker)
    commit(broker.bootstrap_servers)
    key = TopicPartition("cut", 0)
    assert broker.call(lambda b: b.services.replicas.delete_records(key, CUT_AT)) == CUT_AT
    end = broker.call(lambda b: log_of(b, "table").log_end_offset)

    def settled(running: Broker) -> bool:
        large, old = log_of(running, "large"), log_of(running, "old")
        return (
            (log_of(running, "table").cleaner_offset or 0) >= end
            and large.log_start_offset > 0
            and large.size_bytes < 20_000
            and old.log_start_offset == old.log_end_offset
            and f"cut 0 {CUT_AT}\n" in starts(log_of(running, "cut"))
        )

    wait_until(lambda: broker.call(settled), 20, "compacted, and cut by size and time")


def complaints(folder: Path, *, at_least: int = 40) -> list[str]:
    """What Kafka's DumpLogSegments says against the files of a folder. at_least: files it has."""
    names = [
        str(path)
        for suffix in ("log", "index", "timeindex", "txnindex", "snapshot")
        for path in sorted(folder.glob(f"*/*.{suffix}"))
    ]
    assert len(names) >= at_least
    found = []
    for options in (["--deep-iteration"], ["--verify-index-only"], ["--index-sanity-check"]):
        lines = kafka_dump(*options, "--files", ",".join(names))
        found += [line for line in lines if any(word in line for word in WRONG)]
    return found


def kafka_dump(*options: str) -> list[str]:
    """What Kafka's DumpLogSegments prints."""
    tool = ["java", "-cp", broker_class_path(), "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run([*tool, *options], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return (done.stdout + done.stderr).decode().split("\n")[:-1]


DECODERS = {
    "__cluster_metadata-0": ("--cluster-metadata-decoder", record_decoders.metadata_text),
    "__consumer_offsets-*": ("--offsets-decoder", record_decoders.offsets_text),
    "__transaction_state-*": ("--transaction-log-decoder", record_decoders.transactions_text),
}


def check_decoders(data: Path) -> None:
    """What the internal topics hold, Kafka's tool and ours say in the same words."""
    for folders, (option, text) in DECODERS.items():
        largest = max(data.glob(f"*/{folders}/*.log"), key=lambda path: path.stat().st_size)
        _, *lines = kafka_dump(option, "--files", str(largest))
        assert len(lines) > 2
        assert list(dump_file(largest, record_text=text)) == lines


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_mixed_load_goes_to_kafka_and_back(tmp_path: Path, end: str) -> None:
    controller_port = free_port()
    original, copy = tmp_path / "original", tmp_path / "copy"
    overrides = {
        "log.dirs": f"{original / 'd1'},{original / 'd2'}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.cleaner.backoff.ms": "50",
        "log.retention.check.interval.ms": "100",
        "log.flush.start.offset.checkpoint.interval.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.segment.delete.delay.ms": "0",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "1",
    }
    with EmbeddedBroker(overrides, data=original) as broker:
        mixed_load(broker)
        written = content(broker.bootstrap_servers)
        if end == "killed":
            broker.kill()
    counts = {topic: len(written[topic]) for topic in TOPICS if topic != "large"}  # type: ignore[arg-type]  # lists
    total = PER_CODEC * len(CODECS)
    assert counts == {
        "plain": total, "table": 50, "cut": total - CUT_AT, "stamped": total, "old": 0,
        "transactions": total // 2,
    }  # fmt: skip
    # A thread of the killed broker may still rename a checkpoint it has written.
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.tmp"))
    if end == "stopped":
        for name in ("d1", "d2"):
            assert complaints(original / name) == []
        check_decoders(original)
    with kafka(copy, controller_port) as bootstrap:
        assert content(bootstrap) == written
        for codec in CODECS:  # but into nothing that retention would take away at any moment
            write(bootstrap, codec, TOPICS.keys() - {"large", "old"})
        written = content(bootstrap)
    for name in ("d1", "d2"):
        assert [i for i in verify_folder(copy / name, records=True) if isinstance(i, Problem)] == []
    check_decoders(copy)
    overrides["log.dirs"] = f"{copy / 'd1'},{copy / 'd2'}"
    with EmbeddedBroker(overrides, data=copy) as broker:
        assert content(broker.bootstrap_servers) == written
