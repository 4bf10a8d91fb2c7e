"""A run under producers, transactional producers, groups and readers, on three nodes that are
controllers and brokers. Topics have three replicas and min.insync.replicas 2.

What the clients did and saw is a history (`kbroker/testing/history`), which must have no anomaly;
in the end the replicas of all partitions, also of internal topics, are compared byte by byte.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from kbroker.model import TopicPartition
from kbroker.testing.cluster_state import (
    UNAVAILABLE,
    PartitionState,
    committed_offsets,
    create_topics,
    partition_states,
    unhealed,
)
from kbroker.testing.history.operations import Guarantee, OffsetFetch, ReplicaLog
from kbroker.testing.history.stored import Fate, stored_records
from kbroker.testing.history.verdict import anomalies
from spark_jobs.java import java_problem
from tests.cluster.cluster import CLIENT, Cluster
from tests.cluster.data_load import END_TIMEOUT_S, EVENTS, LEDGER, PARTITIONS, now_ms
from tests.cluster.history_lines import HistoryLines, SharedHistory, value_of
from tests.cluster.loads import ClientProcess, java_command
from tests.cluster.run import Run, Summary, log_bytes

T = TypeVar("T")

DISK_BYTES: Final = 256 << 20
SHOWN: Final = 10
ASK_EVERY_S: Final = 0.5

SETTINGS: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": "2000",
    "replica.socket.timeout.ms": "3000",
    "replica.fetch.backoff.ms": "200",
    "log.segment.bytes": str(1 << 20),
    "log.retention.ms": "-1",
    # A compacted replica has the same records as another, but not the same bytes.
    "log.cleaner.enable": "false",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.segment.bytes": str(1 << 20),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.segment.bytes": str(1 << 20),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
"""Times that are shorter than the defaults, as a fault lasts no longer than some seconds."""


@dataclass(frozen=True)
class DataLoad:
    """A client. library: confluent, aiokafka or java. role: see `data_load`."""

    library: str
    role: str
    group: str | None = None

    @property
    def is_writer(self) -> bool:
        """Whether others read what it writes."""
        return self.role in ("producer", "transactions")


LOADS: Final[Mapping[str, DataLoad]] = {
    "confluent-producer": DataLoad("confluent", "producer"),
    "aiokafka-producer": DataLoad("aiokafka", "producer"),
    "java-producer": DataLoad("java", "producer"),
    "confluent-transactions": DataLoad("confluent", "transactions"),
    "aiokafka-transactions": DataLoad("aiokafka", "transactions"),
    "java-transactions": DataLoad("java", "transactions"),
    "confluent-member1": DataLoad("confluent", "member", "confluent-group"),
    "confluent-member2": DataLoad("confluent", "member", "confluent-group"),
    "aiokafka-member": DataLoad("aiokafka", "member", "aiokafka-group"),
    "java-member": DataLoad("java", "member", "java-group"),
    "reader": DataLoad("confluent", "reader"),
    "committed-reader": DataLoad("confluent", "committed-reader"),
}


def usual_loads() -> tuple[str, ...]:
    """All that this machine can have."""
    without_java = java_problem() is not None
    return tuple(name for name in LOADS if not (without_java and LOADS[name].library == "java"))


class DataRun(Run):
    """loads: names of LOADS. cluster: one that has what runs use of a `Cluster`; None for three
    nodes of kbroker. Each of its nodes gets a replica of each partition.
    """

    def __init__(
        self, folder: Path, *, loads: Sequence[str], cluster: Cluster | None = None
    ) -> None:
        if cluster is None:
            cluster = Cluster(folder, is_combined=True, settings=SETTINGS, disk_bytes=DISK_BYTES)
        super().__init__(cluster, folder)
        self._load_names = loads
        self._shared = SharedHistory()
        self._writers: list[ClientProcess[HistoryLines]] = []
        self._readers: list[ClientProcess[HistoryLines]] = []

    # -- the load ---------------------------------------------------------------------------------

    def start_clients(self, stack: ExitStack) -> None:
        """See `Run`."""
        topics = {EVENTS: PARTITIONS, LEDGER: PARTITIONS}
        self._ask(create_topics(self.cluster.bootstrap_servers, topics, len(self.cluster.nodes)))
        for name in self._load_names:
            load = LOADS[name]
            client = self._start(name, load)
            self.add_client(client, stack)
            (self._writers if load.is_writer else self._readers).append(client)

    def _start(self, name: str, load: DataLoad) -> ClientProcess[HistoryLines]:
        if load.library == "java":
            command = java_command("DataLoad")
        else:
            command = [sys.executable, "-m", "tests.cluster.data_load", load.library]
        command += [load.role, self.cluster.bootstrap_servers, name, load.group or name]
        is_transactional = load.role == "transactions"
        sink = HistoryLines(
            name,
            self._shared,
            guarantee=Guarantee.TRANSACTIONAL if is_transactional else Guarantee.IDEMPOTENT,
            committed_only=load.role != "reader",
            group=load.group,
        )
        inside = self.cluster.network.command(CLIENT)
        return ClientProcess(name, [*inside, *command], self.folder / f"{name}.log", sink)

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        with self.cluster.network.entered(CLIENT):
            return asyncio.run(question)

    # -- checks -----------------------------------------------------------------------------------

    def _anomalies(self) -> list[str]:
        def value(data: bytes) -> bytes:
            return value_of(data).encode()

        return anomalies(self._shared.history, value_of=value)

    def check_clients(self) -> None:
        """What was read and acknowledged until now does not contradict itself."""
        with self._shared.lock:
            _require_none(self._anomalies())
        self.check_metadata_logs()

    def finish(self) -> Summary:
        """See `Run`."""
        for writer in self._writers:
            writer.stop(END_TIMEOUT_S + 5)
        self._wait_until_healed()
        self._wait_until_read()
        for reader in self._readers:
            reader.stop(END_TIMEOUT_S + 5)
        states = self._wait_until_healed()
        history = self._shared.history
        for partition, state in states.items():
            history.replicas[partition] = {
                str(node): ReplicaLog(log_bytes(node, str(partition)), state.high_watermark)
                for node in self.cluster.nodes.values()
            }
        self._fetch_committed_offsets()
        _require_none(self._anomalies())
        self.observe_leaders()
        equal = self.check_metadata_logs() + sum(
            min(len(replica.batches) for replica in replicas.values())
            for replicas in history.replicas.values()
        )
        return Summary(sum(load.sink.count for load in self._loads), self.epochs, equal)

    def _wait_until_healed(self) -> dict[TopicPartition, PartitionState]:
        """All replicas are in sync, and no transaction is open. Returns the partitions."""
        states: dict[TopicPartition, PartitionState] = {}
        wrong = ["no node has answered"]

        def is_healed() -> bool:
            try:
                states.update(self._ask(partition_states(self.cluster.bootstrap_servers)))
            except UNAVAILABLE as error:
                wrong[:] = [str(error)]
                return False
            wrong[:] = unhealed(states, len(self.cluster.nodes))
            return not wrong

        self.wait(is_healed, lambda: f"healed: {'; '.join(wrong[:SHOWN])}", poll_s=ASK_EVERY_S)
        return states

    def _wait_until_read(self) -> None:
        """Each group and each reader has read everything that is visible to it."""
        states = self._ask(partition_states(self.cluster.bootstrap_servers))
        node = next(iter(self.cluster.nodes.values()))
        ends: dict[TopicPartition, int] = {}
        for partition, state in states.items():
            if partition.topic in (EVENTS, LEDGER):
                records = stored_records(log_bytes(node, str(partition)), state.high_watermark)
                visible = [record.offset for record in records if record.fate is Fate.COMMITTED]
                ends[partition] = visible[-1] if visible else -1

        def behind() -> list[str]:
            latest: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
            for reader in self._readers:
                found = latest[reader.sink.group or reader.name]
                for partition, offset in dict(reader.sink.latest).items():
                    found[partition] = max(found.get(partition, -1), offset)
            groups = {load.group for load in LOADS.values()}
            return [
                f"{name} has read {partition} up to {found.get(partition, -1)} of {end}"
                for name, found in latest.items()
                for partition, end in ends.items()
                if found.get(partition, -1) < end
                and (partition.topic == EVENTS or name not in groups)
            ]

        self.wait(lambda: not behind(), lambda: f"everything is read: {'; '.join(behind())}")

    def _fetch_committed_offsets(self) -> None:
        """What all groups have committed in the end."""
        history = self._shared.history
        groups: dict[str, set[TopicPartition]] = defaultdict(set)
        for commit in history.commits:
            groups[commit.group].add(commit.partition)
        for group, partitions in groups.items():
            began_ms = now_ms()
            found = self._ask(
                committed_offsets(self.cluster.bootstrap_servers, group, sorted(partitions))
            )
            for partition, offset in found.items():
                fetch = OffsetFetch(group, partition, offset, began_ms, now_ms())
                history.fetches.append(fetch)


def _require_none(wrong: Sequence[str]) -> None:
    """Raises AssertionError."""
    shown = "; ".join(wrong[:SHOWN])
    assert not wrong, f"{len(wrong)} anomalies: {shown}"
