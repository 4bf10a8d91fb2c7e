"""A group of many clients that come, go and crash while the broker restarts: all records are read,
no partition is with two members at once, and the group settles.

Each member is a process. Who has a partition is what the members say they were given and what was
taken from them; one that is killed has nothing from then on.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.testing.process import BrokerProcess
from scripts.kafka_jars import tools_class_path
from spark_jobs.java import java_problem

pytestmark = pytest.mark.clients

PARTITIONS = 12
TOPIC, GROUP = "churned", "churners"
OVERRIDES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.assignment.interval.ms": "100",
    "log.retention.ms": "-1",
}
SCRIPT = Path(__file__).with_name("churn_member.py")
CLASSIC = ("session.timeout.ms=10000", "heartbeat.interval.ms=500")
JAVA_ASSIGNOR = "org.apache.kafka.clients.consumer.{}Assignor"

_numbers = count(1)

Command = Callable[[str], list[str]]
"""bootstrap -> how to start one member."""


def python_member(kind: str, *settings: str) -> Command:
    return lambda bootstrap: [
        *(sys.executable, str(SCRIPT), kind, bootstrap, GROUP, TOPIC),
        *settings,
    ]


def java_member(*options: str) -> Command:
    def command(bootstrap: str) -> list[str]:
        java = shutil.which("java")
        assert java is not None
        return [
            *(java, "-Xmx96m", "-XX:TieredStopAtLevel=1", "-cp", tools_class_path()),
            *("org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap),
            *("--topic", TOPIC, "--group-id", GROUP, "--reset-policy", "earliest", "--verbose"),
            *options,
        ]

    return command


def java_classic(assignor: str) -> Command:
    name = JAVA_ASSIGNOR.format(assignor)
    timeout = ("--session-timeout", "10000")
    return java_member("--group-protocol", "classic", "--assignment-strategy", name, *timeout)


class Member:
    """One process, and what it has said."""

    def __init__(self, command: list[str], watch: Callable[[Member, dict[str, Any]], None]) -> None:
        self.name = f"{next(_numbers)} {' '.join(command[-5:])}"
        self.owned: set[int] = set()
        self.alive = True
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._watch = watch
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            self._watch(self, said)

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        if "java" in self.process.args[0]:  # type: ignore[index]
            self.process.terminate()  # its shutdown hook leaves the group

    def kill(self) -> None:
        self.process.kill()

    def end(self, timeout_s: float = 20) -> None:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self._reader.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


class Churn:
    """A broker, its group, and what must hold of it at every moment."""

    def __init__(self, folder: Path, kinds: list[Command], seed: int) -> None:
        self.folder, self.kinds, self.random = folder, kinds, Random(seed)
        self.broker = BrokerProcess(folder, overrides=OVERRIDES)
        self.members: list[Member] = []
        self.seen: set[str] = set()
        self.sent: set[str] = set()
        self.doubled: list[str] = []
        self.events: list[str] = []
        """What happened, for whoever has to find out why a partition was with two."""
        self.owners: dict[int, Member] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        self.broker.start()
        self.bootstrap = self.broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(10)

    def heard(self, member: Member, said: dict[str, Any]) -> None:
        with self._lock:
            places = {place["partition"] for place in said.get("partitions", ())}
            if not said["name"].startswith("record"):
                self.note(f"{member.name}: {said['name']} {sorted(places)} {said['timestamp']}")
            match said["name"]:
                case "partitions_assigned" if member.alive and isinstance(said["partitions"], list):
                    for partition in places:
                        other = self.owners.get(partition, member)
                        if other is not member and other.alive:
                            place = f"{partition} at {said['timestamp']}"
                            self.doubled.append(f"{place}: {other.name} and {member.name}")
                        self.owners[partition] = member
                    member.owned |= places
                case "partitions_revoked":
                    for partition in places:
                        if self.owners.get(partition) is member:
                            del self.owners[partition]
                    member.owned -= places
                case "stopping":  # it reads no more; not every client says so when it leaves
                    for partition in member.owned:
                        if self.owners.get(partition) is member:
                            del self.owners[partition]
                    member.alive = False
                case "records":
                    self.seen.update(said["values"])
                case "record_data":
                    self.seen.add(said["value"])

    def note(self, text: str) -> None:
        self.events.append(f"{time.time() * 1000:.0f} {text}")

    def join(self, kind: Command) -> None:
        self.members.append(Member(kind(self.bootstrap), self.heard))

    def replace(self, *, crash: bool) -> None:
        """One goes in order or at once, another one comes."""
        member = self.members.pop(self.random.randrange(len(self.members)))
        self.note(f"{member.name} {'crashes' if crash else 'leaves'}")
        if crash:
            member.kill()
            member.end()
            with self._lock:
                member.alive = False
                for partition in member.owned:
                    self.owners.pop(partition, None)
        else:
            member.leave()
            member.end()
            with self._lock:
                member.alive = False
        self.join(self.random.choice(self.kinds))

    def produce(self, count: int = 60) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        start = len(self.sent)
        for number in range(start, start + count):
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
            self.sent.add(str(number))
        assert producer.flush(30) == 0

    def restart(self) -> None:
        self.note("the broker restarts")
        self.broker.kill()
        listeners = f"PLAINTEXT://{self.bootstrap}"
        self.broker = BrokerProcess(self.folder, overrides={**OVERRIDES, "listeners": listeners})
        self.broker.start()

    def settle(self, timeout_s: float) -> None:
        """All partitions are with somebody, and all that was sent was read."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                whole = len(self.owners) == PARTITIONS and self.sent <= self.seen
                state = (sorted(self.owners), len(self.sent - self.seen))
            if whole:
                return
            assert time.monotonic() < deadline, f"owned, unread: {state}"
            time.sleep(0.05)

    def stop(self) -> None:
        for member in self.members:
            member.kill()
        for member in self.members:
            member.end()
        if self.broker.running:
            self.broker.kill()


def run(folder: Path, kinds: list[Command], *, size: int, rounds: int, seed: int) -> None:
    churn = Churn(folder / "data", kinds, seed)
    try:
        churn.start()
        for number in range(size):
            churn.join(kinds[number % len(kinds)])
        churn.produce()
        churn.settle(60)
        for number in range(rounds):
            churn.produce()
            churn.replace(crash=number % 3 == 1)
            if number % 4 == 2:
                churn.restart()
            churn.settle(60)
        assert not churn.doubled, "\n".join([*churn.events, *churn.doubled])
    finally:
        churn.stop()


def test_clients_of_python_come_and_go(tmp_path: Path) -> None:
    kinds = [
        python_member("librdkafka", "group.protocol=consumer"),
        python_member("librdkafka", *CLASSIC, "partition.assignment.strategy=range"),
        python_member("aiokafka"),
        python_member("kafka-python"),
    ]
    run(tmp_path, kinds, size=4, rounds=1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
@pytest.mark.parametrize("protocol", ["consumer", "range", "cooperative"])
def test_ten_members_of_all_clients(tmp_path: Path, protocol: str) -> None:
    """Classic members have to have a protocol in common, so there is more than one group."""
    consumers = [
        python_member("librdkafka", "group.protocol=consumer"),
        java_member("--group-protocol", "consumer"),
    ]
    eager = [
        python_member("librdkafka", *CLASSIC, "partition.assignment.strategy=range"),
        python_member("aiokafka"),
        python_member("kafka-python"),
        java_classic("Range"),
    ]
    cooperative = [
        python_member("librdkafka", *CLASSIC, "partition.assignment.strategy=cooperative-sticky"),
        java_classic("CooperativeSticky"),
    ]
    kinds = {"range": eager, "cooperative": cooperative, "consumer": consumers}[protocol]
    run(tmp_path, kinds, size=10, rounds=8, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
@pytest.mark.parametrize("assignor", ["RoundRobin", "Sticky"])
def test_java_members_of_other_assignors(tmp_path: Path, assignor: str) -> None:
    run(tmp_path, [java_classic(assignor)], size=4, rounds=3, seed=3)
