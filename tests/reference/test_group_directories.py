"""Apache Kafka 4.3.1 reads what kbroker wrote about groups; it carries on with kbroker's groups and
kbroker with its: a classic group, a consumer group, and one in the middle of its migration, with
members that stay.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from scripts.kafka_jars import broker_class_path
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.reference.test_log_dirs import answers

pytestmark = [
    pytest.mark.reference,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 4
TOOLS = "org.apache.kafka.tools.consumer"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
}
CONSUMER = {"group.protocol": "consumer"}
CLASSIC = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 500}
GROUPS = {"old": [CLASSIC, CLASSIC], "new": [CONSUMER, CONSUMER], "mixed": [CLASSIC, CONSUMER]}


def tool(main_class: str, *arguments: str) -> str:
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", broker_class_path()]
    done = subprocess.run(
        [*command, main_class, *arguments], capture_output=True, text=True, timeout=90
    )
    assert "Exception" not in done.stderr, done.stderr
    return done.stdout


def epoch_of(bootstrap: str, group: str) -> int:
    """The group's epoch as Kafka's tool shows it: it rises whenever something has changed."""
    command = ("--describe", "--state", "--verbose", "--group", group)
    table = tool(f"{TOOLS}.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap, *command)
    header, row = (line for line in table.splitlines() if line.strip())
    return int(row.split()[header.split().index("GROUP-EPOCH")])


class Members:
    """Members of all groups, polled in turn from this thread; they commit what they read."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members: dict[str, list[Consumer]] = {name: [] for name in GROUPS}
        self.read: dict[str, list[bytes]] = {name: [] for name in GROUPS}
        self.sent = 0

    def join(self, group: str, settings: dict[str, object]) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        consumer.subscribe(["t"])
        self.members[group].append(consumer)

    def produce(self, count: int = 40) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for number in range(self.sent, self.sent + count):
            producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        self.sent += count

    def poll_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        def step() -> bool:
            for group, members in self.members.items():
                for member in members:
                    message = member.poll(0.01)
                    if message is not None and message.error() is None:
                        self.read[group].append(message.value())
            return condition()

        wait_until(step, timeout_s, what)

    def are_settled(self) -> bool:
        """In each group all was read, and each partition is with one member."""
        for group, members in self.members.items():
            owned = sorted(place.partition for m in members for place in m.assignment())
            if owned != list(range(PARTITIONS)) or len(set(self.read[group])) != self.sent:
                return False
        return True

    def close(self) -> None:
        for members in self.members.values():
            for member in members:
                member.close()


def kbroker(folder: Path, port: int, controller_port: int) -> BrokerProcess:
    overrides = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
    return BrokerProcess(folder, overrides=overrides)


@contextmanager
def groups_at_work(folder: Path, port: int, controller_port: int) -> Iterator[Members]:
    """Groups whose broker is dead; what it wrote is in the folder."""
    with kbroker(folder, port, controller_port) as broker:
        members = Members(broker.bootstrap_servers)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(10)
        members.produce()
        for group, kinds in GROUPS.items():
            for settings in kinds:
                members.join(group, settings)
        members.poll_until(members.are_settled, "the groups at kbroker")
        yield members


def test_kafkas_tools_read_the_records(tmp_path: Path) -> None:
    with groups_at_work(tmp_path / "data", free_port(), free_port()) as members:
        bootstrap = ("--bootstrap-server", members.bootstrap)
        reading = (*bootstrap, "--topic", "__consumer_offsets", "--from-beginning")
        ending = ("--timeout-ms", "6000", "--formatter")
        console = f"{TOOLS}.ConsoleConsumer"
        offsets = tool(console, *reading, *ending, f"{TOOLS}.OffsetsMessageFormatter")
        for group in GROUPS:
            assert f'"group":"{group}","topic":"t"' in offsets
        metadata = tool(console, *reading, *ending, f"{TOOLS}.GroupMetadataMessageFormatter")
        assert '"group":"old"' in metadata
        assert '"protocolType":"consumer"' in metadata
        described = tool(
            f"{TOOLS}.group.ConsumerGroupCommand",
            *(*bootstrap, "--describe", "--all-groups", "--members", "--verbose"),
        )
        assert all(f"\n{group} " in described for group in GROUPS)
        members.close()


def test_either_broker_carries_on_with_the_others_groups(tmp_path: Path) -> None:
    folder, port, controller_port = tmp_path / "data", free_port(), free_port()
    with groups_at_work(folder, port, controller_port) as members:
        before = {group: len(read) for group, read in members.read.items()}
        # Of "new" only: a classic client whose broker is away for long begins anew by itself.
        epoch = epoch_of(members.bootstrap, "new")
    kafka = ApacheKafka(folder, overrides=SETTINGS, controller_port=controller_port)
    kafka.port = port
    with kafka:
        wait_until(lambda: answers(kafka.bootstrap_servers), 60, "Kafka is unfenced")
        members.produce()
        members.poll_until(members.are_settled, "the groups at Kafka", 90)
        for group, read in members.read.items():
            assert len(read) - before[group] <= 40 + 40, "it began anew"
        assert members.read["old"].count(b"0") == 1, "what was committed is known"
        assert epoch_of(kafka.bootstrap_servers, "new") == epoch, "it assigned anew"
    with kbroker(folder, port, controller_port) as broker:
        members.produce()
        members.poll_until(members.are_settled, "the groups at kbroker again", 90)
        assert epoch_of(broker.bootstrap_servers, "new") == epoch, "it assigned anew"
        members.close()
