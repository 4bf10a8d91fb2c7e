"""One partition of `__transaction_state` as state: the transactional ids that hash to it (KIP-98,
KIP-360, KIP-890).

Only `replay` changes `transactions`. Two things are not in records: the ids with an uncommitted
record in the log (`_in_flight`; no other request on such an id is decided meanwhile), and the ended
transactions with missing markers (`completion`). Producer ids and epochs are decided in `epochs`,
EndTxn in `ends`. This is a core: the runtime has time and the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Results
from kbroker.coordinator.transaction.completion import Completion, Completions, completed
from kbroker.coordinator.transaction.ends import (
    check_producer,
    decide_end_v1,
    decide_end_v2,
    prepared,
)
from kbroker.coordinator.transaction.epochs import (
    check_expected,
    fenced,
    initialized,
    needs_producer_id,
)
from kbroker.coordinator.transaction.expiry import PeriodicCheck, has_expired, has_timed_out
from kbroker.coordinator.transaction.markers import (
    ByLeader,
    MarkerResults,
    WriteMarkers,
    all_at_once,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.producer_ids import TakeProducerId
from kbroker.coordinator.transaction.records import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionRecord,
    decode_transaction_record,
    transaction_tombstone,
)
from kbroker.coordinator.transaction.state import ENDING, TRANSITIONS, TransactionState
from kbroker.model import InvariantError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    EndTxnResponse,
    InitProducerIdResponse,
)
from kbroker.protocol.messages.stored.transaction_records import TransactionLogKey

R = TypeVar("R")


class TransactionSettings(Protocol):
    """The part of the broker's configuration that a shard reads."""

    @property
    def transactional_id_expiration_ms(self) -> int: ...
    @property
    def transaction_abort_timed_out_transaction_cleanup_interval_ms(self) -> int: ...
    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...


class TransactionShard:
    """The transactional ids of one partition.

    wall_ms: the wall clock, for stored timestamps and their age. log_version: that of written
    record values, by the cluster's transaction.version. by_leader: see `MarkerWriter`.
    """

    __slots__ = (
        "_by_leader",
        "_deadlines",
        "_ends",
        "_expiry",
        "_in_flight",
        "_log_version",
        "_timeouts",
        "_wall_ms",
        "transactions",
    )

    def __init__(
        self,
        settings: TransactionSettings,
        wall_ms: Callable[[], int],
        log_version: Callable[[], int] = lambda: 1,
        by_leader: ByLeader = all_at_once,
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._wall_ms = wall_ms
        self._log_version = log_version
        self._by_leader = by_leader
        self._in_flight: set[str] = set()
        self._deadlines = Deadlines()
        self._ends = Completions(self._deadlines, self._on_retry)
        self._timeouts = PeriodicCheck(
            self.transactions,
            self._in_flight,
            self._deadlines,
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            is_due=lambda one: has_timed_out(one, wall_ms()),
            act=self._abort,
        )
        self._expiry = PeriodicCheck(
            self.transactions,
            self._in_flight,
            self._deadlines,
            settings.transaction_remove_expired_transaction_cleanup_interval_ms,
            is_due=lambda one: has_expired(one, wall_ms(), settings.transactional_id_expiration_ms),
            act=self._expire,
        )

    # -- replay ------------------------------------------------------------------------------

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """See `decode_transaction_record`."""
        return decode_transaction_record(key, value)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of the log."""
        if isinstance(record, TransactionRecord):
            transaction = record.transaction
            self.transactions[transaction.transactional_id] = transaction
            if transaction.state not in ENDING:
                self._ends.forget(transaction.transactional_id)
        elif isinstance(record.key, TransactionLogKey):
            self.transactions.pop(record.key.transactional_id, None)
            self._ends.forget(record.key.transactional_id)

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        """Not called: no record of this topic belongs to a transaction."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Not called: no record of this topic belongs to a transaction."""

    def on_loaded(self, now_ms: int) -> Results:
        """Continue to end the transactions whose end was decided.

        The last decision in the log may not have been committed: it is written again, and the
        markers wait for that.
        """
        if self.transactions:
            self._arm(now_ms)
        return [
            self._write(transaction, None)
            for transaction in self.transactions.values()
            if transaction.state in ENDING
        ]

    def unload(self, error: ErrorCode) -> Results:
        """No request waits in this shard."""
        self._in_flight.clear()
        self._ends.clear()
        return []

    def next_deadline_ms(self) -> int | None:
        """When to call `on_deadline`; possibly earlier than necessary."""
        return self._deadlines.next_ms()

    def on_deadline(self, now_ms: int) -> Results:
        """Run the deadlines that are due."""
        return self._deadlines.fire(now_ms)

    def changes(self, record: CoordinatorRecord) -> str | None:
        """None: there may be thousands of transactions per second."""
        return None

    # -- requests ----------------------------------------------------------------------------

    def needs_producer_id(self, transactional_id: str) -> bool:
        """See `epochs.needs_producer_id`."""
        return needs_producer_id(self.transactions.get(transactional_id))

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        *,
        new_producer_id: int | None = None,
    ) -> CoordinatorResult[InitProducerIdResponse]:
        """InitProducerId. expected: the producer id and epoch in the request (KIP-360).
        new_producer_id: given if `needs_producer_id`. Raises KafkaError.
        """
        if self._is_busy(transactional_id):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        current = self.transactions.get(transactional_id)
        if current is None:
            return self._init_new(transactional_id, timeout_ms, new_producer_id)
        check_expected(current, expected)
        if current.state is TransactionState.ONGOING:
            # The former producer's transaction is ended first; this client retries.
            if new_producer_id is None and self._rotates(current):
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            concurrent = init_error(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._write(self._fenced(current, new_producer_id), concurrent)
        fresh = initialized(
            current,
            expected,
            timeout_ms=timeout_ms,
            wall_ms=self._wall_ms(),
            new_producer_id=new_producer_id,
        )
        return self._write(fresh, _init_response(fresh))

    def _init_new(
        self, transactional_id: str, timeout_ms: int, producer_id: int | None
    ) -> CoordinatorResult[InitProducerIdResponse]:
        if producer_id is None:  # the id expired since `needs_producer_id`
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        created = Transaction(
            transactional_id,
            producer_id,
            0,
            timeout_ms,
            last_update_ms=self._wall_ms(),
            previous_producer_id=producer_id,
        )
        return self._write(created, _init_response(created))

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        *,
        client_version: int,
    ) -> CoordinatorResult[ErrorCode]:
        """AddPartitionsToTxn, AddOffsetsToTxn, and the partitions that Produce and TxnOffsetCommit
        add implicitly under transaction.version 2. The first partition begins the transaction.
        Raises KafkaError.
        """
        current = self.transactions.get(transactional_id)
        if current is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self._is_busy(transactional_id):
            # Checked before the producer, which may already have its next epoch from the end.
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = check_producer(current, producer)
        if error is ErrorCode.NONE and producer.producer_epoch > LAST_CLIENT_EPOCH:
            error = ErrorCode.PRODUCER_FENCED  # its end needs a higher epoch, which does not exist
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        is_open = current.state is TransactionState.ONGOING
        if is_open and partitions <= current.partitions:
            return CoordinatorResult([], ErrorCode.NONE)
        wall_ms = self._wall_ms()
        opened = current._replace(
            state=TransactionState.ONGOING,
            partitions=current.partitions | partitions,
            start_ms=current.start_ms if is_open else wall_ms,
            last_update_ms=wall_ms,
            previous_producer_id=current.producer_id,
            client_version=client_version,
        )
        return self._write(opened, ErrorCode.NONE)

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is part of this producer's open transaction (KIP-890)."""
        current = self.transactions.get(transactional_id)
        if current is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        error = check_producer(current, producer)
        if error is ErrorCode.NONE and self._is_busy(transactional_id):
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE:
            return dict.fromkeys(partitions, error)
        known = current.partitions if current.state is TransactionState.ONGOING else frozenset()
        return {
            partition: ErrorCode.NONE if partition in known else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        commit: bool,
        client_version: int,
        new_producer_id: int | None = None,
    ) -> CoordinatorResult[EndTxnResponse]:
        """EndTxn: answered once the decision is committed; then the markers are written. Raises
        KafkaError.
        """
        current = self.transactions.get(transactional_id)
        if current is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        decide = decide_end_v2 if client_version >= 2 else decide_end_v1
        is_busy = self._is_busy(transactional_id)
        error, is_new = decide(current, producer, commit=commit, is_busy=is_busy)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        if not is_new:
            return CoordinatorResult([], _end_response(current))
        after = prepared(
            current,
            commit=commit,
            client_version=client_version,
            wall_ms=self._wall_ms(),
            new_producer_id=new_producer_id,
        )
        return self._write(after, _end_response(after))

    def _is_busy(self, transactional_id: str) -> bool:
        """Whether a record of the id is not committed yet, or its transaction is ending."""
        current = self.transactions.get(transactional_id)
        is_ending = current is not None and current.state in ENDING
        return is_ending or transactional_id in self._in_flight

    # -- writing -----------------------------------------------------------------------------

    def _write(self, after: Transaction, response: R) -> CoordinatorResult[R]:
        """The decision on a new state of an id, which is busy until the record is committed."""
        before = self.transactions.get(after.transactional_id)
        if before is not None and after.state not in TRANSITIONS[before.state]:
            raise InvariantError(f"transaction {before!r} cannot become {after.state.name}")
        return CoordinatorResult(
            [TransactionRecord.of(after, self._log_version())],
            response,
            on_written=partial(self._on_written, (after.transactional_id,)),
            on_completion=partial(self._on_completion, after),
        )

    def _on_written(self, transactional_ids: Sequence[str], now_ms: int) -> Results:
        self._in_flight.update(transactional_ids)
        self._arm(now_ms)
        return []

    def _on_completion(self, after: Transaction, error: ErrorCode, now_ms: int) -> Results:
        transactional_id = after.transactional_id
        self._in_flight.discard(transactional_id)
        if error is not ErrorCode.NONE:
            # Rejected, or in the log and not known to be committed. In the latter case the state
            # shows a decided end, which is written again to learn that it is committed.
            current = self.transactions.get(transactional_id)
            if current is not None and current.state in ENDING:
                self._ends.retry_later(self._ends.of(current), now_ms)
            return []
        if after.state not in ENDING:
            return []
        self._ends.of(after).is_decided = True
        return self._complete(transactional_id)

    def _rotates(self, current: Transaction) -> bool:
        """Whether fencing the producer at the end of a transaction gives the id a new producer id.
        The record of transaction.version 0 has no field for it.
        """
        return current.is_epoch_exhausted and self._log_version() > 0

    def _fenced(self, current: Transaction, new_producer_id: int | None) -> Transaction:
        next_id = NO_PRODUCER_ID
        if new_producer_id is not None and self._rotates(current):
            next_id = new_producer_id
        return fenced(current, wall_ms=self._wall_ms(), next_producer_id=next_id)

    # -- the end of a transaction ------------------------------------------------------------

    def _complete(self, transactional_id: str) -> Results:
        """Write the markers of a decided end; if none is missing, write the Complete record."""
        transaction = self.transactions[transactional_id]
        completion = self._ends.of(transaction)
        if not completion.remaining:
            return [self._write(completed(transaction, self._wall_ms()), None)]
        return self._mark(transaction, completion, completion.remaining)

    def _mark(
        self, transaction: Transaction, completion: Completion, partitions: set[TopicPartition]
    ) -> Results:
        """Write markers into partitions; one request per leader, so that none waits for another."""
        requests = [
            WriteMarkers(
                some,
                partial(self._on_markers, transaction.transactional_id, completion),
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                commit=transaction.state is TransactionState.PREPARE_COMMIT,
                transaction_version=transaction.client_version,
            )
            for some in self._by_leader(sorted(partitions))
        ]
        return [CoordinatorResult([], None, requests=requests)]

    def _on_markers(
        self, transactional_id: str, completion: Completion, results: MarkerResults, now_ms: int
    ) -> Results:
        if self._ends.get(transactional_id) is not completion:
            return []
        completion.settle(results)
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in results.values():
            # A later coordinator has written a marker: that one ends the transaction.
            self._ends.forget(transactional_id)
            return []
        if completion.failed:
            self._ends.retry_later(completion, now_ms)
        if completion.remaining:
            return []
        return self._complete(transactional_id)

    def _on_retry(self, transactional_id: str, now_ms: int) -> Results:
        """Write the missing markers again, or the decision: once its second record is committed,
        the first one is too.
        """
        current = self.transactions.get(transactional_id)
        if current is None or current.state not in ENDING or transactional_id in self._in_flight:
            return []
        completion = self._ends.of(current)
        if not completion.is_decided:
            return [self._write(current, None)]
        if not completion.failed:
            return self._complete(transactional_id)
        failed, completion.failed = completion.failed, set()
        return self._mark(current, completion, failed)

    # -- timeouts and expiry -----------------------------------------------------------------

    def _arm(self, now_ms: int) -> None:
        self._timeouts.arm(now_ms)
        self._expiry.arm(now_ms)

    def _abort(self, late: Sequence[Transaction]) -> Results:
        """Abort transactions that timed out; their producers are fenced."""
        results: list[CoordinatorResult[None]] = []
        for transaction in late:
            if self._rotates(transaction):
                take = TakeProducerId(partial(self._abort_timed_out, transaction))
                results.append(CoordinatorResult([], None, requests=[take]))
            else:
                results.append(self._write(self._fenced(transaction, None), None))
        return results

    def _abort_timed_out(self, timed_out: Transaction, producer_id: int, now_ms: int) -> Results:
        """Abort a transaction that timed out in the last epoch. producer_id: the id's next one; if
        none can be allocated, the next check tries again.
        """
        transactional_id = timed_out.transactional_id
        current = self.transactions.get(transactional_id)
        if current != timed_out or transactional_id in self._in_flight:
            return []
        return [self._write(self._fenced(current, producer_id), None)]

    def _expire(self, unused: Sequence[Transaction]) -> Results:
        """Delete ids that expired, with one batch as in Kafka."""
        transactional_ids = [transaction.transactional_id for transaction in unused]
        return [
            CoordinatorResult(
                [transaction_tombstone(each) for each in transactional_ids],
                None,
                on_written=partial(self._on_written, transactional_ids),
                on_completion=partial(self._on_tombstones, transactional_ids),
            )
        ]

    def _on_tombstones(
        self, transactional_ids: Sequence[str], error: ErrorCode, now_ms: int
    ) -> Results:
        self._in_flight.difference_update(transactional_ids)
        return []


def init_error(error: ErrorCode) -> InitProducerIdResponse:
    """An InitProducerId that failed."""
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _init_response(transaction: Transaction) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )


def _end_response(transaction: Transaction) -> EndTxnResponse:
    """The response has the producer id and epoch of the producer's next transaction (v5)."""
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return EndTxnResponse(producer_id=transaction.next_producer_id, producer_epoch=0)
    return EndTxnResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )
