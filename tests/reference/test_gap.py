"""A closed segment that lost its end, with a sound one behind it: Apache Kafka and kbroker make the
same of it (docs/adr/0014).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.storage import names
from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.checkpoint import write_offsets
from kbroker.model import TopicPartition
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from scripts.apache_kafka import ApacheKafka
from spark_jobs.java import java_problem
from tests.log.crash_truth import read_all
from tests.own_threads import own_threads
from tests.reference.test_directories import read

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

SEGMENT_BYTES = 1 << 20
RECORDS, VALUE_BYTES = 40, 100_000
TOPICS = ("between", "within")


def write(bootstrap: str) -> None:
    """Four segments of ten batches into each topic."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"segment.bytes": str(SEGMENT_BYTES)}
    topics = [NewTopic(name, 1, 1, config=config) for name in TOPICS]
    for future in admin.create_topics(topics, operation_timeout=30).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "log_level": 0})
    for number in range(RECORDS):
        for topic in TOPICS:
            producer.produce(topic, bytes(VALUE_BYTES), key=b"%d" % number)
        assert producer.flush(30) == 0


def tear(data: Path) -> None:
    """The second segment loses its last three batches: all bytes of them, or all but some."""
    for topic in TOPICS:
        path = sorted((data / f"{topic}-0").glob(f"*{names.LOG}"))[1]
        sizes = [header.size_bytes for header, _ in read_batches(str(path), 0, SEGMENT_BYTES)]
        kept = sum(sizes[:-3]) + (1000 if topic == "within" else 0)
        with path.open("r+b") as file:
            file.truncate(kept)
    write_offsets(data / names.RECOVERY_POINTS, {TopicPartition(name, 0): 0 for name in TOPICS})


def test_a_hole_between_segments_stays_where_no_damage_shows_and_is_cut_where_it_does(
    tmp_path: Path,
) -> None:
    kafka = ApacheKafka(tmp_path / "data")
    try:
        write(kafka.start().bootstrap_servers)
        kafka.kill()
        tear(kafka.data)
        shutil.copytree(kafka.data, tmp_path / "copy")
        kafka.start()
        theirs = {
            topic: [row[0] for row in read(kafka.bootstrap_servers, topic)] for topic in TOPICS
        }
    finally:
        kafka.kill()
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path / "copy"), "node.id": "1"})
    manager = LogManager(config, now_ms=lambda: 0, random=Random(1), threads=own_threads)
    manager.load(lambda _: LogConfig())
    ours = {
        topic: [batch.base for batch in read_all(manager.logs[TopicPartition(topic, 0)])]
        for topic in TOPICS
    }
    manager.close(clean=False)
    assert ours == theirs
    hole = [7 + 10, 8 + 10, 9 + 10]

    assert theirs["between"] == [each for each in range(RECORDS) if each not in hole]
    assert theirs["within"] == list(range(17))
