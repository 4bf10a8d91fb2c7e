"""The end of a transaction from its decision to its Complete record: tracks the missing markers.

An end is decided once its Prepare record is committed. Its markers are written and retried until
every partition has one; then the Complete record is written. The ends in progress are not in
records: after a load they are rebuilt from the state of the transactional ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import Results
from kbroker.coordinator.transaction.markers import MarkerResults
from kbroker.coordinator.transaction.records import NO_PRODUCER_ID, Transaction
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode

FIRST_RETRY_MS: Final = 100
LAST_RETRY_MS: Final = 1_000
"""The retry intervals of failed markers, and of a rejected Prepare or Complete record: the first
one is doubled each time, up to the second. So a transaction ends at most the second interval after
a partition has a leader again.
"""

MARKER_DONE: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Outcomes after which the partition needs no marker any more: the marker is written; the partition
was deleted, according to this broker's metadata; the partition has seen a later epoch of the
producer, which is impossible while the transaction is open in it; or it cannot have transactional
batches. After any other error the marker is written again, for as long as this broker coordinates
the transaction.
"""


class Completion:
    """The end of one transaction in progress. remaining: the partitions without their marker.
    failed: those of them that wait for a retry; the other markers are in flight. is_decided:
    whether the Prepare record is known to be committed.
    """

    __slots__ = ("deadline", "failed", "is_decided", "remaining", "retry_ms")

    def __init__(self, remaining: set[TopicPartition], deadline: Deadline) -> None:
        self.remaining = remaining
        self.failed: set[TopicPartition] = set()
        self.deadline = deadline
        self.is_decided = False
        self.retry_ms = FIRST_RETRY_MS

    def settle(self, results: MarkerResults) -> None:
        """Apply the outcomes of markers."""
        for partition, error in results.items():
            if error in MARKER_DONE:
                self.remaining.discard(partition)
            elif partition in self.remaining:
                self.failed.add(partition)


class Completions:
    """The completions of a shard by transactional id. on_retry: called with (transactional id,
    now_ms) when one is due.
    """

    __slots__ = ("_deadlines", "_found", "_on_retry")

    def __init__(self, deadlines: Deadlines, on_retry: Callable[[str, int], Results]) -> None:
        self._deadlines = deadlines
        self._on_retry = on_retry
        self._found: dict[str, Completion] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def get(self, transactional_id: str) -> Completion | None:
        """None if no end of the id is in progress."""
        return self._found.get(transactional_id)

    def of(self, transaction: Transaction) -> Completion:
        """The completion of a transaction whose end is decided or is being decided."""
        transactional_id = transaction.transactional_id
        found = self._found.get(transactional_id)
        if found is None:
            deadline = Deadline(partial(self._on_retry, transactional_id))
            found = Completion(set(transaction.partitions), deadline)
            self._found[transactional_id] = found
        return found

    def forget(self, transactional_id: str) -> None:
        """The end is complete, or another coordinator completes it."""
        found = self._found.pop(transactional_id, None)
        if found is not None:
            self._deadlines.cancel(found.deadline)

    def clear(self) -> None:
        """Remove all completions of a shard that is unloaded."""
        self._found = {}

    def retry_later(self, completion: Completion, now_ms: int) -> None:
        """Call on_retry after the retry interval, which doubles. Markers of one leader may fail
        while those of another already wait for their retry, which is not postponed.
        """
        if completion.deadline.at_ms is None:
            self._deadlines.set(completion.deadline, now_ms + completion.retry_ms)
            completion.retry_ms = min(2 * completion.retry_ms, LAST_RETRY_MS)


def completed(prepared: Transaction, wall_ms: int) -> Transaction:
    """The state after the last marker of a prepared commit or abort."""
    is_commit = prepared.state is TransactionState.PREPARE_COMMIT
    complete = prepared._replace(
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=wall_ms,
        previous_producer_id=prepared.producer_id,
    )
    if prepared.next_producer_id == NO_PRODUCER_ID:
        return complete
    return complete._replace(
        producer_id=prepared.next_producer_id,
        producer_epoch=0,
        next_producer_id=NO_PRODUCER_ID,
    )
