"""A history in which everything is right, for tests that break one thing in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.testing.history.operations import (
    Ending,
    Guarantee,
    History,
    OffsetCommit,
    OffsetFetch,
    ReadRecord,
    ReplicaLog,
    SentRecord,
)
from kbroker.testing.history.verdict import anomalies

EVENTS = TopicPartition("events", 0)
LEDGERS = (TopicPartition("ledger", 0), TopicPartition("ledger", 1))
NODES = ("node 1", "node 2", "node 3")
TRANSACTION_PRODUCER = 7


@dataclass
class PartitionWriter:
    """Appends batches to the log of a partition. tampered: by node, a log in place of the right
    one.
    """

    data: bytearray = field(default_factory=bytearray)
    next_offset: int = 0
    tampered: dict[str, bytes] = field(default_factory=dict)

    def append(self, value: bytes, *, is_transactional: bool = False) -> int:
        """A batch of one record. Returns its offset."""
        self.data += build_batch(
            [(0, None, value, ())],
            base_offset=self.next_offset,
            partition_leader_epoch=1,
            producer_id=TRANSACTION_PRODUCER if is_transactional else 1,
            producer_epoch=0,
            base_sequence=self.next_offset,
            is_transactional=is_transactional,
        )
        self.next_offset += 1
        return self.next_offset - 1

    def end_transaction(self, *, commit: bool) -> None:
        """A marker."""
        self.data += build_end_transaction_marker(
            commit=commit,
            producer_id=TRANSACTION_PRODUCER,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=self.next_offset,
            partition_leader_epoch=1,
        )
        self.next_offset += 1

    def replicas(self) -> dict[str, ReplicaLog]:
        """The same log on each node."""
        return {
            node: ReplicaLog(self.tampered.get(node, bytes(self.data)), self.next_offset)
            for node in NODES
        }


class Clients:
    """Clients of a cluster in which nothing goes wrong, unless a test says so.

    skip: values that are acknowledged and not stored. repeat: values that are stored twice.
    """

    def __init__(self, skip: tuple[bytes, ...] = (), repeat: tuple[bytes, ...] = ()) -> None:
        self.history = History()
        self.logs = {partition: PartitionWriter() for partition in (EVENTS, *LEDGERS)}
        self._skip = skip
        self._repeat = repeat
        self._sequences: dict[tuple[str, int, TopicPartition], int] = {}
        self._now_ms = 0

    def now_ms(self) -> int:
        """Later with each call."""
        self._now_ms += 1
        return self._now_ms

    def send(
        self,
        value: bytes,
        partition: TopicPartition = EVENTS,
        *,
        producer: str = "p",
        epoch: int = 0,
        guarantee: Guarantee = Guarantee.IDEMPOTENT,
        transaction: str | None = None,
    ) -> None:
        """A record is sent, and nothing more."""
        stream = producer, epoch, partition
        self._sequences[stream] = sequence = self._sequences.get(stream, -1) + 1
        self.history.send(
            SentRecord(producer, epoch, sequence, partition, value, guarantee, transaction)
        )

    def store(self, value: bytes) -> None:
        """A record that was sent is stored and acknowledged."""
        sent = self.history.sent[value]
        log = self.logs[sent.partition]
        offset = log.next_offset
        if value not in self._skip:
            for _ in range(2 if value in self._repeat else 1):
                log.append(value, is_transactional=sent.transaction is not None)
        self.history.acknowledge(value, offset if value not in self._skip else None)

    def produce(self, *values: bytes, **options: object) -> None:
        """Records are sent, stored and acknowledged."""
        for value in values:
            self.send(value, **options)  # type: ignore[arg-type]  # as `send` has them
            self.store(value)

    def transact(self, name: str, ending: Ending | None, *, commit: bool, epoch: int = 0) -> None:
        """A transaction of a record in each partition of `ledger`. ending: as the producer knows
        it. commit: the marker that is written.
        """
        self.history.begin(name)
        for partition in LEDGERS:
            self.send(
                f"{name}/{partition.partition}".encode(),
                partition,
                producer="t",
                epoch=epoch,
                guarantee=Guarantee.TRANSACTIONAL,
                transaction=name,
            )
            self.store(f"{name}/{partition.partition}".encode())
        for partition in LEDGERS:
            self.logs[partition].end_transaction(commit=commit)
        if ending is not None:
            self.history.end(name, ending, self.now_ms())

    def read(self, offset: int, value: bytes, partition: TopicPartition = EVENTS) -> None:
        """A member of group `g` reads a record, with read_committed."""
        read = ReadRecord("r", 0, partition, offset, value, committed_only=True, group="g")
        self.history.reads.append(read)

    def commit(
        self,
        offset: int,
        *,
        is_acknowledged: bool = True,
        transaction: str | None = None,
        group: str = "g",
    ) -> OffsetCommit:
        """Group `g` commits an offset of `events`."""
        began_ms = self.now_ms()
        commit = OffsetCommit(
            group,
            EVENTS,
            offset,
            began_ms,
            self.now_ms() if is_acknowledged else None,
            transaction,
        )
        self.history.commits.append(commit)
        return commit

    def fetch(self, offset: int | None, *, requires_stable: bool = True, group: str = "g") -> None:
        """Group `g` is told its committed offset."""
        self.history.fetches.append(
            OffsetFetch(group, EVENTS, offset, self.now_ms(), self.now_ms(), requires_stable)
        )

    def lines(self) -> list[str]:
        """What is wrong."""
        for partition, log in self.logs.items():
            self.history.replicas[partition] = log.replicas()
        return anomalies(self.history)


def right_history(**options: tuple[bytes, ...]) -> Clients:
    """One of everything: producers of each kind, a transaction with each end, readers, a group."""
    clients = Clients(**options)
    clients.produce(b"a", b"b")
    clients.send(b"unanswered")
    clients.produce(b"plain", producer="q", guarantee=Guarantee.AT_LEAST_ONCE)
    clients.produce(b"c", b"d")
    clients.transact("t1", Ending.COMMITTED, commit=True)
    clients.transact("t2", Ending.ABORTED, commit=False)
    clients.transact("t3", None, commit=True)
    clients.transact("t4", None, commit=False)
    clients.transact("t5", Ending.COMMITTED, commit=True, epoch=1)
    for offset, value in enumerate((b"a", b"b", b"plain", b"c")):
        clients.read(offset, value)
    clients.read(0, b"t1/0", LEDGERS[0])
    clients.read(4, b"t3/0", LEDGERS[0])
    clients.fetch(None)
    clients.commit(2)
    clients.commit(4)
    clients.commit(3, is_acknowledged=False, group="h")
    clients.fetch(4)
    clients.fetch(3, group="h")
    clients.commit(4, transaction="t1", group="tx")
    clients.commit(3, transaction="t2", group="tx")
    return clients
