"""kafka-reassign-partitions.sh of Apache Kafka 4.3.1 moves a partition with a throttle, which holds
what is copied to its rate and is taken away at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools
from tests.clients.process_cluster import ProcessCluster
from tests.clients.test_partition_tools import REASSIGNMENTS

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

TOPIC = "moved"
RECORDS, RECORD_BYTES = 600, 10_000
BYTES_PER_SECOND = 1_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ExitStack() as stack:
        yield ProcessCluster(tmp_path, stack, controllers=(7,), brokers=(1, 2))


def librdkafka(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap})


def throttles(bootstrap: str) -> set[str]:
    """Settings of throttles that stand, of both brokers and the topic."""
    from confluent_kafka.admin import ConfigResource

    admin, found = librdkafka(bootstrap), set()
    asked = [ConfigResource("broker", "1"), ConfigResource("broker", "2")]
    asked.append(ConfigResource("topic", TOPIC))
    for resource in asked:
        (future,) = admin.describe_configs([resource]).values()
        for name, entry in future.result(20).items():
            if "replication.throttled" in name and entry.value and entry.source in (1, 2):
                found.add(name)
    return found


def test_a_partition_moves_at_the_rate_of_its_throttle(
    cluster: ProcessCluster, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import NewTopic

    bootstrap = cluster.bootstrap
    created = NewTopic(TOPIC, 1, replica_assignment=[[1]])
    admin = librdkafka(bootstrap)
    admin.create_topics([created])[TOPIC].result(20)
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(RECORDS):
        producer.produce(TOPIC, bytes(RECORD_BYTES), partition=0)
    assert producer.flush(30) == 0
    plan = tmp_path / "plan.json"
    move = {"topic": TOPIC, "partition": 0, "replicas": [2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    tool = (REASSIGNMENTS, "--bootstrap-server", bootstrap, "--reassignment-json-file", str(plan))
    throttle = ("--throttle", str(BYTES_PER_SECOND))
    began = time.monotonic()
    executed = kafka_tools.output(*tool, "--execute", *throttle)
    assert f"The inter-broker throttle limit was set to {BYTES_PER_SECOND} B/s" in executed
    assert len(throttles(bootstrap)) == 4
    done = f"Reassignment of partition {TOPIC}-0 is completed."
    while done not in (verified := kafka_tools.output(*tool, "--verify")):
        assert time.monotonic() < began + 200, verified
        time.sleep(0.5)
    least_s = RECORDS * RECORD_BYTES / BYTES_PER_SECOND
    assert time.monotonic() - began > 0.6 * least_s, "the first answer is a megabyte at once"
    assert "Clearing broker-level throttles on brokers 1,2" in verified
    assert throttles(bootstrap) == set()
