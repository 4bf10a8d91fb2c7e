"""A group of many clients, each a process of its own, and the broker under it; what the clients say
about their partitions, and how it is judged.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol.messages.coordinators.groups import ListGroupsRequest, ListGroupsResponse
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from scripts.kafka_jars import tools_class_path
from tests.clients.group_history import GroupHistory, history_of
from tests.e2e.wire import call

PARTITIONS = 12
TOPIC, GROUP = "churned", "churners"
SESSION_TIMEOUT_MS = 10_000
REBALANCE_TIMEOUT_MS = 30_000
OVERRIDES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.assignment.interval.ms": "100",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}
START_TIMEOUT_S = 90
STALL_MS = 2_000
"""A machine that stood still for so long may have let sessions end that no client gave up."""
SCRIPT = Path(__file__).with_name("churn_member.py")
CLASSIC = (
    f"session.timeout.ms={SESSION_TIMEOUT_MS}",
    "heartbeat.interval.ms=500",
    f"max.poll.interval.ms={REBALANCE_TIMEOUT_MS}",
)
RECONNECT = "reconnect.backoff.max.ms=1000"
"""As in the Java client. With the defaults of others (10 s, 30 s) a client may sleep longer after a
restart of the broker than its session lasts.
"""
JAVA_ASSIGNOR = "org.apache.kafka.clients.consumer.{}Assignor"


class Server(Protocol):
    """A broker in a process of its own, on a port that a second start takes again."""

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> object: ...
    def stop(self) -> object: ...


def make_server(folder: Path, overrides: Mapping[str, str]) -> Server:
    """kbroker; with KBROKER_TEST_APACHE=1 a real Apache Kafka, to compare with."""
    if os.environ.get("KBROKER_TEST_APACHE"):
        return ApacheKafka(folder, overrides=overrides)
    return BrokerProcess(folder, overrides=overrides)


# -- how to start a member ------------------------------------------------------------------------

Command = Callable[[str, str, Path], list[str]]
"""(bootstrap, client id, an empty folder) -> how to start one member."""


def librdkafka_consumer() -> Command:
    timeout = f"max.poll.interval.ms={REBALANCE_TIMEOUT_MS}"
    return _python("librdkafka", RECONNECT, timeout, "group.protocol=consumer")


def aiokafka(assignor: str) -> Command:
    return _python("aiokafka", f"assignor={assignor}", *CLASSIC)


def kafka_python(assignor: str) -> Command:
    return _python("kafka-python", f"assignor={assignor}", RECONNECT, *CLASSIC)


def librdkafka_classic(assignor: str) -> Command:
    return _python("librdkafka", RECONNECT, *CLASSIC, f"partition.assignment.strategy={assignor}")


def _python(kind: str, *settings: str) -> Command:
    return lambda bootstrap, client_id, _: [
        *(sys.executable, str(SCRIPT), kind, bootstrap, GROUP, TOPIC),
        *(f"client.id={client_id}", *settings),
    ]


def java(*options: str, **properties: str) -> Command:
    """Kafka's VerifiableConsumer; more properties with underscores in place of dots."""

    def command(bootstrap: str, client_id: str, folder: Path) -> list[str]:
        executable = shutil.which("java")
        assert executable is not None
        config = folder / f"{client_id}.properties"
        values = {"max_poll_interval_ms": str(REBALANCE_TIMEOUT_MS), **properties}
        lines = [f"{name.replace('_', '.')}={value}\n" for name, value in values.items()]
        config.write_text(f"client.id={client_id}\n" + "".join(lines))
        return [
            *(executable, "-Xmx96m", "-XX:TieredStopAtLevel=1", "-cp", tools_class_path()),
            *("org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap),
            *("--topic", TOPIC, "--group-id", GROUP, "--reset-policy", "earliest", "--verbose"),
            *("--command-config", str(config), *options),
        ]

    return command


def java_consumer() -> Command:
    return java("--group-protocol", "consumer")


def java_classic(assignor: str) -> Command:
    name = JAVA_ASSIGNOR.format(assignor)
    options = ("--group-protocol", "classic", "--assignment-strategy", name)
    timeout = ("--session-timeout", str(SESSION_TIMEOUT_MS))
    return java(*options, *timeout, heartbeat_interval_ms="500")


# -- what members say -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """partitions None: its end, also of all that it had."""

    at_ms: int
    client_id: str
    kind: str
    partitions: frozenset[int] | None


@dataclass(frozen=True)
class Double:
    """A partition that went to a client while another one, which has it since then, still had it
    by what it says.
    """

    partition: int
    at_ms: int
    client_id: str
    other: str
    since_ms: int

    def is_of_former_member(self, history: GroupHistory) -> bool:
        """Whether the other one was put out of the group and has not heard of it yet."""
        return history.departed(self.other, self.since_ms, self.at_ms)


def in_order(said: Sequence[Said]) -> list[Said]:
    """By the clocks of those who say it: what they say comes late by the time that their pipes are
    read. In one millisecond who gives back comes first, but not before it is given what it gives
    back: each client's own order is kept.
    """
    at: dict[int, list[Said]] = {}
    for one in said:
        at.setdefault(one.at_ms, []).append(one)
    ordered: list[Said] = []
    for _, together in sorted(at.items()):
        last = {one.client_id: one.kind for one in together}
        turns: tuple[list[Said], ...] = ([], [], [])
        given: set[str] = set()
        for one in together:
            if one.kind == "assigned":
                given.add(one.client_id)
            turn = 0 if one.client_id not in given else 1 + (last[one.client_id] == "assigned")
            turns[turn].append(one)
        ordered += chain.from_iterable(turns)
    return ordered


def doubles_of(said: Sequence[Said]) -> list[Double]:
    """Partitions that two had at once, by what they say."""
    owners: dict[int, dict[str, int]] = {n: {} for n in range(PARTITIONS)}
    doubles: list[Double] = []
    for one in in_order(said):
        for partition, holders in owners.items():
            if one.partitions is not None and partition not in one.partitions:
                continue
            if one.kind == "assigned":
                doubles += [
                    Double(partition, one.at_ms, one.client_id, other, since_ms)
                    for other, since_ms in holders.items()
                    if other != one.client_id
                ]
                holders.setdefault(one.client_id, one.at_ms)
            else:
                holders.pop(one.client_id, None)
    return doubles


class Member:
    """One process, and what it has said."""

    _numbers = count(1)

    def __init__(
        self,
        command: Command,
        bootstrap: str,
        folder: Path,
        watch: Callable[[Member, dict[str, Any]], None],
    ) -> None:
        self.client_id = f"client-{next(self._numbers)}"
        words = command(bootstrap, self.client_id, folder)
        self.is_java = "java" in words[0]
        self.name = f"{self.client_id} {' '.join(words[-4:])}"
        self.speaks_early = not self.is_java and "group.protocol=consumer" in words
        """librdkafka 2.16 may tell the coordinator that it has nothing while its first assignment
        is on its way to the application. It is taken at its word: what the next target does not
        leave it goes to others. Seen with Apache Kafka 4.3.1.
        """
        self.owned: set[int] = set()
        self.has_started = False
        self.process = subprocess.Popen(
            words,
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
        if self.is_java:
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


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Churn:
    """A broker, its group, and all that they said."""

    def __init__(self, folder: Path, kinds: Sequence[Command], seed: int) -> None:
        self.data, self.files = folder / "data", folder / "files"
        self.files.mkdir(parents=True)
        self.kinds, self.random = kinds, Random(seed)
        self.broker = make_server(self.data, OVERRIDES)
        self.members: list[Member] = []
        self.seen: set[str] = set()
        self.sent: set[str] = set()
        self.said: list[Said] = []
        self.events: list[str] = []
        """What happened, to find out why a partition had two owners."""
        self.stalls: list[int] = []
        self.early: set[str] = set()
        """Client ids of those that speak early."""
        self.fault_at = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._watch_clock, daemon=True)

    def start(self) -> None:
        self.broker.start()
        self._clock.start()
        self.bootstrap = self.broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)

    def _watch_clock(self) -> None:
        before = now_ms()
        while not self._over.wait(0.05):
            after = now_ms()
            if after - before > STALL_MS:
                self.stalls.append(after)
                self.note(f"the machine stood still for {after - before} ms")
            before = after

    def heard(self, member: Member, said: dict[str, Any]) -> None:
        name, at_ms = said["name"], said["timestamp"]
        with self._lock:
            match name:
                case "records":
                    self.seen.update(said["values"])
                    return
                case "record_data":
                    self.seen.add(said["value"])
                    return
                case "partitions_assigned":
                    places = frozenset(place["partition"] for place in said["partitions"])
                    self.said.append(Said(at_ms, member.client_id, "assigned", places))
                    member.owned |= places
                case "partitions_revoked":
                    places = frozenset(place["partition"] for place in said["partitions"])
                    self.said.append(Said(at_ms, member.client_id, "revoked", places))
                    member.owned -= places
                case "startup" | "startup_complete":  # a JVM needs its time until it joins
                    member.has_started = True
                    self.fault_at = time.monotonic()
                case "stopping":  # it reads no more; not every client says so when it leaves
                    self.said.append(Said(at_ms, member.client_id, "ended", None))
                    member.owned.clear()
            if name != "records_consumed":
                places = frozenset(p["partition"] for p in said.get("partitions", ()))
                self.note(f"{member.name}: {name} {sorted(places)} {said.get('error', '')} {at_ms}")

    def note(self, text: str) -> None:
        self.events.append(f"{now_ms()} {text}")

    def join(self, kind: Command) -> None:
        member = Member(kind, self.bootstrap, self.files, self.heard)
        self.members.append(member)
        if member.speaks_early:
            self.early.add(member.client_id)

    def replace(self, member: Member, kind: Command, *, crash: bool) -> None:
        """It goes in order or at once, another one comes."""
        self.members.remove(member)
        self.note(f"{member.name} {'crashes' if crash else 'leaves'}")
        at_ms = now_ms()
        if crash:
            member.kill()
        else:
            member.leave()
        member.end()
        with self._lock:
            self.said.append(Said(at_ms if crash else now_ms(), member.client_id, "ended", None))
            member.owned.clear()
        self.join(kind)
        self.fault_at = time.monotonic()

    def replace_any(self, *, crash: bool) -> None:
        member = self.random.choice(self.members)
        self.replace(member, self.random.choice(self.kinds), crash=crash)

    def produce(self, count: int = 60) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        start = len(self.sent)
        for number in range(start, start + count):
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
            with self._lock:
                self.sent.add(str(number))
        assert producer.flush(60) == 0

    @contextmanager
    def records_flow(self) -> Iterator[None]:
        """A few records to each partition, again and again, until the block ends."""
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:

            def flow() -> None:
                while not over.wait(0.1):
                    self.produce(PARTITIONS)

            flowing = pool.submit(flow)
            try:
                yield
            finally:
                over.set()
        flowing.result()

    def restart(self) -> None:
        self.note("the broker restarts")
        self.broker.kill()
        self.broker.start()
        self.fault_at = time.monotonic()

    def cover(self) -> float:
        """Wait until all partitions have an owner and all records that were sent are read. Gives
        the seconds since the last member left, crashed or started. A crash may not have been
        noticed yet: it keeps the next fault company.
        """
        return self._await("covered", lambda: self._is_covered())

    def settle(self) -> float:
        """As `cover`, until every member has a partition and the coordinator calls the group
        stable.
        """
        return self._await("settled", lambda: self._is_covered(whole=True) and self._is_stable())

    def _await(self, name: str, is_there: Callable[[], bool]) -> float:
        """For as long as a rebalance may take, and no longer, once all have started."""
        all_started = time.monotonic() + START_TIMEOUT_S
        while not is_there():
            passed = time.monotonic() - self.fault_at
            is_late = passed > REBALANCE_TIMEOUT_MS / 1000
            if is_late and (self._have_started() or time.monotonic() > all_started):
                raise AssertionError(f"not {name}: {self._state()}")
            time.sleep(0.05)
        passed = time.monotonic() - self.fault_at
        self.note(f"{name} after {passed:.1f} s")
        return passed

    def _have_started(self) -> bool:
        with self._lock:
            return all(member.has_started for member in self.members)

    def _is_covered(self, *, whole: bool = False) -> bool:
        with self._lock:
            owned = [partition for member in self.members for partition in member.owned]
            is_with_all = not whole or all(member.owned for member in self.members)
            return is_with_all and set(owned) == set(range(PARTITIONS)) and self.sent <= self.seen

    def _is_stable(self) -> bool:
        return [group.group_state for group in self._groups()] == ["Stable"]

    def group_type(self) -> str:
        """As tools are told it."""
        (group,) = self._groups()
        return str(group.group_type)

    def _groups(self) -> list[ListGroupsResponse.ListedGroup]:
        host, port = self.bootstrap.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            listed: Any = call(connection, ListGroupsRequest(), 5)
        groups: list[ListGroupsResponse.ListedGroup] = listed.groups
        return groups

    def _state(self) -> str:
        with self._lock:
            owned = {
                member.name: sorted(member.owned) if member.process.poll() is None else "is dead"
                for member in self.members
            }
            return "\n".join([*self.events[-200:], f"unread {self.sent - self.seen}", str(owned)])

    def judge(self) -> tuple[list[str], int]:
        """What must not be: partitions with two members of the group at once, by what the clients
        say or by the log of the group. And how many were with a client that was a member no more
        but had not heard of it (Kafka promises nothing about those, but they come only where the
        machine stood still for long), or that had given back what it was just getting.
        """
        first: dict[str, int] = {}
        for said in self.said:
            if said.kind == "assigned" and said.partitions:
                first.setdefault(said.client_id, said.at_ms)
        history = history_of(self.data, GROUP)
        assert history.batches, "there is no log of the group"
        wrong, excused = list(history.overlaps), 0
        for double in doubles_of(self.said):
            is_former = double.is_of_former_member(history)
            is_early = double.other in self.early and double.since_ms == first[double.other]
            if is_early or (is_former and self._stood_still_before(double.at_ms)):
                excused += 1
            else:
                wrong.append(str(double))
        return wrong, excused

    def _stood_still_before(self, at_ms: int) -> bool:
        return any(at_ms - 2 * SESSION_TIMEOUT_MS < stall <= at_ms for stall in self.stalls)

    def end(self) -> None:
        """All members are killed; the broker stops in order, so that its log is whole."""
        self._over.set()
        for member in self.members:
            member.kill()
        for member in self.members:
            member.end()
        self.broker.stop()
