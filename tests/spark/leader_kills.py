"""A cluster whose leaders are killed one after the other, and a producer that writes meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.model import TopicPartition
from scripts.ports import free_port
from tests.clients.adapters import wait_until
from tests.clients.process_cluster import node_process, voters_of
from tests.cluster.cluster import SETTINGS
from tests.cluster.confluent_load import COMMON

NODES: Final = (1, 2, 3)
ROUND_TIMEOUT_S: Final = 60.0
"""For an election, and for a node's return into all ISRs."""
LOOK_TIMEOUT_S: Final = 5.0
LOOK_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0
"""Before a kill and before the start of a killed node, so that they meet any moment of a batch."""
DELIVERY_TIMEOUT_MS: Final = 120_000
RECORDS_PER_S: Final = 300
TICK_S: Final = 0.02
MAX_UNACKNOWLEDGED: Final = 5_000
REPLICATED: Final[Mapping[str, str]] = {
    **SETTINGS,
    "process.roles": "broker,controller",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "4",
    # Leaders also move while both sides live: preferred ones are elected soon after their return.
    "leader.imbalance.check.interval.seconds": "4",
    "log.retention.ms": "-1",
}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """leader: node id, negative while there is none."""

    leader: int
    in_sync_replicas: frozenset[int]


Partitions = dict[TopicPartition, PartitionState]


class ReplicatedCluster:
    """Three nodes, each broker and controller, and a replica of every partition on each."""

    def __init__(self, folder: Path) -> None:
        ports = {number: (free_port(), free_port()) for number in NODES}
        voters = voters_of({number: controller for number, (_, controller) in ports.items()})
        self.bootstrap = ",".join(f"127.0.0.1:{broker}" for broker, _ in ports.values())
        self._nodes = {
            number: node_process(
                folder,
                number,
                {
                    **REPLICATED,
                    "listeners": f"PLAINTEXT://127.0.0.1:{broker},"
                    f"CONTROLLER://127.0.0.1:{controller}",
                    "controller.quorum.voters": voters,
                },
            )
            for number, (broker, controller) in ports.items()
        }
        self._admin = AdminClient({**COMMON, "bootstrap.servers": self.bootstrap})
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self._nodes.values():
                stack.callback(node.kill)
                node.launch()  # one alone has no quorum to start in
            wait_until(self._has_all_brokers, ROUND_TIMEOUT_S, "three brokers")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def create_topic(self, name: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(name, partitions, len(NODES))])[name].result(30)
        wait_until(lambda: self._has(name), ROUND_TIMEOUT_S, name)
        self.await_replicas()

    def kill(self, node_id: int) -> None:
        """kill -9."""
        self._nodes[node_id].kill()

    def start(self, node_id: int) -> None:
        """Start a killed node; it is not waited for."""
        self._nodes[node_id].launch()

    def partitions(self) -> Partitions:
        """Of all topics, internal ones too; empty if no broker answers."""
        try:
            topics = self._admin.list_topics(timeout=LOOK_TIMEOUT_S).topics
        except KafkaException:  # its connection was to the node that was killed
            return {}
        return {
            TopicPartition(name, index): PartitionState(each.leader, frozenset(each.isrs))
            for name, topic in topics.items()
            for index, each in topic.partitions.items()
        }

    def await_partitions(
        self, is_as_wanted: Callable[[PartitionState], bool], what: str
    ) -> Partitions:
        """Wait until all partitions are as wanted. Raises AssertionError that names those that are
        not.
        """
        deadline_s = time.monotonic() + ROUND_TIMEOUT_S
        while True:
            found = self.partitions()
            others = {place: state for place, state in found.items() if not is_as_wanted(state)}
            if found and not others:
                return found
            assert time.monotonic() < deadline_s, (
                f"not within {ROUND_TIMEOUT_S} s: {what}: {others}"
            )
            time.sleep(LOOK_PAUSE_S)

    def await_replicas(self) -> Partitions:
        """Wait until all replicas of all partitions are in sync."""
        nodes = frozenset(NODES)
        return self.await_partitions(lambda state: state.in_sync_replicas == nodes, "whole ISRs")

    def await_others(self, node_id: int) -> None:
        """Wait until every partition has a leader, and the node is in sync nowhere."""
        self.await_partitions(
            lambda state: state.leader >= 0 and node_id not in state.in_sync_replicas,
            f"leaders other than {node_id}",
        )

    def _has(self, topic: str) -> bool:
        return any(place.topic == topic for place in self.partitions())

    def _has_all_brokers(self) -> bool:
        try:
            return len(self._admin.list_topics(timeout=LOOK_TIMEOUT_S).brokers) == len(NODES)
        except KafkaException:
            return False


class NumberedProducer:
    """An idempotent producer of librdkafka, in a thread of its own from the start to the end of the
    block: to each partition in turn, values that number its records.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self.counts = [0] * partitions
        """Records sent, by partition."""
        self.offsets: dict[tuple[int, int], int | None] = {}
        """Of acknowledged records by partition and number. None where the leader knew the batch
        already and had forgotten where it is (DUPLICATE_SEQUENCE_NUMBER).
        """
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.max.ms": 200,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more, and wait until all is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        began_s, sent = time.monotonic(), 0
        while not self._stopping.is_set():
            due = int((time.monotonic() - began_s) * RECORDS_PER_S)
            while sent < due and len(self._producer) < MAX_UNACKNOWLEDGED:
                self._send(sent % len(self.counts))
                sent += 1
            self._producer.poll(TICK_S)
        self._producer.flush(DELIVERY_TIMEOUT_MS / 1000)

    def _send(self, partition: int) -> None:
        number = self.counts[partition]
        self.counts[partition] += 1

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offset = message.offset()
                known = offset is not None and offset >= 0
                self.offsets[partition, number] = offset if known else None
            else:
                self.failures.append(f"{partition}, number {number}: {error}")

        self._producer.produce(
            self._topic, value_of(partition, number), partition=partition, on_delivery=delivered
        )


def value_of(partition: int, number: int) -> bytes:
    """Of the record of a `NumberedProducer`."""
    return b"%d of partition %d" % (number, partition)


@dataclass
class LeaderKills:
    """Rounds: the leader of a partition that the seed draws is killed, others take over, and it
    returns. topics: whose partitions are drawn. check: raises what has failed meanwhile.
    """

    cluster: ReplicatedCluster
    topics: frozenset[str]
    check: Callable[[], None]
    seed: int
    killed: Counter[int] = field(default_factory=Counter)
    """By node."""
    slowest_s: float = 0.0
    """Of the rounds."""

    def run(self, rounds: int) -> None:
        """Raises AssertionError that names seed and round."""
        moments = random.Random(self.seed)
        for number in range(1, rounds + 1):
            began_s, where = time.monotonic(), "before the kill"
            try:
                time.sleep(moments.uniform(0, MAX_PAUSE_S))
                place, node_id = self._draw(moments)
                where = f"node {node_id}, leader of {place}, was killed"
                self._play(node_id, moments)
                self.check()
            except Exception as error:
                raise AssertionError(
                    f"seed {self.seed}, round {number}, {where}: {error}"
                ) from error
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    def _draw(self, moments: random.Random) -> tuple[TopicPartition, int]:
        found = self.cluster.await_replicas()
        place = moments.choice(sorted(each for each in found if each.topic in self.topics))
        return place, found[place].leader

    def _play(self, node_id: int, moments: random.Random) -> None:
        self.cluster.kill(node_id)
        self.killed[node_id] += 1
        self.cluster.await_others(node_id)
        time.sleep(moments.uniform(0, MAX_PAUSE_S))
        self.cluster.start(node_id)
        self.cluster.await_replicas()
