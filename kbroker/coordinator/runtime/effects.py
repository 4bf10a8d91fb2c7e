"""What a coordinator core asks its shell to do, as values. `runtime` carries them out, in list
order.

A core decides and returns effects; it never appends, answers or waits by itself. So a test reads
the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Message

Waiter = Deferred[Message]
"""The answer a client waits for. A core keeps it and hands it back in a Reply; it never resolves
it.
"""


class Reply:
    """Give waiter its response."""

    __slots__ = ("response", "waiter")

    def __init__(self, waiter: Waiter, response: Message) -> None:
        self.waiter = waiter
        self.response = response

    def __repr__(self) -> str:
        return f"Reply({self.response!r})"


class Append:
    """Write records as one batch; then: what follows once they are committed, or were refused.

    then takes (NONE or the error for the client, now_ms). It is not called if the shard is unloaded
    meanwhile; lost is, with the error for who waits, and may only reply. written: what follows at
    once, now_ms given, when they are in the log and replayed, committed or not. No records: then
    follows when all before is committed.
    """

    __slots__ = ("lost", "records", "then", "written")

    def __init__(
        self,
        records: Sequence[CoordinatorRecord],
        then: Callable[[ErrorCode, int], list[Effect]] | None = None,
        *,
        written: Callable[[int], list[Effect]] | None = None,
        lost: Callable[[ErrorCode], Reply] | None = None,
    ) -> None:
        self.records = records
        self.then = then
        self.lost = lost
        self.written = written

    def __repr__(self) -> str:
        return f"Append({list(self.records)!r})"


MarkerResults = Mapping[TopicPartition, ErrorCode]
"""What became of a transaction's markers, by partition."""


class WriteMarkers:
    """Write the marker that ends a transaction into each partition; then: what follows.

    transaction_version: 2 if producer_epoch is above that of the transaction's data (KIP-890).
    then takes (each partition's NONE or error, now_ms). It is not called if the shard is unloaded
    meanwhile.
    """

    __slots__ = (
        "commit",
        "partitions",
        "producer_epoch",
        "producer_id",
        "then",
        "transaction_version",
    )

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        then: Callable[[MarkerResults, int], list[Effect]],
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> None:
        self.partitions = partitions
        self.then = then
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.transaction_version = transaction_version

    def __repr__(self) -> str:
        kind = "commit" if self.commit else "abort"
        return (
            f"WriteMarkers({kind}, {self.producer_id}, {self.producer_epoch}, {self.partitions!r})"
        )


class TakeProducerId:
    """Take a fresh producer id; then: what follows, given (the id, now_ms). It is not called if
    there is none, or if the shard is unloaded meanwhile.
    """

    __slots__ = ("then",)

    def __init__(self, then: Callable[[int, int], list[Effect]]) -> None:
        self.then = then

    def __repr__(self) -> str:
        return "TakeProducerId()"


Effect = Append | Reply | WriteMarkers | TakeProducerId
