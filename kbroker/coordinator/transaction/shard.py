"""One partition of `__transaction_state` as state: the transactional ids that hash to it (KIP-98,
KIP-360, KIP-890).

`transactions` changes by `replay` only. Besides it are live: which ids have a record on its way
(`_in_flight`: nobody else decides on such an id meanwhile) and which ended transactions still lack
markers (`_ends`, rebuilt from the state after a reload). An end is decided once its Prepare record
is committed; the markers follow, are tried until every partition has its own, and the Complete
record closes it. A core: time and the log are its caller's (`transaction_coordinator`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.effects import (
    Append,
    Effect,
    MarkerResults,
    Reply,
    TakeProducerId,
    Waiter,
    WriteMarkers,
)
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.transaction.ends import (
    Producer,
    check_producer,
    decide_end_v1,
    decide_end_v2,
)
from kbroker.coordinator.transaction.records import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionRecord,
    decode_transaction_record,
    transaction_tombstone,
)
from kbroker.coordinator.transaction.state import AT_REST, ENDING, TRANSITIONS, TransactionState
from kbroker.model import InvariantError, TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transaction_records import TransactionLogKey
from kbroker.protocol.messages.transactions import EndTxnResponse, InitProducerIdResponse
from kbroker.protocol.schema import Message

FIRST_RETRY_MS: Final = 100
LAST_RETRY_MS: Final = 5_000
"""Markers that failed are written again after the first of these, then after twice as long each
time, up to the second; so is a record that was refused.
"""

MARKER_DONE: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Nothing is left to end there: written; the partition was deleted; or it has seen a later epoch of
this producer, which it cannot have while this transaction is open in it.
"""


class TransactionSettings(Protocol):
    """What of the broker's configuration a shard reads."""

    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transactional_id_expiration_ms(self) -> int: ...
    @property
    def transaction_abort_timed_out_transaction_cleanup_interval_ms(self) -> int: ...
    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...


class Answer(NamedTuple):
    """Who waits, and the response an error code makes."""

    waiter: Waiter
    respond: Callable[[ErrorCode], Message]

    def reply(self, error: ErrorCode) -> list[Effect]:
        """Answer now."""
        return [Reply(self.waiter, self.respond(error))]


class _End:
    """An ended transaction that is not complete. remaining: the partitions without their marker;
    is_decided: its Prepare record is known to be committed.
    """

    __slots__ = ("deadline", "is_decided", "remaining", "retry_ms")

    def __init__(self, remaining: set[TopicPartition], deadline: Deadline) -> None:
        self.remaining = remaining
        self.deadline = deadline
        self.is_decided = False
        self.retry_ms = FIRST_RETRY_MS


class TransactionShard:
    """The transactional ids of one partition.

    wall_ms: the wall clock, for what is stored and how old that is. log_version: of the values
    written from now on, by the cluster's transaction.version.
    """

    __slots__ = (
        "_deadlines",
        "_ends",
        "_expiry",
        "_in_flight",
        "_log_version",
        "_settings",
        "_timeouts",
        "_wall_ms",
        "transactions",
    )

    def __init__(
        self,
        settings: TransactionSettings,
        wall_ms: Callable[[], int],
        log_version: Callable[[], int] = lambda: 1,
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._settings = settings
        self._wall_ms = wall_ms
        self._log_version = log_version
        self._in_flight: dict[str, Answer | None] = {}
        self._ends: dict[str, _End] = {}
        self._deadlines = Deadlines()
        self._timeouts = Deadline(self._on_timeouts)
        self._expiry = Deadline(self._on_expiry)

    # -- replay ------------------------------------------------------------------------------

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """See `decode_transaction_record`."""
        return decode_transaction_record(key, value)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record that is in the log."""
        if isinstance(record, TransactionRecord):
            transaction = record.transaction
            self.transactions[transaction.transactional_id] = transaction
            if transaction.state not in ENDING:
                self._forget_end(transaction.transactional_id)
        elif isinstance(record.key, TransactionLogKey):
            self.transactions.pop(record.key.transactional_id, None)
            self._forget_end(record.key.transactional_id)

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        """Nothing of this topic is written inside a transaction."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Nothing of this topic is written inside a transaction."""

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """All records were replayed: go on with the transactions that had been decided.

        A decision at the log's end need not have been committed: it is written again, and the
        markers wait for that.
        """
        effects: list[Effect] = []
        if self.transactions:
            self._arm(now_ms)
        for transaction in self.transactions.values():
            if transaction.state in ENDING:
                effects += self._write(transaction, None, now_ms)
        return effects

    def unload(self, error: ErrorCode) -> list[Effect]:
        """This broker no longer coordinates these ids: answer everybody who waits."""
        waiting, self._in_flight = self._in_flight, {}
        self._ends = {}
        effects: list[Effect] = []
        for answer in waiting.values():
            if answer is not None:
                effects += answer.reply(error)
        return effects

    def next_deadline_ms(self) -> int | None:
        """When to call `on_deadline`; perhaps early."""
        return self._deadlines.next_ms()

    def on_deadline(self, now_ms: int) -> list[Effect]:
        """What is due."""
        return self._deadlines.fire(now_ms)

    def news(self, record: CoordinatorRecord) -> str | None:
        """Transactions come and go by the thousand: nothing of it is news."""
        return None

    # -- requests ----------------------------------------------------------------------------

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether the next InitProducerId or EndTxn of this id may need a fresh producer id."""
        transaction = self.transactions.get(transactional_id)
        return transaction is None or (
            transaction.is_epoch_exhausted and transaction.state not in ENDING
        )

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        waiter: Waiter,
        now_ms: int,
        *,
        new_producer_id: int | None = None,
    ) -> list[Effect]:
        """InitProducerId. expected: what the producer says it has (KIP-360). new_producer_id: given
        if `needs_producer_id` asked for one.
        """
        failed = Answer(waiter, init_error)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            return failed.reply(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if self._is_busy(transactional_id):
            return failed.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        current = self.transactions.get(transactional_id)
        if current is None:
            return self._init_new(transactional_id, timeout_ms, waiter, now_ms, new_producer_id)
        if expected is not None and not _is_known(current, expected):
            return failed.reply(ErrorCode.PRODUCER_FENCED)
        if current.state is TransactionState.ONGOING:
            # The former producer's transaction is ended first; this one asks again meanwhile.
            concurrent = Answer(
                waiter, lambda error: init_error(error or ErrorCode.CONCURRENT_TRANSACTIONS)
            )
            if new_producer_id is None and self._rotates(current):
                return failed.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._fence(current, concurrent, now_ms, new_producer_id)
        fresh = replace(
            current,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=self._wall_ms(),
            previous_producer_id=current.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
        has_present_epoch = expected is None or expected.producer_epoch == current.producer_epoch
        has_fence_epoch = current.producer_epoch > LAST_CLIENT_EPOCH  # no client's
        if has_fence_epoch or (current.is_epoch_exhausted and has_present_epoch):
            if new_producer_id is None:
                return failed.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
            last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.producer_epoch
            fresh = replace(
                fresh,
                producer_id=new_producer_id,
                producer_epoch=0,
                last_producer_epoch=last_epoch,
            )
        elif has_present_epoch:
            last_epoch = NO_PRODUCER_EPOCH if expected is None else current.producer_epoch
            fresh = replace(
                fresh,
                producer_epoch=current.producer_epoch + 1,
                last_producer_epoch=last_epoch,
            )
        else:  # asked again: the same answer
            fresh = replace(fresh, previous_producer_id=current.previous_producer_id)
        return self._write(fresh, Answer(waiter, partial(_init_response, fresh)), now_ms)

    def _init_new(
        self,
        transactional_id: str,
        timeout_ms: int,
        waiter: Waiter,
        now_ms: int,
        producer_id: int | None,
    ) -> list[Effect]:
        if producer_id is None:  # it expired between the question and now
            return Answer(waiter, init_error).reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        created = Transaction(
            transactional_id,
            producer_id,
            0,
            timeout_ms,
            last_update_ms=self._wall_ms(),
            previous_producer_id=producer_id,
        )
        return self._write(created, Answer(waiter, partial(_init_response, created)), now_ms)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        answer: Answer,
        now_ms: int,
        *,
        client_version: int,
    ) -> list[Effect]:
        """AddPartitionsToTxn, AddOffsetsToTxn, and what Produce and TxnOffsetCommit add by
        themselves under transaction.version 2. The first partition begins the transaction.
        """
        current = self.transactions.get(transactional_id)
        if current is None:
            return answer.reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self._is_busy(transactional_id):
            # before the producer is looked at: it may have been told who it is from the end on
            return answer.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = check_producer(current, producer)
        if error is ErrorCode.NONE and producer.producer_epoch > LAST_CLIENT_EPOCH:
            error = ErrorCode.PRODUCER_FENCED  # its end needs a higher epoch, and there is none
        if error is not ErrorCode.NONE:
            return answer.reply(error)
        is_open = current.state is TransactionState.ONGOING
        if is_open and partitions <= current.partitions:
            return answer.reply(ErrorCode.NONE)
        wall_ms = self._wall_ms()
        opened = replace(
            current,
            state=TransactionState.ONGOING,
            partitions=current.partitions | partitions,
            start_ms=current.start_ms if is_open else wall_ms,
            last_update_ms=wall_ms,
            previous_producer_id=current.producer_id,
            client_version=client_version,
        )
        return self._write(opened, answer, now_ms)

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

    def _is_busy(self, transactional_id: str) -> bool:
        """Whether a record is on its way, or the markers of a decided end: nobody decides now."""
        current = self.transactions.get(transactional_id)
        is_ending = current is not None and current.state in ENDING
        return is_ending or transactional_id in self._in_flight

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        waiter: Waiter,
        now_ms: int,
        *,
        commit: bool,
        client_version: int,
        new_producer_id: int | None = None,
    ) -> list[Effect]:
        """EndTxn. It is answered once the decision is committed; the markers follow."""
        failed = Answer(waiter, _end_error)
        current = self.transactions.get(transactional_id)
        if current is None:
            return failed.reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        decide = decide_end_v2 if client_version >= 2 else decide_end_v1
        is_busy = self._is_busy(transactional_id)
        error, is_new = decide(current, producer, commit=commit, is_busy=is_busy)
        if error is not ErrorCode.NONE:
            return failed.reply(error)
        if not is_new:
            return [Reply(waiter, _end_response(current, ErrorCode.NONE))]
        wall_ms = self._wall_ms()
        prepared = replace(
            current,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            start_ms=current.start_ms if current.state is TransactionState.ONGOING else wall_ms,
            last_update_ms=wall_ms,
            previous_producer_id=current.producer_id,
            client_version=client_version,
        )
        if client_version >= 2:
            next_id = NO_PRODUCER_ID
            if current.is_epoch_exhausted:
                if new_producer_id is None:
                    return failed.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
                next_id = new_producer_id
            prepared = replace(
                prepared,
                producer_epoch=current.next_epoch,
                last_producer_epoch=current.producer_epoch,
                next_producer_id=next_id,
            )
        return self._write(prepared, Answer(waiter, partial(_end_response, prepared)), now_ms)

    # -- what tools read ---------------------------------------------------------------------

    def select(
        self,
        *,
        states: frozenset[TransactionState] | None,
        producer_ids: frozenset[int],
        longer_than_ms: int,
        matches: Callable[[str], bool] | None,
    ) -> Iterator[Transaction]:
        """Transactional ids by filter. None, no producer ids, longer_than_ms -1: all."""
        wall_ms = self._wall_ms()
        for transaction in self.transactions.values():
            if (
                (states is None or transaction.state in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (longer_than_ms < 0 or wall_ms - transaction.start_ms > longer_than_ms)
                and (matches is None or matches(transaction.transactional_id))
            ):
                yield transaction

    # -- writing -----------------------------------------------------------------------------

    def _write(self, after: Transaction, answer: Answer | None, now_ms: int) -> list[Effect]:
        """Append the new state of an id; nobody else decides on it until that is committed."""
        before = self.transactions.get(after.transactional_id)
        if before is not None and after.state not in TRANSITIONS[before.state]:
            raise InvariantError(f"transaction {before!r} cannot become {after.state.name}")
        self._in_flight[after.transactional_id] = answer
        self._arm(now_ms)
        record = TransactionRecord.of(after, self._log_version())
        return [Append([record], partial(self._written, after, answer))]

    def _written(
        self, after: Transaction, answer: Answer | None, error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        transactional_id = after.transactional_id
        self._in_flight.pop(transactional_id, None)
        effects = [] if answer is None else answer.reply(error)
        if error is not ErrorCode.NONE:
            # Refused, or in the log and not known to be committed. The latter shows in the state: a
            # decided end must go on, and is written again to learn that it is committed.
            current = self.transactions.get(transactional_id)
            if current is not None and current.state in ENDING:
                self._retry(self._end_of(current), now_ms)
            return effects
        if after.state in ENDING:
            effects += self._start_end(after, now_ms)
        return effects

    def _rotates(self, current: Transaction) -> bool:
        """Whether the end of a transaction against its producer gives the id a new producer id. The
        record of transaction.version 0 cannot say so.
        """
        return current.is_epoch_exhausted and self._log_version() > 0

    def _fence(
        self,
        current: Transaction,
        answer: Answer | None,
        now_ms: int,
        new_producer_id: int | None = None,
    ) -> list[Effect]:
        """Abort an open transaction against its producer, whose epoch becomes stale. With it the
        producer may ask for its new one, unless a successor was faster (KIP-588). Its last epoch is
        followed by a new producer id, as in Kafka: a client is never told epoch 32767.
        """
        next_id = NO_PRODUCER_ID
        if new_producer_id is not None and self._rotates(current):
            next_id = new_producer_id
        fenced = replace(
            current,
            state=TransactionState.PREPARE_ABORT,
            producer_epoch=current.next_epoch,
            last_producer_epoch=current.producer_epoch,
            last_update_ms=self._wall_ms(),
            previous_producer_id=current.producer_id,
            next_producer_id=next_id,
        )
        return self._write(fenced, answer, now_ms)

    # -- the end of a transaction ------------------------------------------------------------

    def _start_end(self, transaction: Transaction, now_ms: int) -> list[Effect]:
        """The decision is committed: write the markers."""
        self._end_of(transaction).is_decided = True
        return self._go_on(transaction.transactional_id, now_ms)

    def _end_of(self, transaction: Transaction) -> _End:
        transactional_id = transaction.transactional_id
        end = self._ends.get(transactional_id)
        if end is None:
            deadline = Deadline(partial(self._on_retry, transactional_id))
            end = self._ends[transactional_id] = _End(set(transaction.partitions), deadline)
        return end

    def _go_on(self, transactional_id: str, now_ms: int) -> list[Effect]:
        """Write the markers that are missing; without any, the Complete record."""
        transaction, end = self.transactions[transactional_id], self._ends[transactional_id]
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        if end.remaining:
            return [
                WriteMarkers(
                    sorted(end.remaining),
                    partial(self._on_markers, transactional_id, end),
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.producer_epoch,
                    commit=commit,
                    transaction_version=transaction.client_version,
                )
            ]
        complete = replace(
            transaction,
            state=TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            last_update_ms=self._wall_ms(),
            previous_producer_id=transaction.producer_id,
        )
        if transaction.next_producer_id != NO_PRODUCER_ID:
            complete = replace(
                complete,
                producer_id=transaction.next_producer_id,
                producer_epoch=0,
                next_producer_id=NO_PRODUCER_ID,
            )
        return self._write(complete, None, now_ms)

    def _on_markers(
        self, transactional_id: str, end: _End, results: MarkerResults, now_ms: int
    ) -> list[Effect]:
        if self._ends.get(transactional_id) is not end:
            return []
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED in results.values()
        end.remaining -= {partition for partition, error in results.items() if error in MARKER_DONE}
        if fenced:
            # A later coordinator has written there: the transaction is its to end, not ours.
            self._forget_end(transactional_id)
            return []
        if end.remaining:
            self._retry(end, now_ms)
            return []
        return self._go_on(transactional_id, now_ms)

    def _retry(self, end: _End, now_ms: int) -> None:
        self._deadlines.set(end.deadline, now_ms + end.retry_ms)
        end.retry_ms = min(2 * end.retry_ms, LAST_RETRY_MS)

    def _on_retry(self, transactional_id: str, now_ms: int) -> list[Effect]:
        """Go on; or write the decision once more: when that is committed, so is what was written
        before.
        """
        current = self.transactions.get(transactional_id)
        if current is None or current.state not in ENDING or transactional_id in self._in_flight:
            return []
        if self._end_of(current).is_decided:
            return self._go_on(transactional_id, now_ms)
        return self._write(current, None, now_ms)

    def _forget_end(self, transactional_id: str) -> None:
        end = self._ends.pop(transactional_id, None)
        if end is not None:
            self._deadlines.cancel(end.deadline)

    # -- what goes by itself -----------------------------------------------------------------

    def _arm(self, now_ms: int) -> None:
        settings = self._settings
        interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        if self._timeouts.at_ms is None:
            self._deadlines.set(self._timeouts, now_ms + interval_ms)
        if self._expiry.at_ms is None:
            interval_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
            self._deadlines.set(self._expiry, now_ms + interval_ms)

    def _on_timeouts(self, now_ms: int) -> list[Effect]:
        """Abort what is open for longer than its producer allowed; that producer is fenced."""
        wall_ms = self._wall_ms()
        effects: list[Effect] = []
        for transactional_id, transaction in list(self.transactions.items()):
            if (
                transaction.state is TransactionState.ONGOING
                and transactional_id not in self._in_flight
                and transaction.start_ms + transaction.timeout_ms < wall_ms
            ):
                if self._rotates(transaction):
                    effects.append(TakeProducerId(partial(self._time_out, transaction)))
                else:
                    effects += self._fence(transaction, None, now_ms)
        if self.transactions:
            self._arm(now_ms)
        return effects

    def _time_out(self, timed_out: Transaction, producer_id: int, now_ms: int) -> list[Effect]:
        """Abort a transaction that timed out with the last epoch; producer_id: the id's next one.
        When no id is to be had, this is not called, and the next check tries again.
        """
        transactional_id = timed_out.transactional_id
        current = self.transactions.get(transactional_id)
        if current != timed_out or transactional_id in self._in_flight:
            return []
        return self._fence(current, None, now_ms, producer_id)

    def _on_expiry(self, now_ms: int) -> list[Effect]:
        """Forget ids that nobody has used for transactional.id.expiration.ms."""
        wall_ms = self._wall_ms()
        effects: list[Effect] = []
        for transactional_id, transaction in list(self.transactions.items()):
            age_ms = wall_ms - transaction.last_update_ms
            if (
                transaction.state in AT_REST
                and transactional_id not in self._in_flight
                and age_ms >= self._settings.transactional_id_expiration_ms
            ):
                self._in_flight[transactional_id] = None
                record = transaction_tombstone(transactional_id)
                effects.append(Append([record], partial(self._on_expired, transactional_id)))
        if self.transactions:
            self._arm(now_ms)
        return effects

    def _on_expired(self, transactional_id: str, error: ErrorCode, now_ms: int) -> list[Effect]:
        self._in_flight.pop(transactional_id, None)
        return []


def _is_known(current: Transaction, expected: Producer) -> bool:
    """Whether InitProducerId comes from the present producer, or is a retry of its last one."""
    if expected.producer_id == current.producer_id:
        return expected.producer_epoch in (
            current.producer_epoch,
            current.last_producer_epoch,
        )
    return (
        expected.producer_id == current.previous_producer_id
        and expected.producer_epoch >= LAST_CLIENT_EPOCH
        and expected.producer_epoch == current.last_producer_epoch
    )


def init_error(error: ErrorCode) -> InitProducerIdResponse:
    """An InitProducerId that failed."""
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _init_response(transaction: Transaction, error: ErrorCode) -> InitProducerIdResponse:
    if error is not ErrorCode.NONE:
        return init_error(error)
    return InitProducerIdResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )


def _end_error(error: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(error_code=error)


def _end_response(transaction: Transaction, error: ErrorCode) -> EndTxnResponse:
    """With what the producer is to go on with (v5)."""
    if error is not ErrorCode.NONE:
        return _end_error(error)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return EndTxnResponse(producer_id=transaction.next_producer_id, producer_epoch=0)
    return EndTxnResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )
