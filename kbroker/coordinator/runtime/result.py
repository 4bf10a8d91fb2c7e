"""The shape of every decision of a coordinator: `CoordinatorResult` (docs/adr/0005).

A shard's `handle`-like methods take a request and now_ms, change nothing and return a
CoordinatorResult. `CoordinatorRuntime` appends the records, replays them, which alone changes
state, and sends the response once they are committed. Kafka's name:
org.apache.kafka.coordinator.common.runtime.CoordinatorResult.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from kbroker.coordinator.runtime.records import CoordinatorRecord, batch_bytes
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode

R_co = TypeVar("R_co", covariant=True)

BYTES_PER_BATCH: Final = 256 * 1024
"""How large the batches of many independent records become: well below max.message.bytes, because
the log refuses a larger batch as a whole.
"""

DeferredResponse = Deferred[Message]
"""The response to a request that waits in a shard, for a rebalance for example. The shard keeps the
waiter and answers it with a Reply; only the runtime resolves it.
"""


class Reply:
    """The response to a request that waits in the shard."""

    __slots__ = ("response", "waiter")

    def __init__(self, waiter: DeferredResponse, response: Message) -> None:
        self.waiter = waiter
        self.response = response

    def __repr__(self) -> str:
        return f"Reply({self.response!r})"

    def deliver(self) -> None:
        """Resolve the waiter. Called by the runtime, after the decisions of the current call."""
        self.waiter.resolve(self.response)


class OutgoingRequest:
    """A request of a shard to another component, such as the markers of a transaction.

    Each coordinator declares its requests as subclasses; its `RequestSender` sends them.
    """

    __slots__ = ()


class CoordinatorResult(NamedTuple, Generic[R_co]):
    """A decision as a value.

    records: appended as one batch, all or none. Without records the result completes when every
    record that was appended before it is committed.
    response: what the request is answered once the records are committed. If they are refused, or
    if this broker stops coordinating the shard first, the request fails instead (see
    `CoordinatorRuntime.handle`). A Deferred is returned to the request as it is: a shard that lets
    requests wait gives their waiter here and answers it with a Reply; this is the one place where
    a value may be a Deferred, since a shard only decides and most decisions answer at once. None
    for a decision that answers no request.
    on_written: called with now_ms as soon as the records are in the log and replayed, committed or
    not, and without records at once; for state that is not in records, such as deadlines.
    on_completion: called with (NONE, now_ms) when the records are committed, or with the client's
    error when they are refused. Not called if the shard is unloaded before that.
    replies: answers to other requests, which wait in the shard; sent in any case, after the append.
    requests: sent in any case, after the append.
    """

    records: Sequence[CoordinatorRecord]
    response: R_co | Deferred[R_co]
    on_written: Callable[[int], Results] | None = None
    on_completion: Callable[[ErrorCode, int], Results] | None = None
    replies: Sequence[Reply] = ()
    requests: Sequence[OutgoingRequest] = ()

    @property
    def answer(self) -> R_co:
        """The response of a decision that has it already. Raises InvariantError if it has to
        wait.
        """
        if isinstance(self.response, Deferred):
            raise InvariantError("the response of this decision waits for another")
        return self.response

    def followed_by(self, on_written: Callable[[int], Results]) -> CoordinatorResult[R_co]:
        """This decision with another on_written. Cheaper than `_replace`, since it is called for
        each heartbeat.
        """
        return CoordinatorResult(
            self.records,
            self.response,
            on_written,
            self.on_completion,
            self.replies,
            self.requests,
        )

    def after(self, records: Sequence[CoordinatorRecord]) -> CoordinatorResult[R_co]:
        """This decision with other records in front of its own, in one batch."""
        return self._replace(records=[*records, *self.records]) if records else self


Result = CoordinatorResult[object] | Reply
"""A decision without a request of its own, or the response to a waiting request."""

Results = Sequence[Result]
"""Decisions of deadlines, of loading, and of callbacks after a write. They are appended in order,
each as a separate batch.
"""


def in_batches(records: Sequence[CoordinatorRecord], size: int) -> list[CoordinatorResult[None]]:
    """Decisions of many independent records, such as tombstones, in order: at most size of them per
    batch, and at most `BYTES_PER_BATCH` unless a single record is larger. An id may have 32,767
    bytes.
    """
    batches: list[CoordinatorResult[None]] = []
    start = taken = 0
    for end, record in enumerate(records):
        record_bytes = batch_bytes(record)
        if end > start and (end - start == size or taken + record_bytes > BYTES_PER_BATCH):
            batches.append(CoordinatorResult(records[start:end], None))
            start, taken = end, 0
        taken += record_bytes
    if start < len(records):
        batches.append(CoordinatorResult(records[start:], None))
    return batches
