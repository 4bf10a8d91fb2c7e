"""Share groups (KIP-932) as Apache Kafka 4.3.1's own share consumer and tools see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


def produce(bootstrap: str, topic: str, values: range) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value).encode())
        if value % 50 == 49:
            producer.flush(10)
    assert producer.flush(10) == 0


def read_from_the_start(bootstrap: str, group: str) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    operation = AlterConfigOpType.SET
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=operation)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(10)


def consume(
    kafka_tools: KafkaTools, bootstrap: str, topic: str, group: str, count: int, *more: str
) -> list[str]:
    where = ("--bootstrap-server", bootstrap, "--topic", topic, "--group", group)
    how_much = ("--max-messages", str(count), "--timeout-ms", "60000")
    return kafka_tools.output(CONSUMER, *where, *how_much, *more).split()


def tool(kafka_tools: KafkaTools, bootstrap: str, *arguments: str) -> list[list[str]]:
    """The lines of the tool for share groups, as words."""
    printed = kafka_tools.output(GROUPS, "--bootstrap-server", bootstrap, *arguments)
    return [line.split() for line in printed.splitlines() if line.strip()]


def test_two_consumers_share_a_partition_and_a_third_goes_on(
    kafka_tools: KafkaTools, bootstrap: str, new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("shared"), new_name("share")
    produce(bootstrap, topic, range(1_000))
    read_from_the_start(bootstrap, group)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(consume, kafka_tools, bootstrap, topic, group, 300) for _ in range(2)]
        read = [value for one in both for value in one.result()]
    assert len(read) == 600
    read += consume(kafka_tools, bootstrap, topic, group, 400)
    assert Counter(read) == Counter(str(value) for value in range(1_000))
    assert [group] in tool(kafka_tools, bootstrap, "--list")
    (row,) = [
        row
        for row in tool(kafka_tools, bootstrap, "--describe", "--group", group)
        if row[0] == group
    ]
    assert row[-1] == "0", "a lag where all is read"


@pytest.mark.slow
def test_rejected_and_released_records(
    kafka_tools: KafkaTools, bootstrap: str, new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("refused"), new_name("share")
    produce(bootstrap, topic, range(10))
    read_from_the_start(bootstrap, group)
    assert consume(kafka_tools, bootstrap, topic, group, 10, "--release") == [
        str(n) for n in range(10)
    ]
    again = consume(
        kafka_tools, bootstrap, topic, group, 10, "--formatter-property", "print.delivery=true"
    )
    assert "Delivery:2" in " ".join(again)
    produce(bootstrap, topic, range(10, 20))
    assert len(consume(kafka_tools, bootstrap, topic, group, 10, "--reject")) == 10
    produce(bootstrap, topic, range(20, 21))
    assert consume(kafka_tools, bootstrap, topic, group, 1) == ["20"]


def test_offsets_are_reset_and_groups_deleted(
    kafka_tools: KafkaTools, bootstrap: str, new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("reset"), new_name("share")
    produce(bootstrap, topic, range(20))
    read_from_the_start(bootstrap, group)
    consume(kafka_tools, bootstrap, topic, group, 20)
    which = ("--group", group, "--topic", topic)
    tool(kafka_tools, bootstrap, "--reset-offsets", *which, "--to-earliest", "--execute")
    assert consume(kafka_tools, bootstrap, topic, group, 20) == [str(n) for n in range(20)]
    tool(kafka_tools, bootstrap, "--delete-offsets", "--group", group, "--topic", topic)
    rows = tool(kafka_tools, bootstrap, "--describe", "--group", group)
    assert not [row for row in rows if row[0] == group]
    tool(kafka_tools, bootstrap, "--delete", "--group", group)
    assert [group] not in tool(kafka_tools, bootstrap, "--list")


@pytest.mark.slow
def test_a_killed_broker_forgets_no_acknowledgement(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    """kill -9 between consumers: what was acknowledged does not come again, the rest does."""
    overrides = {"group.share.record.lock.duration.ms": "15000", "log.retention.ms": "-1"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        produce(broker.bootstrap_servers, "t", range(400))
        read_from_the_start(broker.bootstrap_servers, "g")
        read: list[str] = []
        for _ in range(4):
            read += consume(kafka_tools, broker.bootstrap_servers, "t", "g", 100)
            broker.kill()
            broker.start()
        assert Counter(read) == Counter(str(value) for value in range(400))
        rows = tool(kafka_tools, broker.bootstrap_servers, "--describe", "--group", "g")
        assert [row[-1] for row in rows if row[0] == "g"] == ["0"]
