"""A history: the operations of clients of a cluster, and the logs of the replicas in the end.

A client records what it is about to do before it does it, and the outcome once it knows that. An
operation without an outcome may have been carried out, or may still be. Times are in ms on one
clock for all clients. The rules that a history must keep are in `verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kbroker.model import TopicPartition


class Guarantee(Enum):
    """What the client library promises of the records of a producer."""

    AT_LEAST_ONCE = "at-least-once"
    """An acknowledged record is there; a retry may store it twice, and out of order."""
    IDEMPOTENT = "idempotent"
    """Once and in order, as long as the producer has one epoch."""
    TRANSACTIONAL = "transactional"
    """Once and in order, also over the epochs of one transactional id."""


class Ending(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class SentRecord:
    """producer: the name of a client, or its transactional id. epoch: grows when the client begins
    anew. sequence: grows with each record that the producer sends to the partition within an epoch.
    value: no other record of the history has it. transaction: its name.
    """

    producer: str
    epoch: int
    sequence: int
    partition: TopicPartition
    value: bytes
    guarantee: Guarantee = Guarantee.IDEMPOTENT
    transaction: str | None = None

    def __str__(self) -> str:
        return f"{self.value.decode(errors='replace')} of {self.producer}"


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """session: a time in which the reader reads the partition offset after offset, for instance as
    long as its group does not rebalance. group: for which it reads. committed_only: with
    isolation.level read_committed.
    """

    reader: str
    session: int
    partition: TopicPartition
    offset: int
    value: bytes
    committed_only: bool
    group: str | None = None


@dataclass(slots=True)
class OffsetCommit:
    """ended_ms: None while it is not acknowledged. transaction: the offsets were sent to it, and
    count if it is committed.
    """

    group: str
    partition: TopicPartition
    offset: int
    began_ms: int
    ended_ms: int | None = None
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """offset: None where nothing was committed. requires_stable: the answer waited for transactions
    that are about to be committed (KIP-447).
    """

    group: str
    partition: TopicPartition
    offset: int | None
    began_ms: int
    ended_ms: int
    requires_stable: bool = True


@dataclass(slots=True)
class Transaction:
    """ending: None if the producer does not know it."""

    name: str
    ending: Ending | None = None
    ended_ms: int | None = None
    values: list[bytes] = field(default_factory=list)
    """Of the records that were sent in it."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """batches: the bytes of the segments, in order. high_watermark: of the partition."""

    batches: bytes
    high_watermark: int


@dataclass(slots=True)
class History:
    """See the module."""

    sent: dict[bytes, SentRecord] = field(default_factory=dict)
    """By value, in the order of sending."""
    acknowledged: dict[bytes, int | None] = field(default_factory=dict)
    """By value, the offset that the producer was told; None if it was told none."""
    transactions: dict[str, Transaction] = field(default_factory=dict)
    reads: list[ReadRecord] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    fetches: list[OffsetFetch] = field(default_factory=list)
    deleted: dict[TopicPartition, int] = field(default_factory=dict)
    """Up to which offset (exclusive) records were deleted, by DeleteRecords or retention."""
    replicas: dict[TopicPartition, dict[str, ReplicaLog]] = field(default_factory=dict)
    """By the name of the node, after everything has healed."""

    def send(self, record: SentRecord) -> None:
        """A record is about to be sent. Raises ValueError if its value was sent before."""
        if self.sent.setdefault(record.value, record) is not record:
            raise ValueError(f"{record} was sent before")
        if record.transaction is not None:
            self.transactions[record.transaction].values.append(record.value)

    def acknowledge(self, value: bytes, offset: int | None) -> None:
        """A producer was told that its record is stored."""
        self.acknowledged[value] = offset

    def begin(self, transaction: str) -> None:
        """A producer begins a transaction. The names are unique."""
        if transaction in self.transactions:
            raise ValueError(f"transaction {transaction} was begun before")
        self.transactions[transaction] = Transaction(transaction)

    def end(self, transaction: str, ending: Ending, ended_ms: int) -> None:
        """A producer was told how its transaction ended."""
        found = self.transactions[transaction]
        found.ending, found.ended_ms = ending, ended_ms

    def ending_of(self, transaction: str | None) -> Ending | None:
        """None if that is not known, or there is no transaction."""
        return None if transaction is None else self.transactions[transaction].ending

    def deleted_below(self, partition: TopicPartition) -> int:
        """The offset below which records may be missing."""
        return self.deleted.get(partition, 0)
