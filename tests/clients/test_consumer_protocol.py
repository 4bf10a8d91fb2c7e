"""Consumer groups of KIP-848 with those who speak it: librdkafka and Kafka's own tools."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = pytest.mark.clients

needs_java = pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
PARTITIONS = 6
OVERRIDES = {
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "4000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.assignment.interval.ms": "0",
    "log.retention.ms": "-1",
}

CRASHER = """
import sys
from confluent_kafka import Consumer
one = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "group.protocol": "consumer"})
one.subscribe(["t"])
while True:
    one.poll(0.1)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("consumers") / "data", overrides=OVERRIDES) as one:
        yield one


class Group:
    """Members of one group, polled in turn from this thread."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.members: list[Consumer] = []
        self.values: set[bytes] = set()

    def join(self, **settings: Any) -> Consumer:
        member = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "log_level": 0,
                **settings,
            }
        )
        member.subscribe([self.topic])
        self.members.append(member)
        return member

    def poll_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, what
            for member in self.members:
                message = member.poll(0.02)
                if message is not None and message.error() is None:
                    self.values.add(message.value())

    def shared(self) -> bool:
        """Each partition has exactly one owner, and no member is idle."""
        owned = [[place.partition for place in member.assignment()] for member in self.members]
        places = sorted(partition for partitions in owned for partition in partitions)
        return places == list(range(PARTITIONS)) and all(owned)

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.members.clear()


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(10)


def produce(bootstrap: str, topic: str, values: range) -> set[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in values:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(10) == 0
    return {b"%d" % number for number in values}


def test_members_join_leave_crash_and_the_broker_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        create(broker.bootstrap_servers, "t")
        sent = produce(broker.bootstrap_servers, "t", range(60))
        group = Group(broker.bootstrap_servers, "g", "t")
        for _ in range(3):
            group.join()
        group.poll_until(lambda: group.shared() and group.values == sent, "three members")
        group.members.pop().close()
        group.poll_until(group.shared, "one left")
        group.join()
        group.poll_until(group.shared, "one came back")
        with subprocess.Popen([sys.executable, "-c", CRASHER, broker.bootstrap_servers]) as other:
            group.poll_until(lambda: not group.shared(), "a fourth member")
            other.kill()
        group.poll_until(group.shared, "the session of the one that crashed ends")
        broker.kill()
        port = broker.port
        again = BrokerProcess(
            tmp_path / "data",
            overrides={**OVERRIDES, "listeners": f"PLAINTEXT://127.0.0.1:{port}"},
        )
        with again:
            sent |= produce(again.bootstrap_servers, "t", range(60, 120))
            group.poll_until(lambda: group.shared() and group.values == sent, "after the restart")
            group.close()


def test_static_members_and_commits(broker: BrokerProcess) -> None:
    bootstrap = broker.bootstrap_servers
    create(bootstrap, "static")
    sent = produce(bootstrap, "static", range(30))
    group = Group(bootstrap, "static-g", "static")
    group.join(**{"group.instance.id": "one"})
    group.join(**{"group.instance.id": "two"})
    group.poll_until(lambda: group.shared() and group.values == sent, "two static members")
    before = {place.partition for place in group.members[0].assignment()}
    group.members.pop(0).close()
    group.members.insert(0, group.join(**{"group.instance.id": "one"}))
    group.members.pop()
    group.poll_until(group.shared, "one is back")
    assert {place.partition for place in group.members[0].assignment()} == before
    places = [TopicPartition("static", number) for number in range(PARTITIONS)]
    committed = {place.partition: place.offset for place in group.members[0].committed(places)}
    assert all(committed[number] == 5 for number in before)
    group.close()


def test_what_was_committed_is_read_back(broker: BrokerProcess) -> None:
    """With its note and leader epoch, by another consumer."""
    bootstrap = broker.bootstrap_servers
    create(bootstrap, "notes")
    settings = {"bootstrap.servers": bootstrap, "group.id": "notes-g", "log_level": 0}
    note = TopicPartition("notes", 1, 7, metadata="as far as \u00fcbung", leader_epoch=0)
    writer = Consumer(settings)
    writer.commit(offsets=[note], asynchronous=False)
    writer.close()
    reader = Consumer(settings)
    (found,) = reader.committed([TopicPartition("notes", 1)], 20)
    reader.close()
    assert (found.offset, found.metadata, found.leader_epoch) == (7, note.metadata, 0)


CLASSIC = {"group.protocol": "classic", "heartbeat.interval.ms": 300, "session.timeout.ms": 6000}


def kind_of(bootstrap: str, group: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_groups().result(10).valid
    (kind,) = [one.type for one in found if one.group_id == group]
    return kind


@pytest.mark.parametrize("strategy", ["range,roundrobin", "cooperative-sticky"])
def test_a_group_is_rolled_to_the_consumer_protocol_and_back(
    broker: BrokerProcess, strategy: str
) -> None:
    bootstrap = broker.bootstrap_servers
    topic = f"rolled-{strategy.partition(',')[0]}"
    create(bootstrap, topic)
    classic = {**CLASSIC, "partition.assignment.strategy": strategy}
    group = Group(bootstrap, f"{topic}-g", topic)
    sent: set[bytes] = set()

    def settled(what: str) -> None:
        start = len(sent)
        sent.update(produce(bootstrap, topic, range(start, start + 12)))
        group.poll_until(lambda: group.shared() and group.values == sent, what)

    group.join(**classic)
    group.join(**classic)
    settled("two classic members")
    assert kind_of(bootstrap, group.group) is ConsumerGroupType.CLASSIC
    kinds = []
    for settings in ({}, {}, classic, classic):
        group.members.pop(0).close()
        group.join(**settings)
        settled(f"a member changed to {settings}")
        kinds.append(kind_of(bootstrap, group.group))
    assert kinds == [ConsumerGroupType.CONSUMER] * 3 + [ConsumerGroupType.CLASSIC]
    group.close()


@needs_java
def test_kafkas_tools(broker: BrokerProcess, kafka_tools: KafkaTools) -> None:
    """The console consumer reads as a member, ConsumerGroupCommand sees and ends both kinds."""
    bootstrap = ("--bootstrap-server", broker.bootstrap_servers)
    create(broker.bootstrap_servers, "tools")
    sent = produce(broker.bootstrap_servers, "tools", range(12))
    printed = kafka_tools.output(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*bootstrap, "--include", "too.*", "--from-beginning", "--group", "java"),
        *("--max-messages", "12", "--timeout-ms", "20000"),
        *("--command-property", "group.protocol=consumer"),
    )
    assert {line.encode() for line in printed.split()} == sent
    group = Group(broker.bootstrap_servers, "new", "tools")
    group.join(**{"client.id": "rd"})
    classic = Group(broker.bootstrap_servers, "old", "tools")
    classic.join(**{"client.id": "rd", "group.protocol": "classic"})
    group.poll_until(lambda: group.shared() and group.values == sent, "consumer")
    classic.poll_until(lambda: classic.shared() and classic.values == sent, "classic")
    commands = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    described = kafka_tools.output(
        commands, *bootstrap, "--describe", "--all-groups", "--members", "--verbose"
    )
    rows = {line.split()[0]: line for line in described.splitlines() if " rd " in line}
    assert rows.keys() == {"new", "old"}
    group.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    ended = admin.delete_consumer_groups(["new", "java"])
    assert all(future.result(10) is None for future in ended.values())
    listed = admin.list_consumer_groups().result(10).valid
    kinds = {found.group_id: (found.type, found.state) for found in listed}
    assert kinds["old"] == (ConsumerGroupType.CLASSIC, ConsumerGroupState.STABLE)
    assert not {"new", "java"} & kinds.keys()
    classic.close()
