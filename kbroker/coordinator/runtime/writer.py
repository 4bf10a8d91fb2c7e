"""Writing to a shard: appends a batch, replays it, and tracks its commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic

from kbroker.coordinator.runtime.coordinator_log import (
    NOTHING_WRITTEN,
    CoordinatorLog,
    Transactional,
    is_in_log,
    is_written,
)
from kbroker.coordinator.runtime.host import Host, HostStatus, S
from kbroker.coordinator.runtime.records import CoordinatorRecord, encode_batch
from kbroker.coordinator.runtime.uncommitted import Write
from kbroker.log_lines import shown
from kbroker.ports import Deferred, Timers
from kbroker.protocol.batches.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

_NONE: Final = ErrorCode.NONE
_ACTIVE: Final = HostStatus.ACTIVE
"""Looking up an enum member costs ten times as much."""


class ShardWriter(Generic[S]):
    """Appends to the logs of shards, in the leader epoch of each. Every outcome is NONE (committed)
    or another error of the log (see `client_error`), REQUEST_TIMED_OUT if the high watermark does
    not move. While the outcome is pending, the records are in the log and not yet committed.

    reload: called, in its own turn of the loop, with a host whose log end is unknown.
    """

    __slots__ = ("_base_sequence", "_committed", "_compression", "_log", "_reload", "_timers")

    def __init__(
        self,
        log: CoordinatorLog,
        timers: Timers,
        *,
        compression: Compression,
        base_sequence: int,
        reload: Callable[[Host[S]], None],
    ) -> None:
        self._log = log
        self._timers = timers
        self._compression = compression
        self._base_sequence = base_sequence
        self._reload = reload
        self._committed = Deferred.of(_NONE)

    def write(
        self,
        host: Host[S],
        records: Sequence[CoordinatorRecord],
        transaction: Transactional | None = None,
    ) -> Deferred[ErrorCode]:
        """Append records as one batch and replay them. transaction: the records belong to it and
        are pending until its end.
        """
        if host.status is not _ACTIVE:
            return Deferred.of(ErrorCode.NOT_COORDINATOR)
        producer_id, producer_epoch = transaction or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        try:
            batch = encode_batch(
                records,
                self._timers.now_ms(),
                self._compression,
                base_sequence=self._base_sequence,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
        except ValueError as error:
            logger.warning("%s: cannot write a record: %s", host.topic_partition, shown(error))
            return Deferred.of(ErrorCode.MESSAGE_TOO_LARGE)
        outcome = self._append(host, batch, partial(_replay, host, records, transaction))
        if transaction is None and is_in_log(outcome):
            _log_changes(host, records)
        return outcome

    def write_marker(
        self,
        host: Host[S],
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[ErrorCode]:
        """Append the marker that ends a transaction and apply it: the transaction's records take
        effect, or are discarded.
        """
        batch = build_end_transaction_marker(
            commit=commit,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._timers.now_ms(),
        )

        def replay() -> None:
            host.shard.end_transaction(transaction.producer_id, commit=commit)

        return self._append(host, batch, replay, transaction_version)

    def await_tail(self, host: Host[S]) -> None:
        """Treat the records in the log as uncommitted until the high watermark reaches the
        log end.
        """
        committed = self._log.when_committed(host.topic_partition)
        if not committed.done or committed.value is not _NONE:
            tail = host.uncommitted.add()
            committed.on_done(partial(self._on_outcome, host, tail))

    def _append(
        self,
        host: Host[S],
        batch: bytearray,
        replay: Callable[[], None],
        transaction_version: int = 0,
    ) -> Deferred[ErrorCode]:
        outcome = self._log.append(
            host.topic_partition,
            batch,
            leader_epoch=host.epoch,
            transaction_version=transaction_version,
        )
        if not outcome.done:
            replay()
            write = host.uncommitted.add()
            outcome.on_done(
                lambda result: self._on_outcome(host, write, result.error),
                lambda error: self._on_outcome(host, write, error.code),
            )
            return host.uncommitted.wait()
        error = outcome.value.error if outcome.error is None else outcome.error.code
        if error is _NONE:
            replay()
            return self._committed
        if is_written(error):
            replay()
            self.await_tail(host)
        elif error not in NOTHING_WRITTEN:
            self._timers.call_later(0, lambda: self._reload(host))
        return Deferred.of(error)

    def _on_outcome(self, host: Host[S], write: Write, error: ErrorCode) -> None:
        if host.status is not _ACTIVE:
            return
        if not is_written(error):
            self._timers.call_later(0, lambda: self._reload(host))
        elif error is not _NONE:
            self.await_tail(host)
        host.uncommitted.settle(write, error)


def _replay(
    host: Host[S], records: Sequence[CoordinatorRecord], transaction: Transactional | None
) -> None:
    if transaction is None:
        replay = host.shard.replay
        for record in records:
            replay(record)
        return
    for record in records:
        host.shard.replay_transactional(transaction.producer_id, record)


def _log_changes(host: Host[S], records: Sequence[CoordinatorRecord]) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    for record in records:
        change = host.shard.changes(record)
        if change is not None:
            logger.info("%s: %s", host.topic_partition, shown(change))
