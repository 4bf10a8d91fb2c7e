"""A cluster with two brokers, one of kbroker and one of Apache Kafka 4.3.1, under a controller of
either; each partition has a replica on both. Has what runs use of a `tests.cluster.Cluster`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kbroker.client.cluster import Client
from kbroker.log.storage.transaction_index import TransactionIndex
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.testing.cluster_state import (
    UNAVAILABLE,
    PartitionState,
    out_of_sync,
    partition_states,
    unhealed,
)
from kbroker.testing.history.replicas import replica_difference
from kbroker.testing.history.stored import stored_records
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from tests.clients.adapters import wait_until
from tests.clients.process_cluster import SESSIONS, node_process, voters_of
from tests.cluster.data_run import SETTINGS as RUN_SETTINGS
from tests.cluster.run import log_bytes
from tests.reference.mixed_clients import COMMON, REFRESH_S

KBROKER: Final = 1
KAFKA: Final = 2
CONTROLLER: Final = 9
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
HEAL_TIMEOUT_S: Final = 90.0
ASK_EVERY_S: Final = 0.3
SHOWN: Final = 5

SETTINGS: Final = {
    **RUN_SETTINGS,
    **SESSIONS,
    "default.replication.factor": "2",
    # What is written while one broker is down, the other one has alone.
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    # One partition, so that one broker is the coordinator of everything.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "2",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # A follower is removed because its session is over, not earlier.
    "replica.lag.time.max.ms": "6000",
    "auto.leader.rebalance.enable": "false",
}

Process = BrokerProcess | ApacheKafka
Problems = Callable[[Mapping[TopicPartition, PartitionState], int], list[str]]
"""What is wrong with partitions that have so many replicas."""


def other(node: int) -> int:
    """The broker of the other kind."""
    return KAFKA if node == KBROKER else KBROKER


class LocalNetwork:
    """The network of this machine, where `Cluster` has one of its own."""

    def command(self, member: str) -> list[str]:
        """Nothing goes before a command line."""
        del member
        return []

    @contextmanager
    def entered(self, member: str) -> Iterator[None]:
        """There is nothing to enter."""
        del member
        yield


class MixedNode:
    """A broker."""

    def __init__(self, node_id: int, process: Process) -> None:
        self.id = node_id
        self.process = process

    @property
    def log_text(self) -> str:
        """What its processes have logged."""
        return self.process.log.read_text(errors="replace")

    def __str__(self) -> str:
        return "kbroker" if self.id == KBROKER else "Apache Kafka"


class MixedCluster:
    """Started; stack ends it. controller: "kbroker" or "kafka"."""

    def __init__(self, folder: Path, stack: ExitStack, *, controller: str) -> None:
        port = free_port()
        self.controller = controller
        self.network = LocalNetwork()
        self.controller_addresses = {CONTROLLER: ("127.0.0.1", port)}
        self._folder = folder
        self._voters = voters_of({CONTROLLER: port})
        self._start(stack, self._controller(controller, port))
        self.nodes = {
            KBROKER: MixedNode(KBROKER, self._kbroker()),
            KAFKA: MixedNode(KAFKA, self._kafka()),
        }
        for node in self.nodes.values():
            self._start(stack, node.process)
        self.heal()

    @staticmethod
    def _start(stack: ExitStack, process: Process) -> None:
        process.start()
        # A broker that ends in order waits for the other one to take over.
        stack.callback(process.kill)

    def _controller(self, kind: str, port: int) -> Process:
        settings = {
            **SETTINGS,
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "controller.quorum.voters": self._voters,
        }
        if kind == "kbroker":
            return node_process(self._folder, CONTROLLER, settings)
        return self._apache_kafka(CONTROLLER, port, settings, heap="256m")

    def _broker_settings(self, port: int) -> dict[str, str]:
        return {
            **SETTINGS,
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.voters": self._voters,
        }

    def _kbroker(self) -> BrokerProcess:
        return node_process(self._folder, KBROKER, self._broker_settings(free_port()))

    def _kafka(self) -> ApacheKafka:
        port = free_port()
        return self._apache_kafka(KAFKA, port, self._broker_settings(port))

    def _apache_kafka(
        self, number: int, port: int, settings: dict[str, str], heap: str = "512m"
    ) -> ApacheKafka:
        overrides = {**settings, "node.id": str(number)}
        kafka = ApacheKafka(self._folder / str(number), overrides=overrides, heap=heap)
        kafka.port = port
        return kafka

    # -- brokers that die and return --------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Of both brokers."""
        return ",".join(node.process.bootstrap_servers for node in self.nodes.values())

    def kill(self, node: int) -> None:
        """kill -9."""
        self.nodes[node].process.kill()

    def stop(self, node: int) -> None:
        """SIGTERM; a broker of kbroker must end with 0."""
        assert not self.nodes[node].process.stop()

    def start(self, node: int) -> None:
        """Start a broker, and wait until all replicas are in sync, and clients know of it."""
        self.nodes[node].process.start()
        self.wait_in_sync()
        time.sleep(2 * REFRESH_S)

    def heal(self) -> None:
        """Start the broker that is down, if one is, and wait until all replicas are in sync."""
        for node in self.nodes.values():
            if not node.process.running():
                node.process.start()
        self.wait_in_sync()

    # -- what the cluster says of itself ----------------------------------------------------------

    def states(self) -> dict[TopicPartition, PartitionState]:
        """See `partition_states`."""
        return asyncio.run(partition_states(self.bootstrap_servers))

    def wait_in_sync(self) -> dict[TopicPartition, PartitionState]:
        """Until both brokers are in the ISR of all partitions, whose states are returned."""
        return self._wait_until_none(out_of_sync)

    def wait_healed(self) -> dict[TopicPartition, PartitionState]:
        """The same, and no transaction is open."""
        return self._wait_until_none(unhealed)

    def _wait_until_none(self, wrong: Problems) -> dict[TopicPartition, PartitionState]:
        """Until `wrong` finds nothing in the states of the partitions."""
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while True:
            try:
                states = self.states()
                problems = wrong(states, len(self.nodes))
                if len(self.live_brokers()) < len(self.nodes):
                    problems.append("a broker is fenced")
            except UNAVAILABLE as error:
                problems = [str(error)]
            if not problems:
                return states
            shown = "; ".join(problems[:SHOWN])
            assert time.monotonic() < deadline, f"not within {HEAL_TIMEOUT_S:.0f} s: {shown}"
            time.sleep(ASK_EVERY_S)

    def admin(self) -> Any:
        """An AdminClient of confluent-kafka."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({**COMMON, "bootstrap.servers": self.bootstrap_servers})

    async def _metadata(self, topics: list[str]) -> MetadataResponse:
        async with Client(self.bootstrap_servers, timeout_s=5.0) as client:
            return await client.metadata(topics)

    def live_brokers(self) -> set[int]:
        """The brokers that are not fenced. Raises UNAVAILABLE."""
        return {broker.node_id for broker in asyncio.run(self._metadata([])).brokers}

    def leader(self, topic: str, partition: int = 0) -> int:
        """-1 while there is none, or no broker answers."""
        try:
            (found,) = asyncio.run(self._metadata([topic])).topics
        except UNAVAILABLE:
            return -1
        leaders = {each.partition_index: each.leader_id for each in found.partitions}
        return leaders.get(partition, -1)

    def wait_for_leader(self, node: int, topic: str, partition: int = 0) -> None:
        """Until the broker leads the partition."""
        what = f"{self.nodes[node]} leads {topic}-{partition}"
        wait_until(lambda: self.leader(topic, partition) == node, 20, what)

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Replicas on both brokers: partitions of even numbers prefer kbroker, others Kafka."""
        from confluent_kafka.admin import NewTopic

        replicas = [[KBROKER, KAFKA] if n % 2 == 0 else [KAFKA, KBROKER] for n in range(partitions)]
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replica_assignment=replicas,
            config={key.replace("_", "."): value for key, value in configs.items()},
        )
        admin = self.admin()  # a call fails if its client is collected before
        admin.create_topics([topic])[name].result(30)
        wait_until(
            lambda: all(self.leader(name, each) != -1 for each in range(partitions)), 20, "leaders"
        )

    def elect_preferred(self) -> None:
        """Leaders are those that the assignments name first."""
        from confluent_kafka import ElectionType, KafkaError

        admin = self.admin()
        outcomes = admin.elect_leaders(ElectionType.PREFERRED, None).result(30)
        errors = [error.args[0] for error in outcomes.values() if error is not None]
        codes = {error.code() for error in errors}
        assert codes <= {KafkaError.ELECTION_NOT_NEEDED}, errors

    # -- replicas ---------------------------------------------------------------------------------

    def check_replicas(self) -> int:
        """Once healed, all partitions, also of internal topics, have the same bytes and the same
        index of aborted transactions on both brokers. Returns how many bytes of log one has.
        """
        states = self.wait_healed()
        wrong: list[str] = []
        total = 0
        for partition, state in states.items():
            logs = {str(node): log_bytes(node, str(partition)) for node in self.nodes.values()}
            problem = replica_difference(logs, state.high_watermark)
            if problem is not None:
                wrong.append(f"{partition}: {problem}")
            total += len(logs[str(self.nodes[KBROKER])])
        wrong += self._different(aborted_transactions, states)
        assert not wrong, "; ".join(wrong[:SHOWN])
        return total

    def check_stopped_kbroker(self) -> None:
        """Stop the broker of kbroker, which writes its leader epochs by the next flush, not at
        once: both have the same.
        """
        states = self.wait_healed()
        self.stop(KBROKER)
        assert self._different(leader_epochs, states) == []

    def _different(
        self, part: Callable[[Path], object], partitions: Iterable[TopicPartition]
    ) -> list[str]:
        """The partitions of which the brokers do not have the same. part: of their folders."""
        found = {
            partition: [part(node.process.data / str(partition)) for node in self.nodes.values()]
            for partition in partitions
        }
        return [f"{name}: {one} and {two}" for name, (one, two) in found.items() if one != two]

    def stored_values(self, node: int, partition: TopicPartition) -> list[bytes]:
        """The values of all records in the log of a broker, also above the high watermark."""
        log = log_bytes(self.nodes[node], str(partition))
        return [record.value for record in stored_records(log, log_end_offset(log))]


def log_end_offset(log: bytes) -> int:
    """Of the bytes of a log; exclusive."""
    return max((header.next_offset for _, header in iter_batches(log, partial_ok=True)), default=0)


def leader_epochs(folder: Path) -> list[tuple[int, int]]:
    """(epoch, start offset) of a partition's leader-epoch-checkpoint, but not of an epoch without
    records, of which a follower does not know.
    """
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    end = log_end_offset(log)
    path = folder / LEADER_EPOCHS
    # After version and count. While there is no epoch, Kafka's file is empty, kbroker has none.
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    entries = [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]
    return [entry for entry in entries if entry[1] < end]


def aborted_transactions(folder: Path) -> list[tuple[int, int, int]]:
    """(producer id, first offset, last offset) of the entries of a partition's transaction indexes.

    Not their last stable offsets: a follower of Kafka's computes it from all the batches that it
    appends at once, one of kbroker batch by batch as the leader did.
    """
    return sorted(
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for path in folder.glob("*.txnindex")
        for entry in TransactionIndex(str(path), exists=True).entries()
    )
