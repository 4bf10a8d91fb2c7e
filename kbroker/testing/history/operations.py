"""A history: the operations of clients of a cluster, and the final logs of the replicas.

A client records an operation before it starts it, and the outcome once that is known. An operation
without an outcome may have been executed, or may still be. Times are in ms on one clock for all
clients. `verdict` checks the history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kbroker.model import TopicPartition


class Guarantee(Enum):
    """The guarantee of the client library for the records of a producer."""

    AT_LEAST_ONCE = "at-least-once"
    """An acknowledged record is stored; a retry may store it twice, and out of order."""
    IDEMPOTENT = "idempotent"
    """Stored once and in order, as long as the producer has one epoch."""
    TRANSACTIONAL = "transactional"
    """Stored once and in order, also across the epochs of one transactional id."""


class Ending(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class SentRecord:
    """producer: the name of a client, or its transactional id. epoch: incremented when the client
    restarts. sequence: incremented with each record that the producer sends to the partition within
    an epoch. value: unique in the history. transaction: its name.
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
    """session: a time in which the reader reads the partition in offset order, for instance while
    its group does not rebalance. group: the group for which it reads. committed_only: with
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
    """ended_ms: None if it was not acknowledged. transaction: the transaction of the offsets, which
    take effect if it is committed.
    """

    group: str
    partition: TopicPartition
    offset: int
    began_ms: int
    ended_ms: int | None = None
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """offset: None if no offset was committed. requires_stable: the response waited for
    transactions that are being committed (KIP-447).
    """

    group: str
    partition: TopicPartition
    offset: int | None
    began_ms: int
    ended_ms: int
    requires_stable: bool = True


@dataclass(slots=True)
class Transaction:
    """ending: None if it is unknown to the producer."""

    name: str
    ending: Ending | None = None
    ended_ms: int | None = None
    values: list[bytes] = field(default_factory=list)
    """The values of the records sent in it."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """batches: the bytes of the segments, in order. high_watermark: that of the partition."""

    batches: bytes
    high_watermark: int


@dataclass(slots=True)
class History:
    """See the module."""

    sent: dict[bytes, SentRecord] = field(default_factory=dict)
    """By value, in the order of sending."""
    acknowledged: dict[bytes, int | None] = field(default_factory=dict)
    """By value, the acknowledged offset; None if the acknowledgement had none."""
    transactions: dict[str, Transaction] = field(default_factory=dict)
    reads: list[ReadRecord] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    fetches: list[OffsetFetch] = field(default_factory=list)
    deleted: dict[TopicPartition, int] = field(default_factory=dict)
    """Up to which offset (exclusive) records were deleted, by DeleteRecords or retention."""
    replicas: dict[TopicPartition, dict[str, ReplicaLog]] = field(default_factory=dict)
    """By the name of the node, after everything has healed."""

    def send(self, record: SentRecord) -> None:
        """Record that a record is about to be sent. Raises ValueError if its value was sent
        before.
        """
        if self.sent.setdefault(record.value, record) is not record:
            raise ValueError(f"{record} was sent before")
        if record.transaction is not None:
            self.transactions[record.transaction].values.append(record.value)

    def acknowledge(self, value: bytes, offset: int | None) -> None:
        """Record that a record was acknowledged."""
        self.acknowledged[value] = offset

    def begin(self, transaction: str) -> None:
        """Record that a producer begins a transaction. The names are unique."""
        if transaction in self.transactions:
            raise ValueError(f"transaction {transaction} was begun before")
        self.transactions[transaction] = Transaction(transaction)

    def end(self, transaction: str, ending: Ending, ended_ms: int) -> None:
        """Record the end of a transaction as its producer was told."""
        found = self.transactions[transaction]
        found.ending, found.ended_ms = ending, ended_ms

    def ending_of(self, transaction: str | None) -> Ending | None:
        """None if it is unknown, or there is no transaction."""
        return None if transaction is None else self.transactions[transaction].ending

    def deleted_below(self, partition: TopicPartition) -> int:
        """The offset below which records may be missing."""
        return self.deleted.get(partition, 0)
