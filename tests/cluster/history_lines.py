"""The lines of clients that produce and consume, and the history that is made of them.

    send VALUE [TRANSACTION]                    a record is about to be sent
    stored VALUE OFFSET                         it was acknowledged; -1: no offset was told
    begin TRANSACTION
    commit TRANSACTION MS, abort TRANSACTION MS           its end was acknowledged, at that time
    read SESSION TOPIC PARTITION OFFSET VALUE
    committing GROUP TOPIC PARTITION OFFSET MS [TRANSACTION]
                                                an offset is about to be committed
    committed GROUP TOPIC PARTITION OFFSET MS   that was acknowledged
    fetched GROUP TOPIC PARTITION OFFSET MS MS  a committed offset; -1: there was none

Any other line is a remark. Times are of the machine's monotonic clock, in ms. A value says what is
known of its record: PRODUCER:EPOCH:TOPIC:PARTITION:SEQUENCE. A record's bytes go on after a space.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from kbroker.model import TopicPartition
from kbroker.testing.history.operations import (
    Ending,
    Guarantee,
    History,
    OffsetCommit,
    OffsetFetch,
    ReadRecord,
    SentRecord,
)

COUNTED: Final = frozenset({"stored", "commit", "read"})
"""What a client's progress is measured by."""


class Value(NamedTuple):
    """Who sent a record, and where."""

    producer: str
    epoch: int
    topic: str
    partition: int
    sequence: int

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Value:
        """The opposite of `str`. Raises ValueError."""
        producer, epoch, topic, partition, sequence = text.split(":")
        return cls(producer, int(epoch), topic, int(partition), int(sequence))


def value_of(data: bytes) -> str:
    """The value in the bytes of a record."""
    return data.partition(b" ")[0].decode()


class SharedHistory:
    """The history of several clients, whose lines arrive in threads of their own."""

    def __init__(self) -> None:
        self.history = History()
        self.lock = threading.Lock()


class HistoryLines:
    """The sink of one client. guarantee: of what it sends. committed_only: how it reads. group: for
    which it reads. latest: the last offset that it read, by partition.
    """

    def __init__(
        self,
        name: str,
        shared: SharedHistory,
        *,
        guarantee: Guarantee = Guarantee.IDEMPOTENT,
        committed_only: bool = True,
        group: str | None = None,
    ) -> None:
        self.count = 0
        self.group = group
        self.latest: dict[TopicPartition, int] = {}
        self._name = name
        self._shared = shared
        self._guarantee = guarantee
        self._committed_only = committed_only
        self._commits: dict[tuple[str, TopicPartition, int], OffsetCommit] = {}
        """Those that were not acknowledged; of several of the same offset the last."""

    def take(self, line: str) -> None:
        """See `loads.Sink`. Raises ValueError for a line that says something impossible."""
        words = line.split()
        with self._shared.lock:
            self._take(self._shared.history, words)
            self.count += bool(words) and words[0] in COUNTED

    def _take(self, history: History, words: list[str]) -> None:
        match words:
            case ["send", text]:
                self._send(history, text, None)
            case ["send", text, transaction]:
                self._send(history, text, transaction)
            case ["stored", text, offset]:
                history.acknowledge(text.encode(), int(offset) if int(offset) >= 0 else None)
            case ["begin", transaction]:
                history.begin(transaction)
            case ["commit", transaction, at_ms]:
                history.end(transaction, Ending.COMMITTED, int(at_ms))
            case ["abort", transaction, at_ms]:
                history.end(transaction, Ending.ABORTED, int(at_ms))
            case ["read", session, topic, partition, offset, text]:
                self._read(history, int(session), topic, int(partition), int(offset), text)
            case ["committing", group, topic, partition, offset, at_ms, *transaction]:
                place = TopicPartition(topic, int(partition))
                commit = OffsetCommit(group, place, int(offset), int(at_ms))
                commit.transaction = transaction[0] if transaction else None
                self._commits[group, place, commit.offset] = commit
                history.commits.append(commit)
            case ["committed", group, topic, partition, offset, at_ms]:
                key = group, TopicPartition(topic, int(partition)), int(offset)
                self._commits.pop(key).ended_ms = int(at_ms)
            case ["fetched", group, topic, partition, offset, began_ms, ended_ms]:
                place = TopicPartition(topic, int(partition))
                found = int(offset) if int(offset) >= 0 else None
                fetch = OffsetFetch(group, place, found, int(began_ms), int(ended_ms))
                history.fetches.append(fetch)

    def _send(self, history: History, text: str, transaction: str | None) -> None:
        value = Value.parse(text)
        history.send(
            SentRecord(
                value.producer,
                value.epoch,
                value.sequence,
                TopicPartition(value.topic, value.partition),
                text.encode(),
                self._guarantee,
                transaction,
            )
        )

    def _read(
        self, history: History, session: int, topic: str, partition: int, offset: int, text: str
    ) -> None:
        place = TopicPartition(topic, partition)
        self.latest[place] = offset
        history.reads.append(
            ReadRecord(
                self._name,
                session,
                place,
                offset,
                text.encode(),
                self._committed_only,
                self.group,
            )
        )
